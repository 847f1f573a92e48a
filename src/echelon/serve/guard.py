"""What stands before every request: size, rate, time, token, and the name it was asked for by."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echelon.serve.limits import RateLimiter

if TYPE_CHECKING:
    from echelon.serve.app import ServerState

_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_OPEN = ("/health", "/ready")
"""Asked by load balancers, which have no token and ask often."""


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._rates = RateLimiter(state.limits)
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            await send(message)

        try:
            await self._answer(scope, receive, send_guarded)
        finally:
            path = self._path_of(scope)
            self._state.metrics.count_request(scope["method"], path, status, time.monotonic() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refuse(send, *refusal)
            return
        with self._hold() as hold:
            body = await self._read_body(receive, send, hold)
            if body is None:
                return
            replayed = False

            async def replay() -> Message:
                nonlocal replayed
                if not replayed:
                    replayed = True
                    return {"type": "http.request", "body": body, "more_body": False}
                return await receive()

            await self._app(scope, replay, send)

    @contextmanager
    def _hold(self) -> Iterator[Callable[[int], bool]]:
        """Counts bytes that are kept until a request is answered, and says whether so many may be kept."""
        mine = 0

        def hold(count: int) -> bool:
            nonlocal mine
            mine += count
            self._held_bytes += count
            return self._held_bytes <= self._state.limits.held_bytes

        try:
            yield hold
        finally:
            self._held_bytes -= mine

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, dict[str, str]] | None:
        """Why a request goes no further, by its head alone."""
        state, path = self._state, scope["path"]
        host = re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()
        if state.hosts is not None and host not in state.hosts:
            return 400, "this server is not known by that name", {}
        if path not in _OPEN:
            client = scope["client"][0] if scope.get("client") else ""
            wait = self._rates.seconds_to_wait(client)
            if wait:
                return 429, "too many requests; slow down", {"Retry-After": str(int(wait) + 1)}
        if state.token is not None and path.startswith(("/v1/", "/metrics", "/openapi.json")):
            given = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode("latin-1", "replace"), state.token.encode()):
                return 401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > state.limits.body_bytes:
            return (
                413,
                f"more than {state.limits.body_bytes:,} bytes; send several requests",
                {"Connection": "close"},
            )
        return None

    async def _read_body(self, receive: Receive, send: Send, hold: Callable[[int], bool]) -> bytes | None:
        """The whole body; None where it was refused or its sender has gone."""
        parts, limits, size = list[bytes](), self._state.limits, 0
        deadline = time.monotonic() + limits.receive_s
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                message_text = f"the request did not arrive within {limits.receive_s:g} s"
                await refuse(send, 408, message_text, {"Connection": "close"})
                return None
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limits.body_bytes:
                await refuse(send, 413, f"more than {limits.body_bytes:,} bytes", {"Connection": "close"})
                return None
            if not hold(len(parts[-1])):
                headers = {"Connection": "close", "Retry-After": "1"}
                await refuse(send, 503, "too much is being sent at once; try again", headers)
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    def _path_of(self, scope: Scope) -> str:
        """The route's path, or "other": paths that clients make up would fill the metrics."""
        route = scope.get("route")
        return str(getattr(route, "path", "other"))


async def refuse(send: Send, status: int, message: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": message}).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
