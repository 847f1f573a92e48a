"""Which network card leads where, on whatever cards this machine has."""

from __future__ import annotations

import socket

import pytest

from echelon.errors import UserError
from echelon.launch import interfaces
from echelon.launch.interfaces import Card, card_named, card_of, card_towards, own_address, own_cards, resolve


def test_loopback_leads_to_itself() -> None:
    card = card_towards("127.0.0.1")
    assert card in own_cards()
    assert card_of("127.0.1.1") == Card(card.name, "127.0.1.1"), "all of 127/8 is this host"
    assert own_address("localhost") == "127.0.0.1"


def test_every_own_address_leads_to_the_card_that_has_it() -> None:
    for card in own_cards():
        assert card_towards(card.address) == card
        assert card_named(card.name).name == card.name


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


def test_a_card_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "own_cards", lambda: [Card("eth1", "10.0.0.1")])
    with pytest.raises(UserError, match=r"no network card 'ib0', only 10\.0\.0\.1 \(eth1\)"):
        card_named("ib0")
