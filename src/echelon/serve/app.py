"""The HTTP interface: translate or classify, describe the model, report health and metrics."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from echelon import __version__
from echelon.errors import UserError
from echelon.inference.decoding import Decoding
from echelon.inference.translator import Translator
from echelon.recipe.tasks import find_task
from echelon.serve.api import (
    ErrorAnswer,
    ModelAnswer,
    StateAnswer,
    TranslateAnswer,
    TranslateRequest,
    TranslationAnswer,
)
from echelon.serve.batching import BATCH_WORK, Batcher, work_of
from echelon.serve.deadline import answer_in_time
from echelon.serve.guard import Guard
from echelon.serve.limits import Limits
from echelon.serve.listener import client_of
from echelon.serve.state import ServerState
from echelon.validation import plain_message

log = logging.getLogger("echelon.serve")
SHARED_FILES = {
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/theme.js": ("theme.js", "text/javascript"),
}
_TEXT_PAGE = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"), **SHARED_FILES}
_REQUEST_KEYS = [*TranslateRequest.model_fields]
_MOST_PROBLEMS = 20
"""Of a request, that are told: finding what was meant by an unknown key takes time, and all clients wait meanwhile."""
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
    """The page itself needs no token, and holds no data."""
    return path.startswith(("/v1/", "/metrics", "/openapi.json"))


class ServeDeclaration(Protocol):
    """What a task says about serving its models."""

    def add_routes(self, app: FastAPI, model: Any, state: ServerState) -> None:
        """Its page, and what it answers."""
        ...


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
    task: ServeDeclaration = find_task(model.task)
    task.add_routes(app, model, state)
    return app


def add_translation(app: FastAPI, translator: Translator, state: ServerState) -> None:
    """What a model for text answers; its batcher starts and stops with the application."""
    add_page(app, _TEXT_PAGE)
    batcher: list[Batcher] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.append(Batcher(translator, state.limits, state.metrics))
        state.num_waiting = lambda: batcher[0].num_waiting
        batcher[0].start()
        yield
        await batcher[0].stop()

    app.router.lifespan_context = lifespan

    @app.post("/v1/translate", summary="Translate lines")
    async def translate(wanted: TranslateRequest, request: Request) -> TranslateAnswer:
        started = time.monotonic()
        decoding = _check(wanted, translator, state.limits)
        prefixes, client = [wanted.prefix or ""] * len(wanted.lines), request.client
        who = client_of(client.host) if client else ""
        work = batcher[0].translate(wanted.lines, decoding, prefixes, who)
        translations = await answer_in_time(work, request, state.limits.answer_s)
        answers = [TranslationAnswer.of(translation) for translation in translations]
        return TranslateAnswer(translations=answers, seconds=round(time.monotonic() - started, 4))

    @app.get("/v1/model", summary="What is served")
    async def model() -> ModelAnswer:
        rules, decoding = translator.rules, translator.decoding
        return ModelAnswer(
            name=state.name,
            task=translator.task,
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
    most = max((work_of(line, wanted.prefix or "", decoding) for line in wanted.lines), default=0)
    if most > BATCH_WORK:
        raise HTTPException(
            413,
            f"one line of this would take {most / BATCH_WORK:.1f} times the most; split it, or ask for a narrower beam",
        )
    return decoding if characters <= limits.alignment_characters else replace(decoding, alignment=False)


def _add_state(app: FastAPI, state: ServerState) -> None:
    @app.get("/health", summary="Whether the server is alive")
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


def add_page(app: FastAPI, page: dict[str, tuple[str, str]]) -> None:
    for path, (name, kind) in page.items():
        content = (files("echelon.serve") / "page" / name).read_bytes()

        async def show(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

        app.add_api_route(path, show, methods=["GET"], include_in_schema=False, response_class=Response)


def _answer_errors(app: FastAPI) -> None:
    """Every error as {"error": "..."}, with what to do about it and no internals."""

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        problems = [
            f"{'.'.join(str(step) for step in problem['loc'][1:]) or 'body'}: {plain_message(problem, _REQUEST_KEYS)}"
            for problem in found[:_MOST_PROBLEMS]
        ]
        is_unreadable = any(problem["type"] == "json_invalid" for problem in found)
        message = "; ".join(dict.fromkeys(problems))
        text = json.dumps({"error": message[:2000]}).encode("utf-8", "replace")
        return Response(text, 400 if is_unreadable else 422, media_type="application/json")  # type: ignore[return-value]

    @app.exception_handler(Exception)
    async def report_bug(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"error": "this is a fault of the server; its log has the details"}, 500)
