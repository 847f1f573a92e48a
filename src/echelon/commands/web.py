"""`watch --web`: a run's page, live, from a small server in this process.

On loopback anybody of this machine may look, but only under the server's own name, so that no other site's page can; on
any other address a token is asked for, which the printed address carries and a cookie then keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from echelon.errors import EchelonError
from echelon.explain.history import RecordStore
from echelon.explain.page import render_page, report_sections
from echelon.explain.report import Report, build_report
from echelon.launch.machine import find_interfaces
from echelon.monitor.run_state import FRESH_S, read_state
from echelon.runfolder import RunFolder, to_json
from echelon.serve.access import Access, Token, bearer_token, sha256_of
from echelon.serve.guard import Guard
from echelon.serve.http_server import Entrance, HttpServer, ListenOptions
from echelon.serve.limits import ByteBudget, Limits

_LOOK_S = 1.0
"""How often the records are looked at for something new."""
_FINISH_S = 5
_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": "frame-ancestors 'none'"}
"""The page has its own policy for what it loads."""
_ADVICE = "the token is missing or wrong; open the address that `echelon watch` has printed"
_LIMITS = Limits(body_bytes=1024, client_connections=64)


@dataclass
class LivePage:
    """A run's page, shared by all readers and rebuilt when the run has written something."""

    run: RunFolder
    hourly: float | None = None
    _store: RecordStore = field(default_factory=RecordStore)
    _report: Report | None = None
    _seen: tuple[object, ...] = ()
    _next_look: float = 0.0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def version(self) -> int:
        """Changes whenever the page does; the page lags if the run writes faster than it can be read."""
        with contextlib.suppress(EchelonError):
            self.report()
        return hash(self._seen)

    def _state(self) -> tuple[object, ...]:
        files = (file for file in self.run.records.glob("*.jsonl") if file.is_file())
        state = read_state(self.run, self._store.read(self.run.worker_records(0)))
        return (*sorted((file.name, file.stat().st_size) for file in files), state.name)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: nothing trains here, no records have grown for a while, and all is shown."""
        times = [file.stat().st_mtime for file in self.run.records.glob("*.jsonl")]
        is_quiet = not self.run.is_locked() and time.time() - max(times, default=0.0) > FRESH_S
        with self._turn:
            return is_quiet and self._seen == self._state()

    def report(self) -> Report:
        """The newest report; reading a long run takes a tenth of the time at most."""
        with self._turn:
            state = self._state()
            if self._report is None or (state != self._seen and time.monotonic() >= self._next_look):
                started = time.monotonic()
                self._report = build_report(self.run, self.hourly, store=self._store)
                self._seen = state
                self._next_look = time.monotonic() + 10 * (time.monotonic() - started)
            return self._report


@dataclass
class _Pages:
    """Answers GET / (the page), /sections (its parts as JSON) and /events (a line whenever they change)."""

    page: LivePage
    token: str | None
    cookie: str
    is_closing: Callable[[], bool]

    def app(self, access: Access) -> Starlette:
        guard = Middleware(Guard, access=access, limits=_LIMITS, budget=ByteBudget(_LIMITS))
        routes = [
            Route("/", self.show),
            Route("/sections", self.show_sections),
            Route("/events", self.follow),
        ]
        return Starlette(routes=routes, middleware=[guard], exception_handlers={EchelonError: _explain})

    def find_token(self, connection: HTTPConnection) -> str:
        given = connection.query_params.get("token") or connection.cookies.get(self.cookie)
        return given or bearer_token(connection)

    def show(self, request: Request) -> Response:
        if self.token is not None and "token" in request.query_params:
            answer = RedirectResponse("/", 303, _HEADERS)  # without the token, which histories would keep
            secure = request.url.scheme == "https"
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax", secure=secure)
            return answer
        report, nonce = self.page.report(), secrets.token_urlsafe(16)
        script = files("echelon.explain").joinpath("page.js").read_text()
        return HTMLResponse(
            render_page(report.name, report_sections(report), script, nonce), headers=_HEADERS
        )

    def show_sections(self, _: Request) -> Response:
        content = to_json(report_sections(self.page.report()))
        return Response(content, headers=_HEADERS, media_type="application/json")

    async def follow(self, _: Request) -> Response:
        return StreamingResponse(self._events(), headers=_HEADERS, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        """Server-sent events until the run is over or the reader has gone."""
        said = None
        while not self.is_closing():
            version, is_over = await asyncio.to_thread(lambda: (self.page.version(), self.page.is_over))
            if is_over:
                yield "event: over\ndata: over\n\n"
                return
            yield f"data: {version}\n\n" if version != said else ": still here\n\n"
            said = version
            next_look = time.monotonic() + _LOOK_S
            while time.monotonic() < next_look and not self.is_closing():
                await asyncio.sleep(0.1)


async def _explain(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503)


@contextlib.contextmanager
def open_page(run: RunFolder, host: str, port: int, hourly: float | None = None) -> Iterator[list[str]]:
    """Serve a run's page as long as this lasts; the addresses at which it opens, with the token if it has one."""
    page, listening = LivePage(run.require(), hourly), ListenOptions(host, port, limits=_LIMITS)
    entrance = Entrance(listening)
    token = None if listening.is_private else secrets.token_urlsafe(24)
    # Browsers send cookies to all ports of a host, and another run's page may be there.
    pages = _Pages(page, token, f"echelon-token-{entrance.port}", lambda: server.should_exit)
    tokens = (Token(name="page", sha256=sha256_of(token)),) if token else None
    access = Access(tokens, listening.own_names, find_token=pages.find_token, advice=_ADVICE)
    server = HttpServer(pages.app(access), entrance, _FINISH_S)
    thread = threading.Thread(target=server.run_here, name="page", daemon=True)
    thread.start()
    query = f"?token={token}" if token else ""
    try:
        yield [f"{entrance.address_of(name)}{query}" for name in _names(host)]
    finally:
        server.should_exit = True
        thread.join()


def _names(host: str) -> list[str]:
    """The names under which an address is reached: this machine's name and addresses if it stands for all of them."""
    try:
        place = ipaddress.ip_address(host)
    except ValueError:
        return [host]
    if not place.is_unspecified:
        return [host]
    reached = [address for card in find_interfaces() if not card.is_loopback for address in card.addresses]
    return [socket.gethostname(), *(each for each in reached if place.version == 6 or ":" not in each)]
