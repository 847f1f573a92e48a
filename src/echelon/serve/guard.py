"""The checks before every request: size, rate, time, token and Host header."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echelon.serve.access import Access
from echelon.serve.audit import Handled
from echelon.serve.limits import ByteBudget, Limits, RateLimiter
from echelon.serve.listener import client_of

_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
OPEN_PATHS = ("/health", "/ready")
"""Requested often by load balancers, which have no token."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused."""

    status: int
    message: str
    headers: dict[str, str]


class Guard:
    """ASGI middleware. `on_handled` is called after each request."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        budget: ByteBudget,
        on_handled: Callable[[Handled], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._budget = budget
        self._on_handled = on_handled
        self._clients, self._tokens = RateLimiter(), RateLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        client = scope["client"][0] if scope.get("client") else ""
        handled = Handled(scope["method"], scope["path"], client)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                handled.status = message["status"]
                message = {**message, "headers": _with_defaults(message.get("headers", []))}
            handled.sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._answer(scope, receive, send_guarded, handled)
        finally:
            handled.route = str(getattr(scope.get("route"), "path", "other"))
            handled.seconds = time.monotonic() - started
            self._on_handled(handled)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, handled: Handled) -> None:
        connection = HTTPConnection(scope)
        refusal = self._find_refusal(connection, handled)
        if refusal is not None:
            close = {"Connection": "close"} if _has_body(connection.headers) else {}
            await refuse(send, replace(refusal, headers={**refusal.headers, **close}))
            return
        with self._holding(handled) as hold:
            body = await self._read_body(receive, hold)
            if isinstance(body, Refusal):
                await refuse(send, body)
            if not isinstance(body, bytes):
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
    def _holding(self, handled: Handled) -> Iterator[Callable[[int], bool]]:
        """Count bytes held until a request is answered, and return whether there is room for them."""

        def hold(count: int) -> bool:
            handled.received_bytes += count
            self._budget.held += count
            return self._budget.has_room(0)

        try:
            yield hold
        finally:
            self._budget.held -= handled.received_bytes

    def _find_refusal(self, connection: HTTPConnection, handled: Handled) -> Refusal | None:
        """Why a request is refused, judging by its head alone."""
        access, limits = self._access, self._limits
        path, headers = connection.scope["path"], connection.headers
        if access.hosts is not None and _host_of(headers) not in access.hosts:
            return Refusal(400, "this server is not known by that name", {})
        if access.hosts is not None and path != "/" and _is_from_elsewhere(headers):
            return Refusal(403, "this is for this server's own pages", {})
        is_open = path in OPEN_PATHS
        client = client_of(handled.client)
        if not is_open and (wait := self._clients.seconds_to_wait(client, *limits.rate)):
            return _too_many("too many requests; slow down", wait)
        needs_token = access.tokens is not None and not is_open and access.needs_token(path)
        if needs_token and (refusal := self._check_token(connection, handled)):
            return refusal
        if _has_body(headers) and (is_open or (access.tokens is not None and not needs_token)):
            # Whoever shows no token must not take up the room that others' bodies need.
            return Refusal(400, "a request for this has no body", {})
        if "transfer-encoding" in headers and "content-length" in headers:
            return Refusal(400, "a request has one length", {})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > limits.body_bytes:
            message = f"more than {limits.body_bytes:,} bytes; send several requests"
            return Refusal(413, message, {"Connection": "close"})
        return None

    def _check_token(self, connection: HTTPConnection, handled: Handled) -> Refusal | None:
        token, asks = self._access.identify(connection), {"WWW-Authenticate": "Bearer"}
        if token is None:
            return Refusal(401, self._access.advice, asks)
        handled.token = token.name
        if token.is_expired(datetime.now(UTC)):
            return Refusal(401, "this token has expired", asks)
        most = token.requests_per_minute
        if most and (wait := self._tokens.seconds_to_wait(token.name, most / 60, max(1.0, most))):
            return _too_many(f"this token may be used {most:g} times a minute; slow down", wait)
        return None

    async def _read_body(self, receive: Receive, hold: Callable[[int], bool]) -> bytes | Refusal | None:
        """The whole body; None if its sender has gone."""
        parts, limits, size = list[bytes](), self._limits, 0
        deadline = time.monotonic() + limits.receive_s
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                text = f"the request did not arrive within {limits.receive_s:g} s"
                return Refusal(408, text, {"Connection": "close"})
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limits.body_bytes:
                return Refusal(413, f"more than {limits.body_bytes:,} bytes", {"Connection": "close"})
            if not hold(len(parts[-1])):
                headers = {"Connection": "close", "Retry-After": "1"}
                return Refusal(503, "too much is being sent at once; try again", headers)
            if not message.get("more_body", False):
                return b"".join(parts)


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _is_from_elsewhere(headers: Headers) -> bool:
    """Whether a browser sends the request for a page of another site."""
    origin = headers.get("origin")
    is_own = origin is None or origin.partition("://")[2] == headers.get("host")
    return not is_own or headers.get("sec-fetch-site") == "cross-site"


def _host_of(headers: Headers) -> str:
    return re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()


def _with_defaults(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in headers}
    missing = {name.encode(): value.encode() for name, value in _HEADERS.items()}
    return [*headers, *((name, value) for name, value in missing.items() if name not in present)]


def _too_many(message: str, wait_s: float) -> Refusal:
    return Refusal(429, message, {"Retry-After": str(int(wait_s) + 1)})


async def refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.message}).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
