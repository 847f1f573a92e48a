"""The dashboard's addresses: the page and its parts, plotly's script, and what the page asks for as JSON."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any, get_args
from urllib.parse import urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from echelon.dashboard.catalogue import RunCatalogue
from echelon.dashboard.details import Answers, describe_run
from echelon.dashboard.overlay import Axis, View, group_curves, overlay_curves
from echelon.dashboard.run_curves import RunCurves
from echelon.errors import EchelonError
from echelon.extras import require_extra
from echelon.runfolder import RunNotes, parse_json, to_json
from echelon.serve.access import bearer_token

_LOOK_S = 1.0
"""How often runs are looked at for something new, while somebody watches."""
_REPORTS = 2
"""Requests for a report's answers that may be under way, each in a thread."""
_MOST_RUNS = 50
"""Of a chart."""
_MOST_COMPARED = 20
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SHARED = ("style.css", "theme.js", "icon.svg")
"""What the pages of `echelon serve` have too."""
HEADERS = {
    # As the guard has it, and images of the page's own making: charts are saved as PNG by way of one.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
}


def find_plotly() -> bytes:
    """plotly's script, from its Python package; UserError that names the extra if it is not installed."""
    require_extra("plotly", "dashboard")
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


class DashboardPages:
    """Answers what a browser asks of a catalogue. `token`, if any, comes once in the address and then in a cookie."""

    def __init__(
        self,
        catalogue: RunCatalogue,
        script: bytes,
        token: str | None,
        cookie: str,
        is_closing: Callable[[], bool],
    ) -> None:
        self._catalogue, self._answers = catalogue, Answers(catalogue.hourly)
        self._token, self._cookie, self._is_closing = token, cookie, is_closing
        self._files = _read_page() | {"plotly.min.js": (script, "text/javascript")}
        self._reports = asyncio.Semaphore(_REPORTS)
        self._num_watching = 0
        self._look = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="catalogue", daemon=True)
        self._thread.start()

    def routes(self) -> list[Route]:
        return [
            Route("/", self._show),
            Route("/events", self._follow),
            Route("/api/runs", self._answering(self._runs)),
            Route("/api/curves", self._answering(self._curves)),
            Route("/api/run", self._answering(self._run)),
            Route("/api/answers", self._in_turn(self._answering(self._questions))),
            Route("/api/verdict", self._in_turn(self._answering(self._verdict))),
            Route("/api/notes", self._note, methods=["POST"]),
            Route("/{name}", self._file),
        ]

    def close(self) -> None:
        """End the thread that reads records."""
        self._stop.set()
        self._look.set()
        self._thread.join()

    def find_token(self, connection: HTTPConnection) -> str:
        given = connection.query_params.get("token") or connection.cookies.get(self._cookie)
        return given or bearer_token(connection)

    def _keep_up(self) -> None:
        """Read all runs once, and from then on what is new while somebody watches."""
        while not self._stop.is_set():
            self._catalogue.refresh(is_stopped=self._stop)
            self._look.wait(_LOOK_S if self._num_watching else None)
            self._look.clear()

    async def _show(self, request: Request) -> Response:
        if self._token is not None and "token" in request.query_params:
            kept = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
            # Without the token, which histories would keep.
            answer = RedirectResponse(f"/?{urlencode(kept)}" if kept else "/", 303)
            secure = request.url.scheme == "https"
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", secure=secure)
            return answer
        return self._static("index.html")

    async def _file(self, request: Request) -> Response:
        return self._static(request.path_params["name"])

    def _static(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        content, kind = self._files[name]
        return Response(content, media_type=kind, headers=HEADERS | {"Cache-Control": "no-cache"})

    def _answering(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """A route that answers with JSON, computed in a thread."""

        async def respond(request: Request) -> Response:
            try:
                found = await run_in_threadpool(answer, request)
            except EchelonError as error:
                return _json({"error": str(error)}, 400)
            return _json(found)

        return respond

    def _in_turn(self, respond: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """A route that takes long: requests wait for each other here, and not in threads that others need."""

        async def wait(request: Request) -> Response:
            async with self._reports:
                answer: Response = await respond(request)
                return answer

        return wait

    def _runs(self, _: Request) -> dict[str, Any]:
        rows = self._catalogue.rows()
        return {
            "version": self._catalogue.version,
            "rows": rows,
            "settings": self._catalogue.settings(),
            "hourly": self._catalogue.hourly,
        }

    def _curves(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        runs = asked.getlist("run")[:_MOST_RUNS]
        view = _view(
            asked.get("chart", ""), asked.get("x", ""), asked.get("smooth", ""), self._catalogue.hourly
        )
        found = [(key, self._catalogue.curves(key)) for key in runs]
        if not (group := asked.get("group")):
            return {"curves": overlay_curves(found, view)}
        settings = self._catalogue.settings()
        groups: dict[str, list[RunCurves]] = {}
        for key, curves in found:
            label = settings.get(key, {}).get(group, "not set")
            groups.setdefault(f"{group} = {label}", []).append(curves)
        return {"groups": group_curves(dict(sorted(groups.items())), view)}

    def _run(self, request: Request) -> dict[str, Any]:
        return describe_run(self._catalogue.curves(request.query_params.get("run", "")))

    def _questions(self, request: Request) -> dict[str, Any]:
        return self._answers.of(self._catalogue.curves(request.query_params.get("run", "")))

    def _verdict(self, request: Request) -> dict[str, Any]:
        runs = [self._catalogue.find(key) for key in request.query_params.getlist("run")]
        if not 2 <= len(runs) <= _MOST_COMPARED:
            raise EchelonError(f"select 2 to {_MOST_COMPARED} runs to compare them")
        return self._answers.verdict(runs)

    async def _note(self, request: Request) -> Response:
        """Keep tags and a note. A page of another site can send neither this type of content nor our origin."""
        origin = urlsplit(request.headers.get("origin", ""))
        is_json = request.headers.get("content-type", "") == "application/json"
        if not is_json or origin.netloc != request.headers.get("host"):
            return _json({"error": "only this page may write"}, 403)
        try:
            match parse_json(await request.body()):
                case {"run": str(key), "tags": [*tags], "note": str(note)}:
                    notes = RunNotes(tuple(map(str, tags)), note)
                    await run_in_threadpool(notes.write, self._catalogue.find(key))
                case _:
                    return _json({"error": "not a note"}, 400)
        except (ValueError, EchelonError) as error:
            return _json({"error": str(error)}, 400)
        self._look.set()
        return _json({})

    async def _follow(self, _: Request) -> Response:
        return StreamingResponse(self._events(), headers=HEADERS, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        """Server-sent events until the reader has gone: a line whenever a row has changed."""
        self._num_watching += 1
        self._look.set()
        said = None
        try:
            while not self._is_closing():
                version = self._catalogue.version
                yield f"data: {version}\n\n" if version != said else ": still here\n\n"
                said = version
                next_look = time.monotonic() + _LOOK_S
                while time.monotonic() < next_look and not self._is_closing():
                    await asyncio.sleep(0.1)
        finally:
            self._num_watching -= 1


def _read_page() -> dict[str, tuple[bytes, str]]:
    found = [*(files("echelon.dashboard") / "page").iterdir()]
    found += [files("echelon.serve") / "page" / name for name in _SHARED]
    return {file.name: (file.read_bytes(), _KINDS["." + file.name.rpartition(".")[2]]) for file in found}


def _view(chart: str, axis: str, smoothing: str, hourly: float | None) -> View:
    if axis not in get_args(Axis) or not (smoothing == "auto" or smoothing.isdecimal()):
        raise EchelonError("no such axis or smoothing")
    return View(chart, axis, None if smoothing == "auto" else int(smoothing[:9]), hourly)  # type: ignore[arg-type]


def _json(content: Any, status: int = 200) -> Response:
    headers = HEADERS | {"Cache-Control": "no-store"}
    return Response(to_json(content), status, media_type="application/json", headers=headers)
