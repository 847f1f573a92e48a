"""A real HTTP server on this machine, which can break connections, lie and count what it is asked."""

from __future__ import annotations

import hashlib
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SENT_BYTES = 1 << 16


class Mirror:
    """A web server that answers every request with one file, and what went on there."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.breaks_after: list[int] = []
        """Bytes after which the next connections are cut."""
        self.knows_ranges = True
        self.knows_conditions = True
        """Whether it sends all of a file that is not what If-Range has."""
        self.tells_length = True
        self.bytes_sent = 0
        self.status = 0
        """Answer everything with this, where not 0."""
        self.tag: str | None = '"{}"'
        """The ETag, with the content's hash; None where it gives none."""
        self.date: str | None = None
        """The Last-Modified."""
        self.ranges: list[str | None] = []
        """The Range header of each request."""
        self.conditions: list[str | None] = []
        """The If-Range header of each request."""
        self.paths: list[str] = []
        """The path and query of each request."""
        self.logins: list[str | None] = []
        """The Authorization header of each request."""
        self.redirects_to: str | None = None
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's screen clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/file.bin"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        self.conditions.append(request.headers.get("If-Range"))
        self.paths.append(request.path)
        self.logins.append(request.headers.get("Authorization"))
        if self.redirects_to is not None:
            request.send_response(302)
            request.send_header("Location", self.redirects_to)
            request.end_headers()
            return
        if self.status:
            request.send_error(self.status)
            return
        tag = self.tag and self.tag.format(hashlib.sha256(self.content).hexdigest()[:8])
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and self.knows_ranges else 0
        if self.knows_conditions and request.headers.get("If-Range", tag) not in (tag, self.date):
            start = 0
        if start >= len(self.content) > 0:
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.content)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        body = self.content[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.tells_length:
            request.send_header("Content-Length", str(len(body)))
        for name, value in (("ETag", tag), ("Last-Modified", self.date)):
            if value is not None:
                request.send_header(name, value)
        request.end_headers()
        if self.breaks_after:
            body = body[: self.breaks_after.pop(0)]
            request.close_connection = True
        with suppress(ConnectionError):  # who has asked may have seen enough
            for place in range(0, len(body), SENT_BYTES):
                request.wfile.write(body[place : place + SENT_BYTES])
                self.bytes_sent += SENT_BYTES

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
