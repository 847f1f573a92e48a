"""Waits for an answer until its deadline, or until the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException

T = TypeVar("T")


class QueueFullError(Exception):
    """The queue is full."""


async def answer_in_time(work: Awaitable[T], request: Request, answer_s: float) -> T:
    """Wait for the work; withdraw it when its time is over or the client has gone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(request))
    try:
        done, _ = await asyncio.wait({task, gone}, timeout=answer_s, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
    except QueueFullError:
        raise HTTPException(503, "too many requests are waiting; try again", {"Retry-After": "1"}) from None
    finally:
        task.cancel()
        gone.cancel()
    if gone in done:
        raise HTTPException(408, "the client has gone")
    raise HTTPException(504, f"no answer within {answer_s:g} s; send less at a time")


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
