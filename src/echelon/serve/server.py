"""The process that listens: start, say where, serve, finish what it has, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from echelon.errors import UserError
from echelon.extras import has_module
from echelon.inference.classifier import Classifier
from echelon.inference.loading import is_classifier
from echelon.inference.package import PackageFolder
from echelon.inference.translator import Translator
from echelon.runfolder import RunFolder
from echelon.serve.app import ServerState, build_app
from echelon.serve.limits import PICTURE_BYTES, Limits
from echelon.serve.listener import FairListener, Network

_FINISH_S = 30
"""How long requests under way may take to end when the server is told to stop."""
_TOO_SLOW = b'{"error": "the head of the request did not arrive in time"}'


@dataclass(frozen=True)
class ServeOptions:
    """Where and what to serve."""

    model: Path
    checkpoint: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    engine: str = "auto"
    """ctranslate2, torch, or auto: CTranslate2 where it is installed."""
    precision: str = "float32"
    """Of CTranslate2: float32 or int8."""
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    proxies: tuple[str, ...] = ()
    """Addresses or networks whose X-Forwarded-For is believed; then every request needs a token."""


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


class _Server(uvicorn.Server):
    """uvicorn's server, except that a signal to stop is what it is for, and no failure."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self.should_exit  # told twice: at once
        self.should_exit = self._state.is_stopping = True


def serve(options: ServeOptions, announce: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Serve until told to stop by SIGTERM or Ctrl-C; `announce` is told the address once it can be asked.

    UserError where the address cannot be used. Requests under way are finished first.
    """
    listener = _listen(options)
    with tempfile.TemporaryDirectory(prefix="echelon-serve-") as place:
        state = load_state(options, Path(place))
        config = uvicorn.Config(
            build_app(state),
            http=TimedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=options.limits.connections,
            proxy_headers=bool(options.proxies),
            forwarded_allow_ips=list(options.proxies),
            timeout_keep_alive=int(options.limits.receive_s),
            timeout_graceful_shutdown=_FINISH_S,
        )
        address = _address(options.host, listener)
        announce(describe_server(state, address))
        asyncio.run(_Server(config, state).serve(sockets=[listener]))
    return {"address": address, "requests": state.metrics.num_requests}


def load_state(options: ServeOptions, place: Path) -> ServerState:
    """The model, and who may ask for it. `place` is for what has to be converted first."""
    limits = options.limits
    if is_classifier(options.model):
        name, precision, model = _load_classifier(options)
        limits = replace(limits, body_bytes=max(limits.body_bytes, PICTURE_BYTES))
    else:
        name, precision, model = _load_model(options, place)
    is_local = is_loopback(options.host) and not options.proxies
    return ServerState(
        model,
        name,
        precision,
        limits,
        token=options.token or (None if is_local else secrets.token_urlsafe(24)),
        hosts=frozenset({"localhost", "127.0.0.1", "::1", options.host}) if is_local else None,
    )


def _load_classifier(options: ServeOptions) -> tuple[str, str, Translator | Classifier]:
    if options.engine == "ctranslate2" or options.precision != "float32":
        raise UserError(f"{options.model}: classifies pictures; --engine and --precision are for translation")
    classifier = Classifier.load(options.model, checkpoint=options.checkpoint, threads=options.threads)
    package = PackageFolder(options.model)
    if not package.is_there():
        return RunFolder(options.model).name, "as trained", classifier
    manifest = package.read_manifest()
    return manifest.name, manifest.precision, classifier


def _load_model(options: ServeOptions, place: Path) -> tuple[str, str, Translator | Classifier]:
    package = PackageFolder(options.model)
    if not package.is_there():
        run = RunFolder(options.model).require()
        if not _wants_ctranslate2(options):
            translator = Translator.load(run.path, checkpoint=options.checkpoint, threads=options.threads)
            return run.name, "as trained", translator
        from echelon.export.exporting import ExportOptions, export_run

        package = PackageFolder(place / "model")
        precision: Any = options.precision
        export_run(run, ExportOptions("ctranslate2", package.path, precision, options.checkpoint))
    elif options.engine != "auto" or options.checkpoint is not None:
        raise UserError(f"{options.model}: is an exported model; --engine and --checkpoint are for runs")
    manifest = package.read_manifest()
    return manifest.name, manifest.precision, Translator.load(package.path, threads=options.threads)


def _wants_ctranslate2(options: ServeOptions) -> bool:
    return options.engine == "ctranslate2" or (options.engine == "auto" and has_module("ctranslate2"))


def describe_server(state: ServerState, address: str) -> dict[str, Any]:
    """What `serve --json` prints."""
    return {
        "address": address,
        "model": state.name,
        "engine": state.model.engine.name,
        "precision": state.precision,
        "token": state.token,
    }


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(options: ServeOptions) -> socket.socket:
    proxies = _networks(options.proxies)
    try:
        family, _, _, _, where = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listener = FairListener(family, options.limits.client_connections, proxies)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1024)
    except OSError as error:
        raise UserError(
            f"{options.host}:{options.port}: cannot be listened on: {error.strerror}; choose another with --port"
        ) from error
    return listener


def _networks(proxies: Sequence[str]) -> list[Network]:
    try:
        return [ipaddress.ip_network(proxy) for proxy in proxies]
    except ValueError as error:
        raise UserError(f"--proxy: {error}; give an address or a network, as in 10.0.0.0/24") from None


def _address(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
