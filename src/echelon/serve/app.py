"""The HTTP interface: translate or classify, describe the model, say how the server is."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from echelon import __version__
from echelon.errors import UserError
from echelon.inference.classifier import Classifier
from echelon.inference.decoding import Decoding
from echelon.inference.translator import Translator
from echelon.serve.access import Access
from echelon.serve.answering import answer_in_time
from echelon.serve.audit import AuditLog, Handled
from echelon.serve.batching import Batcher
from echelon.serve.guard import OPEN_PATHS, Guard
from echelon.serve.limits import ByteBudget, Limits
from echelon.serve.metrics import Metrics
from echelon.serve.pictures import add_classification
from echelon.serve.schema import (
    ErrorAnswer,
    ModelAnswer,
    StateAnswer,
    TranslateAnswer,
    TranslateRequest,
    TranslationAnswer,
)

log = logging.getLogger("echelon.serve")
_SHARED = {
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/theme.js": ("theme.js", "text/javascript"),
}
_TEXT_PAGE = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"), **_SHARED}
_PICTURE_PAGE = {
    "/": ("pictures.html", "text/html"),
    "/pictures.js": ("pictures.js", "text/javascript"),
    **_SHARED,
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "Not a request that can be read"},
    401: {"model": ErrorAnswer, "description": "No token, or a wrong one"},
    405: {"model": ErrorAnswer, "description": "Another method is meant"},
    408: {"model": ErrorAnswer, "description": "The request did not arrive in time"},
    413: {"model": ErrorAnswer, "description": "More than is accepted"},
    422: {
        "model": ErrorAnswer,
        "description": "Something is wrong with the request, and the message says what",
    },
    429: {"model": ErrorAnswer, "description": "Too many requests of this client"},
    503: {"model": ErrorAnswer, "description": "Too much is waiting, or the server is about to stop"},
    504: {"model": ErrorAnswer, "description": "No answer in time"},
}


def needs_token(path: str) -> bool:
    """The page itself is open, and holds nothing."""
    return path.startswith(("/v1/", "/metrics", "/openapi.json"))


@dataclass
class ServerState:
    """What the endpoints share."""

    model: Translator | Classifier
    name: str
    precision: str
    limits: Limits
    access: Access = field(default_factory=Access)
    audit: AuditLog | None = None
    metrics: Metrics = field(default_factory=Metrics)
    num_waiting: Callable[[], int] = lambda: 0
    """Lines or pictures in the queue."""
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.budget = ByteBudget(self.limits)
        self.metrics.queue_lines.set_function(self._num_waiting_now)

    def _num_waiting_now(self) -> int:
        return self.num_waiting()  # which changes when the queue is made

    def note(self, handled: Handled) -> None:
        """Count a request, and log it unless it is a load balancer's."""
        self.metrics.count_request(handled)
        if self.audit is not None and handled.path not in OPEN_PATHS:
            self.audit.write(handled)
            self.metrics.audit_lost.set(self.audit.num_lost)

    def why_not_ready(self) -> str | None:
        """What keeps it from taking another request; None if nothing does."""
        if self.is_stopping:
            return "stopping"
        if self.num_waiting() >= self.limits.queue_lines or not self.budget.has_room(self.limits.body_bytes):
            return "too many requests are waiting"
        return None


def build_app(state: ServerState) -> FastAPI:
    """The application of a model that translates, or of one that classifies pictures."""
    model = state.model
    app = FastAPI(
        title="Echelon",
        version=__version__,
        description="A model trained by Echelon.",
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere
        redoc_url=None,
        responses=_ERRORS,
    )
    app.add_middleware(
        Guard, access=state.access, limits=state.limits, budget=state.budget, on_handled=state.note
    )
    _answer_errors(app)
    _add_state(app, state)
    if isinstance(model, Classifier):
        _add_page(app, _PICTURE_PAGE)
        add_classification(app, model, state)
    else:
        _add_page(app, _TEXT_PAGE)
        _add_translation(app, model, state)
    return app


def _add_translation(app: FastAPI, translator: Translator, state: ServerState) -> None:
    """What a model for text answers; its batcher starts and stops with the application."""
    batcher: list[Batcher] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.append(Batcher(translator, state.limits.queue_lines, state.metrics))
        state.num_waiting = lambda: batcher[0].num_waiting
        batcher[0].start()
        yield
        await batcher[0].stop()

    app.router.lifespan_context = lifespan

    @app.post("/v1/translate", summary="Translate lines")
    async def translate(wanted: TranslateRequest, request: Request) -> TranslateAnswer:
        started = time.monotonic()
        decoding = _check(wanted, translator, state.limits)
        work = batcher[0].translate(wanted.lines, decoding, [wanted.prefix or ""] * len(wanted.lines))
        translations = await answer_in_time(work, request, state.limits.answer_s)
        answers = [TranslationAnswer.of(translation) for translation in translations]
        return TranslateAnswer(translations=answers, seconds=round(time.monotonic() - started, 4))

    @app.get("/v1/model", summary="What is served")
    async def model() -> ModelAnswer:
        rules, decoding = translator.rules, translator.decoding
        return ModelAnswer(
            name=state.name,
            task="translation",
            source_language=rules.source_language,
            target_language=rules.target_language,
            engine=translator.engine.name,
            precision=state.precision,
            beam=decoding.beam,
            length_penalty=decoding.length_penalty,
            lines=state.limits.lines,
            characters=state.limits.characters,
        )


def _check(wanted: TranslateRequest, translator: Translator, limits: Limits) -> Decoding:
    if len(wanted.lines) > limits.lines:
        raise HTTPException(
            422, f"{len(wanted.lines)} lines are more than {limits.lines}; send several requests"
        )
    characters = sum(map(len, wanted.lines))
    if characters > limits.characters:
        raise HTTPException(
            413, f"{characters:,} characters are more than {limits.characters:,}; send several requests"
        )
    try:
        decoding = wanted.decoding(translator.decoding)
        translator.encode_prefix(wanted.prefix or "", decoding)
    except UserError as error:
        raise HTTPException(422, str(error)) from None
    return decoding


def _add_state(app: FastAPI, state: ServerState) -> None:
    @app.get("/health", summary="Whether the server lives")
    async def health() -> StateAnswer:
        return StateAnswer(status="ok")

    @app.get("/ready", summary="Whether it takes requests: 503 if its queue is full or it is about to stop")
    async def ready() -> StateAnswer:
        if reason := state.why_not_ready():
            raise HTTPException(503, reason, {"Retry-After": "1"})
        return StateAnswer(status="ready")

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(state.metrics.render(), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI, page: dict[str, tuple[str, str]]) -> None:
    for path, (name, kind) in page.items():
        content = (files("echelon.serve") / "page" / name).read_bytes()

        async def show(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

        app.add_api_route(path, show, methods=["GET"], include_in_schema=False, response_class=Response)


def _answer_errors(app: FastAPI) -> None:
    """Every error as {"error": "..."}: what to do about it, and nothing of our inside."""

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            f"{'.'.join(str(step) for step in problem['loc'][1:]) or 'body'}: {problem['msg']}"
            for problem in error.errors()
        ]
        is_unreadable = any(problem["type"] == "json_invalid" for problem in error.errors())
        message = "; ".join(dict.fromkeys(problems))
        text = json.dumps({"error": message[:2000]}).encode("utf-8", "replace")
        return Response(text, 400 if is_unreadable else 422, media_type="application/json")  # type: ignore[return-value]

    @app.exception_handler(Exception)
    async def confess(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"error": "this is a fault of the server; its log has the details"}, 500)
