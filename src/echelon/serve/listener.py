"""A listening socket that no single client can exhaust."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from echelon.serve.limits import Limits

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class FairListener(socket.socket):
    """Closes new connections of a client that has too many, before anything is read from them, TLS included.

    Proxies speak for many clients, and have no such bound.
    """

    def __init__(self, family: int, limits: Limits, proxies: Sequence[IPNetwork]) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._limits = limits
        self._proxies = proxies
        self._clients: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError for one that was closed, as if there were none."""
        connection, address = super().accept()
        client = client_of(str(address[0]))
        is_proxy = is_within(str(address[0]), self._proxies)
        if self._clients[client] >= self._limits.client_connections and not is_proxy:
            connection.close()
            raise BlockingIOError
        self._clients[client] += 1
        if sys.platform == "linux":
            # Otherwise a client that reads nothing of a long answer would keep it, and its connection, for ever.
            patience_ms = round(self._limits.send_s * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        return _Counted(connection, lambda: self._forget(client)), address

    def _forget(self, client: str) -> None:
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]


class _Counted(socket.socket):
    """A client's connection, which says when it is closed."""

    def __init__(self, plain: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._tell: Callable[[], None] | None = closed

    def close(self) -> None:
        super().close()
        if self._tell is not None:
            self._tell()
            self._tell = None


def client_of(address: str) -> str:
    """The client behind an address; an IPv6 client is its whole /64 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


def is_within(client: str, networks: Sequence[IPNetwork]) -> bool:
    """Whether an address belongs to one of the networks."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in networks)
