"""The process that serves a model: load it, announce its address, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from echelon.errors import UserError
from echelon.extras import has_module
from echelon.inference.classifier import Classifier
from echelon.inference.exported_model import PackageFolder
from echelon.inference.model_folder import task_of_model
from echelon.inference.translator import Translator
from echelon.recipe.tasks import find_task
from echelon.runfolder import RunFolder
from echelon.serve.access import Access, Token, read_tokens, sha256_of
from echelon.serve.app import build_app, needs_token
from echelon.serve.audit import AuditLog
from echelon.serve.http_server import Entrance, HttpServer, ListenOptions
from echelon.serve.limits import PICTURE_BYTES
from echelon.serve.state import ServedModel, ServerState

log = logging.getLogger("echelon.serve")
_FINISH_S = 30
"""How long requests under way may take to end when the server is told to stop."""


@dataclass(frozen=True)
class ServeOptions:
    """What to serve."""

    model: Path
    checkpoint: str | None = None
    engine: str = "auto"
    """ctranslate2, torch, or auto: CTranslate2 if it is installed."""
    precision: str = "float32"
    """Of CTranslate2: float32 or int8."""
    threads: int | None = None
    listening: ListenOptions = field(default_factory=ListenOptions)
    token: str | None = None
    tokens: Path | None = None
    """A file with several tokens, in place of `token`."""
    audit_log: Path | None = None
    drain_s: float = 0.0
    """How long it still takes requests when it is told to stop, for load balancers to notice that it is not ready."""


class _ModelServer(HttpServer):
    """Stops on SIGTERM and SIGINT; reloads its files on SIGHUP."""

    def __init__(
        self, state: ServerState, entrance: Entrance, drain_s: float, reloads: list[Callable[[], None]]
    ) -> None:
        super().__init__(build_app(state), entrance, _FINISH_S)
        self._state, self._drain_s, self._reloads = state, drain_s, reloads

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if self._reloads:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        yield

    def _stop(self) -> None:
        if self._state.is_stopping:  # a second signal: at once
            self.force_exit = self.should_exit = True
        self._state.is_stopping = True
        asyncio.get_running_loop().call_later(self._drain_s, self._leave)

    def _leave(self) -> None:
        self.should_exit = True

    def _reload(self) -> None:
        for reload in self._reloads:
            try:
                reload()
            except UserError as error:
                log.error("not read again: %s", error)


def serve(options: ServeOptions, announce: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Serve until told to stop by SIGTERM or Ctrl-C; `announce` gets the address once it accepts requests.

    UserError if the address, the certificate or the tokens cannot be used. Requests under way are finished first.
    """
    access, token = open_access(options)
    entrance, reloads = Entrance(options.listening), list[Callable[[], None]]()
    audit = AuditLog(options.audit_log) if options.audit_log else None
    if audit is not None:
        reloads.append(audit.reopen)
    if options.tokens is not None:
        reloads.append(lambda: _read_again(access, options))
    if (tls := options.listening.tls) is not None and (context := entrance.tls) is not None:
        reloads.append(lambda: tls.reload(context))
    with tempfile.TemporaryDirectory(prefix="echelon-serve-") as place:
        state = load_state(options, access, Path(place))
        state.audit = audit
        server = _ModelServer(state, entrance, options.drain_s, reloads)
        address = entrance.address_of(options.listening.host)
        announce(describe_server(state, address, token))
        server.run_here()
    return {"address": address, "requests": state.metrics.num_requests}


def open_access(options: ServeOptions) -> tuple[Access, str | None]:
    """Access, and the single token if there is one; a token is made if other machines can connect."""
    listening, token, tokens = options.listening, options.token, None
    if options.tokens is not None and token is not None:
        raise UserError("--token and --tokens: choose one; a file may hold one token too")
    if options.tokens is not None:
        tokens = read_tokens(options.tokens)
    elif token is not None or not listening.is_private:
        token = token or secrets.token_urlsafe(24)
        tokens = (Token(name="token", sha256=sha256_of(token)),)
    return Access(tokens, listening.own_names, needs_token), token


def _read_again(access: Access, options: ServeOptions) -> None:
    assert options.tokens is not None
    access.tokens = read_tokens(options.tokens)


def load_state(options: ServeOptions, access: Access, place: Path) -> ServerState:
    """The server's state with the loaded model. `place` is for a model that must be converted first."""
    task: LoadDeclaration = find_task(task_of_model(options.model))
    served = task.load_served(options, place)
    limits = options.listening.limits
    limits = replace(limits, body_bytes=max(limits.body_bytes, served.body_bytes))
    return ServerState(served.model, served.name, served.precision, limits, access)


@dataclass(frozen=True)
class Served:
    """A loaded model."""

    name: str
    precision: str
    model: ServedModel
    body_bytes: int = 0
    """The least bytes that a request's body must be allowed."""


class LoadDeclaration(Protocol):
    """What a task says about loading a model to serve it."""

    def load_served(self, options: ServeOptions, place: Path) -> Served: ...


def load_served_classifier(options: ServeOptions) -> Served:
    """A model that classifies images."""
    if options.engine == "ctranslate2" or options.precision != "float32":
        raise UserError(f"{options.model}: classifies images; --engine and --precision are for translation")
    classifier = Classifier.load(options.model, checkpoint=options.checkpoint, threads=options.threads)
    package = PackageFolder(options.model)
    if not package.is_there():
        return Served(RunFolder(options.model).name, "as trained", classifier, PICTURE_BYTES)
    manifest = package.read_manifest()
    return Served(manifest.name, manifest.precision, classifier, PICTURE_BYTES)


def load_served_translator(options: ServeOptions, place: Path) -> Served:
    """A model that translates; `place` is for what has to be converted first."""
    package = PackageFolder(options.model)
    if not package.is_there():
        run = RunFolder(options.model).require()
        if not _wants_ctranslate2(options):
            translator = Translator.load(run.path, checkpoint=options.checkpoint, threads=options.threads)
            return Served(run.name, "as trained", translator)
        from echelon.export.export import export_run
        from echelon.export.export_folder import ExportOptions

        package = PackageFolder(place / "model")
        precision: Any = options.precision
        export_run(run, ExportOptions("ctranslate2", package.path, precision, options.checkpoint))
    elif options.engine != "auto" or options.checkpoint is not None:
        raise UserError(f"{options.model}: is an exported model; --engine and --checkpoint are for runs")
    manifest = package.read_manifest()
    return Served(manifest.name, manifest.precision, Translator.load(package.path, threads=options.threads))


def _wants_ctranslate2(options: ServeOptions) -> bool:
    return options.engine == "ctranslate2" or (options.engine == "auto" and has_module("ctranslate2"))


def describe_server(state: ServerState, address: str, token: str | None) -> dict[str, Any]:
    """What `serve --json` prints."""
    return {
        "address": address,
        "model": state.name,
        "engine": state.model.engine.name,
        "precision": state.precision,
        "token": token,
    }
