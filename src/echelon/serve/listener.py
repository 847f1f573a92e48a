"""The listening socket, which no single client can use up."""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class FairListener(socket.socket):
    """Closes connections of a client that has `most` already, before anything is read from them, TLS included.

    Proxies speak for many clients, and have no such bound.
    """

    def __init__(self, family: int, most: int, proxies: Sequence[Network]) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._most = most
        self._proxies = proxies
        self._clients: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError for one that was closed, as though it had not come."""
        connection, address = super().accept()
        client = str(address[0])
        if self._clients[client] >= self._most and not is_within(client, self._proxies):
            connection.close()
            raise BlockingIOError
        self._clients[client] += 1
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


def is_within(client: str, networks: Sequence[Network]) -> bool:
    """Whether an address belongs to one of the networks."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in networks)
