"""`watch --web`: a run's page, live, from a small server in this process.

On loopback anybody of this machine may look, but only under the server's own name, so that no other site's page can; on
any other address a token is asked for, which the printed address carries and a cookie then keeps.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from echelon.errors import EchelonError, RunError
from echelon.explain.history import RecordStore
from echelon.explain.page import render_page, report_sections
from echelon.explain.report import Report, build_report
from echelon.launch.machine import find_interfaces
from echelon.monitor.run_state import FRESH_S, read_state
from echelon.runfolder import RunFolder, to_json

_LOOK_S = 1.0
"""How often the records are looked at for something new."""
_COOKIE = "echelon-token"
_ASK_S = 10.0
"""How long a connection may take to ask for something, and a reader to take what it gets."""
_MOST_CONNECTIONS = 64
"""Each has a thread."""


@dataclass
class LivePage:
    """A run's page, built anew when the run has written something, for all who look at it."""

    run: RunFolder
    hourly: float | None = None
    _store: RecordStore = field(default_factory=RecordStore)
    _report: Report | None = None
    _seen: tuple[object, ...] = ()
    _next_look: float = 0.0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def version(self) -> int:
        """Changes whenever the page does, which is not at once where the run writes faster than it can be read."""
        with contextlib.suppress(EchelonError):
            self.report()
        return hash(self._seen)

    def _state(self) -> tuple[object, ...]:
        files = (file for file in self.run.records.glob("*.jsonl") if file.is_file())
        state = read_state(self.run, self._store.read(self.run.worker_records(0)))
        return (*sorted((file.name, file.stat().st_size) for file in files), state.name)

    @property
    def is_over(self) -> bool:
        """Whether nothing new will come: nobody trains here, no host's records have come for a while, all is shown."""
        times = [file.stat().st_mtime for file in self.run.records.glob("*.jsonl")]
        is_quiet = not self.run.is_locked() and time.time() - max(times, default=0.0) > FRESH_S
        with self._turn:
            return is_quiet and self._seen == self._state()

    def report(self) -> Report:
        """The newest report; a long run is not read again more often than that takes a tenth of the time."""
        with self._turn:
            state = self._state()
            if self._report is None or (state != self._seen and time.monotonic() >= self._next_look):
                started = time.monotonic()
                self._report = build_report(self.run, self.hourly, store=self._store)
                self._seen = state
                self._next_look = time.monotonic() + 10 * (time.monotonic() - started)
            return self._report


