"""Serves a classifier: the most likely classes of the picture in a request's body."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException

from echelon.data.images.pixels import TooManyPixelsError
from echelon.inference.classifier import Classifier
from echelon.inference.pictures import Guess
from echelon.serve.api import ClassAnswer, ClassifyAnswer, PictureModelAnswer
from echelon.serve.app import SHARED_FILES, add_page
from echelon.serve.deadline import QueueFullError, answer_in_time
from echelon.serve.limits import PICTURE_PIXELS
from echelon.serve.listener import client_of
from echelon.serve.picture_reader import PictureReader
from echelon.serve.state import ServerState

_PAGE = {
    "/": ("pictures.html", "text/html"),
    "/pictures.js": ("pictures.js", "text/javascript"),
    **SHARED_FILES,
}
_MOST_PARTS = 16
"""Of a form, which needs one."""
_HEAD_BYTES = 4096
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})')
_FILE = re.compile(rb"^content-disposition:.*[; ]filename\*?=", re.IGNORECASE | re.MULTILINE)
_BINARY = {"type": "string", "format": "binary"}
_BODY = {
    "required": True,
    "content": {
        "image/*": {"schema": _BINARY},
        "multipart/form-data": {"schema": {"type": "object", "properties": {"picture": _BINARY}}},
    },
}


def add_classification(app: FastAPI, classifier: Classifier, state: ServerState) -> None:
    """What a classifier answers."""
    add_page(app, _PAGE)
    reader = PictureReader(classifier.rules)

    def classify_one(content: bytes, top: int) -> list[Guess]:
        return classifier.guess([reader.see(content)], top)[0]

    queue = PictureQueue(classify_one, state.limits.queue_lines)
    state.num_waiting = lambda: queue.num_waiting

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(queue.close)
        reader.close()

    app.router.lifespan_context = lifespan

    @app.post("/v1/classify", summary="Classify an image", openapi_extra={"requestBody": _BODY})
    async def classify(
        request: Request,
        top: Annotated[int, Query(ge=1, le=1000, description="How many classes are named.")] = 5,
    ) -> ClassifyAnswer:
        started, content = time.monotonic(), await read_picture(request)
        who = client_of(request.client.host) if request.client else ""
        try:
            guesses = await answer_in_time(queue.classify(content, top, who), request, state.limits.answer_s)
        except TooManyPixelsError:
            raise HTTPException(413, f"more than {PICTURE_PIXELS:,} pixels; send a smaller image") from None
        except ValueError:
            raise HTTPException(422, "the body is not an image that can be read") from None
        state.metrics.compute_seconds.observe(time.monotonic() - started)
        classes = [ClassAnswer(**{"class": guess.name}, probability=guess.probability) for guess in guesses]
        return ClassifyAnswer(classes=classes, seconds=round(time.monotonic() - started, 4))

    @app.get("/v1/model", summary="What is served")
    async def model() -> PictureModelAnswer:
        return PictureModelAnswer(
            name=state.name,
            task=classifier.task,
            classes=list(classifier.rules.classes),
            pixels=classifier.rules.pixels,
            engine=classifier.engine.name,
            precision=state.precision,
            bytes=state.limits.body_bytes,
        )


async def read_picture(request: Request) -> bytes:
    """The picture that a request brings: its body, or the only file of a form."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        return await request.body()
    boundary = _BOUNDARY.search(kind)
    if boundary is None:
        raise HTTPException(400, "the content type of a form names its boundary")
    files = find_files(await request.body(), boundary[1].encode("latin-1"))
    if len(files) != 1:
        raise HTTPException(
            422, "send one image per request, as the body or as a form's file: curl -F picture=@some.png"
        )
    return files[0]


def find_files(form: bytes, boundary: bytes) -> list[bytes]:
    """The files in a form; none if it has too many parts.

    Not by a library: those decode names and text as the client says, which may take hours, and we want bytes.
    """
    _, *parts = (b"\r\n" + form).split(b"\r\n--" + boundary, _MOST_PARTS + 2)
    if len(parts) > _MOST_PARTS + 1:  # the last is what comes after the form's end
        return []
    heads = [part.partition(b"\r\n\r\n") for part in parts]
    return [content for head, _, content in heads if _FILE.search(head[:_HEAD_BYTES])]


class PictureQueue:
    """Classifies pictures one by one, in a thread; clients take turns. Belongs to one event loop.

    A picture is handed to the thread when it is its turn: those of clients that have gone are not kept till then.
    """

    def __init__(self, classify_one: Callable[[bytes, int], list[Guess]], most: int) -> None:
        self._classify_one = classify_one
        self._most = most
        self.num_waiting = 0
        self._is_busy = False
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Who waits, by client; the client that has had a turn comes last."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="classify")

    async def classify(self, content: bytes, top: int, client: str = "") -> list[Guess]:
        """QueueFullError if too many wait; ValueError if it is no picture."""
        if self.num_waiting >= self._most:
            raise QueueFullError
        self.num_waiting += 1
        try:
            await self._wait_for_turn(client)
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._thread, self._classify_one, content, top)
            work.add_done_callback(lambda _: self._pass_turn())
            return await asyncio.shield(work)
        finally:
            self.num_waiting -= 1

    async def _wait_for_turn(self, client: str) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has come at this very moment
                self._pass_turn()
            raise

    def _pass_turn(self) -> None:
        while self._turns:
            client, turns = self._turns.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._turns[client] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False

    def close(self) -> None:
        """Wait for the picture under way."""
        self._thread.shutdown()
