"""Which of this host's network cards leads where. The kernel is asked; nothing is sent."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from echelon.errors import UserError
from echelon.launch.machine import find_interfaces

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Card:
    """A network card with one of its addresses."""

    name: str
    address: str


def own_cards() -> list[Card]:
    """Every address of this host, with its card; loopback too."""
    return [Card(found.name, address) for found in find_interfaces() for address in found.addresses]


def card_towards(address: str) -> Card:
    """The card, and its address, by which packets to `address` leave; the interface that has it if it is our own."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((address, 9))
        except OSError as error:
            raise UserError(f"no network card of this host leads to {address}: {error.strerror}") from None
        return card_of(asker.getsockname()[0])


def card_of(address: str) -> Card:
    """The card that has this address of ours."""
    for card in own_cards():
        if card.address == address or (is_loopback(card.address) and is_loopback(address)):
            return Card(card.name, address)
    raise UserError(f"{address} is no address of this host; its addresses are {_own_addresses()}")


def card_named(name: str) -> Card:
    """The card of this name, as GLOO_SOCKET_IFNAME gives it."""
    for card in own_cards():
        if card.name == name:
            return card
    raise UserError(f"GLOO_SOCKET_IFNAME: this host has no network card {name!r}, only {_own_addresses()}")


def own_address(name: str) -> str:
    """Which of this host's addresses `name` means; UserError if it is another host's."""
    return card_of(resolve(name)).address


def resolve(name: str) -> str:
    """The address that a host's name stands for; UserError if nobody knows it."""
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


def _own_addresses() -> str:
    return ", ".join(f"{card.address} ({card.name})" for card in own_cards())