class _Server(ThreadingHTTPServer):
    """At most so many connections: when another comes, the one that has been silent longest is closed."""

    daemon_threads = True

    def __init__(self, place: tuple[str, int], page: LivePage, token: str | None) -> None:
        self.page, self.token, self.is_closing = page, token, False
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._turn = threading.Lock()
        self._open: set[socket.socket] = set()
        self._silent: dict[socket.socket, float] = {}
        """Since when a connection has been asked for nothing; the longest first."""
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._turn:
            self._open.add(request)
            self._silent[request] = time.monotonic()
            if len(self._open) > _MOST_CONNECTIONS:
                longest = next(iter(self._silent))
                del self._silent[longest]
                _hang_up(longest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._turn:
            self._open.discard(request)
            self._silent.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second: a byte now and then is no request either."""
        with self._turn:
            late = [one for one, since in self._silent.items() if time.monotonic() - since > _ASK_S]
        for one in late:
            _hang_up(one)

    def set_asking(self, request: socket.socket, is_asking: bool) -> None:
        """Note that a connection has asked for something, or has got its answer."""
        with self._turn:
            self._silent.pop(request, None)
            if not is_asking and request in self._open:
                self._silent[request] = time.monotonic()


def _hang_up(connection: socket.socket) -> None:
    """Have the connection's own thread find it closed."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET / (the page), /sections (its parts as JSON) and /events (a line whenever they change)."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "echelon"
    sys_version = ""
    timeout = _ASK_S

    def handle_one_request(self) -> None:
        self.server.set_asking(self.connection, False)
        super().handle_one_request()

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        self.server.set_asking(self.connection, True)
        return is_whole

    def do_GET(self) -> None:
        try:
            self._answer()
        except EchelonError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n".encode())
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def _answer(self) -> None:
        try:
            address = urlsplit(self.path)
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"that is no address\n")
            return
        if not self._is_own_name(name):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"ask under this server's own address\n")
        elif not self._may_look(parse_qs(address.query)):
            self._send(
                HTTPStatus.FORBIDDEN, "text/plain", b"the token is missing or wrong; see `echelon watch`\n"
            )
        else:
            self._show(address.path)

    def _show(self, path: str) -> None:
        match path:
            case "/":
                self._send_page()
            case "/sections":
                content = to_json(report_sections(self.server.page.report())).encode()
                self._send(HTTPStatus.OK, "application/json", content)
            case "/events":
                self._send_events()
            case _:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page\n")

    def _is_own_name(self, name: str) -> bool:
        """Whether the request names this server by address or as localhost: another site's page cannot do that."""
        if name == "localhost":
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return self.server.token is not None  # a host's name is fine where the token guards

    def _may_look(self, query: dict[str, list[str]]) -> bool:
        token = self.server.token
        if token is None:
            return True
        given = [*query.get("token", []), self._cookie()]
        return any(hmac.compare_digest(each.encode(), token.encode()) for each in given)

    def _cookie(self) -> str:
        with contextlib.suppress(CookieError):
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
            return cookie.value if cookie else ""
        return ""

    def _send_page(self) -> None:
        report, nonce = self.server.page.report(), secrets.token_urlsafe(16)
        script = files("echelon.explain").joinpath("page.js").read_text()
        page = render_page(report.name, report_sections(report), script, nonce)
        headers = {}
        if self.server.token is not None:
            headers["Set-Cookie"] = f"{_COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode(), headers)

    def _send_events(self) -> None:
        """Server-sent events until the run is over or the reader has gone."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        page, said = self.server.page, None
        while not self.server.is_closing:
            version = page.version()
            if page.is_over:
                self.wfile.write(b"event: over\ndata: over\n\n")
                break
            self.wfile.write(f"data: {version}\n\n".encode() if version != said else b": still here\n\n")
            self.wfile.flush()
            said = version
            time.sleep(_LOOK_S)
        self.close_connection = True

    def _send(
        self, status: HTTPStatus, kind: str, content: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        safe = {
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        values = {"Content-Type": kind, "Content-Length": str(len(content)), **safe, **(headers or {})}
        for name, value in values.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""


@contextlib.contextmanager
def open_page(run: RunFolder, host: str, port: int, hourly: float | None = None) -> Iterator[list[str]]:
    """Serve a run's page as long as this lasts; the addresses at which it opens, with the token where it has one."""
    token = None if _is_loopback(host) else secrets.token_urlsafe(24)
    try:
        server = _Server((host, port), LivePage(run.require(), hourly), token)
    except OSError as error:
        other = "--port" if error.errno == errno.EADDRINUSE else "--address"
        raise RunError(
            f"{_in_address(host)}:{port} cannot be used for the page: {error.strerror}; choose another {other}"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
    thread.start()
    query = f"?token={token}" if token else ""
    try:
        yield [f"http://{_in_address(name)}:{server.server_port}/{query}" for name in _names(host)]
    finally:
        server.is_closing = True
        server.shutdown()
        server.server_close()


def _names(host: str) -> list[str]:
    """How others call what listens on an address: where it is all of them, this machine's name and addresses."""
    try:
        place = ipaddress.ip_address(host)
    except ValueError:
        return [host]
    if not place.is_unspecified:
        return [host]
    reached = [address for card in find_interfaces() if not card.is_loopback for address in card.addresses]
    return [socket.gethostname(), *(each for each in reached if place.version == 6 or ":" not in each)]


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
