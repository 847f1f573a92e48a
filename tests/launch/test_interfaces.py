"""Which network interface leads where, whichever this machine has."""

from __future__ import annotations

import socket

import pytest

from echelon.errors import UserError
from echelon.launch import interfaces
from echelon.launch.interfaces import (
    InterfaceAddress,
    interface_named,
    interface_of,
    interface_towards,
    own_address,
    own_interfaces,
    resolve,
)


def test_loopback_leads_to_itself() -> None:
    interface = interface_towards("127.0.0.1")
    assert interface in own_interfaces()
    assert interface_of("127.0.1.1") == InterfaceAddress(interface.name, "127.0.1.1"), (
        "all of 127/8 is this host"
    )
    assert own_address("localhost") == "127.0.0.1"


def test_every_own_address_leads_to_the_interface_that_has_it() -> None:
    for interface in own_interfaces():
        assert interface_towards(interface.address) == interface
        assert interface_named(interface.name).name == interface.name


def test_another_hosts_address_is_not_taken_for_our_own() -> None:
    with pytest.raises(
        UserError, match=r"203\.0\.113\.7 is no address of this host; its addresses are .*127\.0\.0\.1"
    ):
        own_address("203.0.113.7")


def test_a_host_that_nobody_knows_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.invalid: no such host"):
        resolve("nowhere.invalid")


def test_a_name_with_both_kinds_of_addresses_means_the_old_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(None, None, None, "", ("fd00::1", 0, 0, 0)), (None, None, None, "", ("10.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert resolve("both") == "10.0.0.1"


def test_a_missing_interface_is_named_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "own_interfaces", lambda: [InterfaceAddress("eth1", "10.0.0.1")])
    with pytest.raises(UserError, match=r"no network interface 'ib0', only 10\.0\.0\.1 \(eth1\)"):
        interface_named("ib0")
