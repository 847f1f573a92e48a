"""Which network interface of this host leads to an address. Only the kernel is asked; nothing is sent."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from echelon.errors import UserError
from echelon.launch.machine import find_interfaces

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class InterfaceAddress:
    """A network interface with one of its addresses."""

    name: str
    address: str


def own_interfaces() -> list[InterfaceAddress]:
    """Every address of this host with its interface, loopback included."""
    return [
        InterfaceAddress(found.name, address) for found in find_interfaces() for address in found.addresses
    ]


def interface_towards(address: str) -> InterfaceAddress:
    """The interface by which packets to `address` leave; for an own address, the one that has it."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((address, 9))
        except OSError as error:
            raise UserError(
                f"no network interface of this host leads to {address}: {error.strerror}"
            ) from None
        return interface_of(asker.getsockname()[0])


def interface_of(address: str) -> InterfaceAddress:
    """The interface that has this address of ours."""
    for interface in own_interfaces():
        if interface.address == address or (is_loopback(interface.address) and is_loopback(address)):
            return InterfaceAddress(interface.name, address)
    raise UserError(f"{address} is no address of this host; its addresses are {_list_addresses()}")


def interface_named(name: str) -> InterfaceAddress:
    """The interface of this name, as GLOO_SOCKET_IFNAME gives it."""
    for interface in own_interfaces():
        if interface.name == name:
            return interface
    raise UserError(
        f"GLOO_SOCKET_IFNAME: this host has no network interface {name!r}, only {_list_addresses()}"
    )


def own_address(name: str) -> str:
    """Which of this host's addresses `name` means; UserError if it is another host's."""
    return interface_of(resolve(name)).address


def resolve(name: str) -> str:
    """The address of a host name; UserError if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{name}: no such host ({error})") from None
    addresses = [str(entry[4][0]) for entry in found]
    return min(addresses, key=lambda address: ":" in address)  # IPv4 if it has both


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _list_addresses() -> str:
    return ", ".join(f"{interface.address} ({interface.name})" for interface in own_interfaces())
