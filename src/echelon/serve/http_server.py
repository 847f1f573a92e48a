"""The HTTP server of all pages: uvicorn on a bounded listener, with a timeout for everything a client does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from echelon.errors import UserError
from echelon.serve.certificate import TlsFiles
from echelon.serve.limits import Limits
from echelon.serve.listener import FairListener, IPNetwork

_TOO_SLOW = b'{"error": "the head of the request did not arrive in time"}'
_BACKLOG = 1024


@dataclass(frozen=True)
class ListenOptions:
    """Where a server listens, and which names and proxies it accepts."""

    host: str = "127.0.0.1"
    port: int = 8000
    tls: TlsFiles | None = None
    proxies: tuple[str, ...] = ()
    """Addresses or networks whose X-Forwarded-For is believed; then every request needs a token."""
    limits: Limits = field(default_factory=Limits)

    @property
    def is_private(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host) and not self.proxies

    @property
    def own_names(self) -> frozenset[str] | None:
        """Host names that a private server accepts; None, for any, if it is not private."""
        return frozenset({"localhost", "127.0.0.1", "::1", self.host}) if self.is_private else None


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, except that a request whose head does not arrive in time is answered 408.

    The time runs from the connection's beginning, and then from the first bytes that belong to no request under way.
    A connection on which nothing comes after an answer is closed by uvicorn's own time-out.
    """

    patience_s = Limits.receive_s
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cease_to_wait()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._cease_to_wait()
        elif self.timeout_keep_alive_task is None or self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._begin_to_wait()

    def _begin_to_wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.patience_s, self._give_up)

    def _cease_to_wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            head = f"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {len(_TOO_SLOW)}"
            self.transport.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + _TOO_SLOW)
            self.transport.close()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that waits for TLS handshakes no longer than for requests, instead of a minute."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._handshake_s = limits.receive_s

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = self._handshake_s
        return await super().create_server(*arguments, **options)


class Entrance:
    """The bound address and certificate of a server, before there is anything to serve."""

    def __init__(self, listening: ListenOptions) -> None:
        """UserError if the address or the certificate cannot be used."""
        self.listening = listening
        self.tls: ssl.SSLContext | None = listening.tls.open_context() if listening.tls else None
        self.listener = _bind(listening)
        self.port: int = self.listener.getsockname()[1]

    def address_of(self, host: str) -> str:
        """The server's URL under one of its names."""
        return f"{'https' if self.tls else 'http'}://{in_address(host)}:{self.port}/"


class HttpServer(uvicorn.Server):
    """Connections are refused before it is made, and wait until `run_here` is called. Leaves signals alone."""

    def __init__(self, app: ASGIApp, entrance: Entrance, finish_s: int) -> None:
        """`finish_s`: how long requests in progress may take after it is told to stop."""
        listening, limits = entrance.listening, entrance.listening.limits
        config = uvicorn.Config(
            app,
            http=type("Protocol", (TimedProtocol,), {"patience_s": limits.receive_s}),
            ws="none",
            log_config=None,
            log_level="error",  # malformed requests of strangers would fill the log
            access_log=False,
            server_header=False,
            limit_concurrency=limits.connections,
            proxy_headers=bool(listening.proxies),
            forwarded_allow_ips=list(listening.proxies),
            timeout_keep_alive=int(limits.receive_s),
            timeout_graceful_shutdown=finish_s,
        )
        super().__init__(config)
        config.load()
        config.ssl = entrance.tls
        self._listener, self._limits = entrance.listener, limits
        with _explaining(listening):
            self._listener.listen(_BACKLOG)

    def run_here(self) -> None:
        """Answer, in this thread, until `should_exit`."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self._limits)) as runner:
            runner.run(self.serve(sockets=[self._listener]))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(listening: ListenOptions) -> socket.socket:
    proxies = _networks(listening.proxies)
    with _explaining(listening):
        found = socket.getaddrinfo(listening.host, listening.port, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        listener = FairListener(family, listening.limits, proxies)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
        except OSError:
            listener.close()
            raise
    return listener


@contextlib.contextmanager
def _explaining(listening: ListenOptions) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = "another port with --port" if is_port else "another address"
        raise UserError(
            f"{in_address(listening.host)}:{listening.port}: cannot be listened on: {error.strerror}; choose {advice}"
        ) from None


def _networks(proxies: Sequence[str]) -> list[IPNetwork]:
    try:
        return [ipaddress.ip_network(proxy) for proxy in proxies]
    except ValueError as error:
        raise UserError(
            f"--trusted-proxy: {error}; give an address or a network, as in 10.0.0.0/24"
        ) from None
