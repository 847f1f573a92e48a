"""A server with a classifier, over HTTP and in a real browser."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from echelon import Classifier
from echelon.inference.pictures import Guess, PictureRules
from echelon.runfolder import RunFolder
from echelon.serve import picture_queue
from echelon.serve.access import Access
from echelon.serve.app import build_app
from echelon.serve.limits import PICTURE_BYTES, PICTURE_PIXELS, Limits
from echelon.serve.model_server import ServeOptions, load_state
from echelon.serve.picture_queue import PictureQueue, find_files
from echelon.serve.picture_reader import PictureReader, ReadingLimits
from echelon.serve.state import ServerState
from tests.browser import open_browser
from tests.data.images.pictures import as_bytes, png_of_many_chunks
from tests.serve.served import serve
from tests.small_image_run import CLASSES, make_small_image_run, picture

DROP = """(() => {
  const bytes = Uint8Array.from(atob("%s"), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "noise.png", { type: "image/png" }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
})()"""


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_small_image_run(tmp_path_factory.mktemp("pictures") / "run")


@pytest.fixture
def picture_client(image_run: RunFolder) -> Iterator[TestClient]:
    state = ServerState(Classifier.load(image_run.path), "animals", "float32", Limits())
    with TestClient(build_app(state), raise_server_exceptions=False) as client:
        yield client


def test_a_picture_is_classified(picture_client: TestClient, image_run: RunFolder) -> None:
    answer = picture_client.post("/v1/classify?top=3", content=picture(1))
    assert answer.status_code == 200
    (wanted,) = Classifier.load(image_run.path).classify([picture(1)], top=3)
    assert [entry["class"] for entry in answer.json()["classes"]] == [guess.name for guess in wanted]


def test_a_picture_may_be_uploaded_as_a_form(picture_client: TestClient) -> None:
    """As `curl -F picture=@noise.png` and the forms of web pages do."""
    plain = picture_client.post("/v1/classify", content=picture(1)).json()["classes"]
    upload = {"any-name": ("noise.png", picture(1), "image/png")}
    assert picture_client.post("/v1/classify", files=upload).json()["classes"] == plain
    described = picture_client.get("/openapi.json").json()["paths"]["/v1/classify"]["post"]["requestBody"]
    assert set(described["content"]) == {"image/*", "multipart/form-data"}


def test_a_form_without_one_picture_is_refused(picture_client: TestClient) -> None:
    two = [("a", ("1.png", picture(1))), ("b", ("2.png", picture(2)))]
    for sent in ({"files": two}, {"files": {"a": (None, "text")}}):
        answer = picture_client.post("/v1/classify", **sent)
        assert (answer.status_code, answer.json()["error"]) == (
            422,
            "send one image per request, as the body or as a form's file: curl -F picture=@some.png",
        )
    headers = {"Content-Type": "multipart/form-data"}
    assert picture_client.post("/v1/classify", content=picture(1), headers=headers).status_code == 400
    headers["Content-Type"] += "; boundary=x"
    answer = picture_client.post("/v1/classify", content=b"--x\r\nno head", headers=headers)
    assert 400 <= answer.status_code < 500
    no_picture = picture_client.post("/v1/classify", files={"a": ("a.png", b"dear")})
    assert (no_picture.status_code, "not an image" in no_picture.json()["error"]) == (422, True)


def form(*parts: bytes, boundary: bytes = b"x") -> bytes:
    return (
        b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"
    )


def test_only_the_bytes_of_a_form_are_looked_at() -> None:
    """Whatever they seem to mean: names and text in a code of the client's choice may take hours to decode."""
    field = b'Content-Disposition: form-data; name="a"\r\n\r\n-' + b"a" * 150_000
    file = b'content-disposition: form-data; name="b"; filename="c"\r\nContent-Type: x\r\n\r\n'
    content = bytes(range(256)) + b"\r\n--\r\n\r\n"
    assert find_files(form(field, file + content), b"x") == [content]
    assert find_files(form(file + b"1", file + b"2"), b"x") == [b"1", b"2"]
    assert find_files(form(*[file] * 17), b"x") == []
    assert find_files(b"--x\r\nno head", b"x") == find_files(b"", b"x") == []
    for hostile in (b';"' * 1_000_000, b"\r\n" * 1_000_000, b"--x" * 1_000_000):
        assert find_files(form(b"Content-Disposition: form-data" + hostile), b"x") == []


@pytest.mark.parametrize("code", ["punycode", "idna", "undefined", "no-such"])
def test_a_form_is_not_decoded_as_the_client_says(picture_client: TestClient, code: str) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={code}"}
    file = b'Content-Disposition: form-data; name="b"; filename="c"\r\n\r\n' + picture(1)
    text = b'Content-Disposition: form-data; name="a"\r\n\r\n-' + b"a" * 150_000
    assert picture_client.post("/v1/classify", content=form(text, file), headers=headers).status_code == 200


def test_the_model_is_described(picture_client: TestClient) -> None:
    model = picture_client.get("/v1/model").json()
    assert (model["task"], model["classes"], model["pixels"]) == ("classification", list(CLASSES), 32)
    assert "/v1/classify" in picture_client.get("/openapi.json").json()["paths"]
    assert picture_client.post("/v1/translate", json={"text": "x"}).status_code == 404


def postscript() -> bytes:
    return as_bytes(Image.new("RGB", (40, 40)), "EPS")


def test_what_is_no_picture_is_refused(picture_client: TestClient) -> None:
    for content in (b"", b"dear", picture(1)[:60], postscript()):
        answer = picture_client.post("/v1/classify", content=content)
        assert (answer.status_code, "not an image" in answer.json()["error"]) == (422, True)
    assert picture_client.post("/v1/classify?top=0", content=picture(1)).status_code == 422
    many = as_bytes(Image.new("1", (8000, PICTURE_PIXELS // 8000 + 1)), "PNG")
    assert picture_client.post("/v1/classify", content=many).status_code == 413


def test_a_run_of_pictures_is_served_with_room_for_pictures(image_run: RunFolder, tmp_path: Path) -> None:
    state = load_state(ServeOptions(image_run.path), Access(), tmp_path)
    assert isinstance(state.model, Classifier)
    assert state.limits.body_bytes > Limits().body_bytes


class Holding:
    """Begins to classify, and waits until it is let go."""

    def __init__(self) -> None:
        self.has_begun, self.go_on = threading.Event(), threading.Event()
        self.classified: list[Any] = []

    def classify(self, content: Any, top: int) -> list[Guess]:
        self.classified.append(None if isinstance(content, Content) else content)
        self.has_begun.set()
        self.go_on.wait()
        return []


class Content:
    """What stands for a picture here: whether somebody still has it can be seen, which it cannot of bytes."""


def test_pictures_of_clients_that_have_gone_are_not_kept() -> None:
    """While one picture takes its time, nobody fills the memory by sending others and leaving."""

    async def play() -> list[bool]:
        classifier = Holding()
        queue = PictureQueue(classifier.classify, 100)
        contents: list[Any] = [Content() for _ in range(5)]
        references = [weakref.ref(content) for content in contents]
        tasks = [asyncio.create_task(queue.classify(content, 1)) for content in contents]
        del contents
        await asyncio.to_thread(classifier.has_begun.wait)
        for number in range(4):  # the first is being classified
            tasks[number].cancel()
        await asyncio.wait(tasks[:4])
        tasks[:4] = []
        gc.collect()
        kept = [reference() is not None for reference in references]
        assert queue.num_waiting == 1
        classifier.go_on.set()
        assert await tasks[0] == []
        assert len(classifier.classified) == 2
        queue.close()
        return kept

    assert asyncio.run(play()) == [True, False, False, False, True]


def test_clients_with_pictures_take_turns() -> None:
    """However many pictures one client sends, another waits for one of them."""

    async def play() -> list[bytes]:
        classifier = Holding()
        queue = PictureQueue(classifier.classify, 100)
        tasks = [asyncio.create_task(queue.classify(b"greedy", 1, "greedy")) for _ in range(5)]
        await asyncio.to_thread(classifier.has_begun.wait)
        tasks += [asyncio.create_task(queue.classify(b"modest", 1, "modest")) for _ in range(2)]
        await asyncio.sleep(0)  # until they wait
        tasks.pop(1).cancel()
        classifier.go_on.set()
        await asyncio.gather(*tasks)
        assert queue.num_waiting == 0
        assert await queue.classify(b"late", 1) == []
        queue.close()
        return classifier.classified

    g, m = b"greedy", b"modest"
    assert asyncio.run(play()) == [g, m, g, m, g, g, b"late"]


def test_a_picture_that_takes_for_ever_disturbs_nobody(
    image_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_reader(rules: PictureRules) -> PictureReader:
        return PictureReader(rules, ReadingLimits(seconds=1))

    monkeypatch.setattr(picture_queue, "PictureReader", open_reader)
    limits = Limits(body_bytes=PICTURE_BYTES)
    state = ServerState(Classifier.load(image_run.path), "animals", "float32", limits)
    app = build_app(state)

    async def play() -> None:
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            hostile = asyncio.create_task(
                client.post("http://localhost/v1/classify", content=png_of_many_chunks(8 << 20))
            )
            while not (state.num_waiting() or hostile.done()):
                await asyncio.sleep(0.01)
            assert (await client.get("http://localhost/health")).status_code == 200
            assert not hostile.done()
            assert (await hostile).status_code == 422
            after = await client.post("http://localhost/v1/classify", content=picture(1))
            assert after.status_code == 200

    asyncio.run(play())


@pytest.mark.slow
def test_a_picture_dropped_on_the_page_is_classified(image_run: RunFolder) -> None:
    with serve(image_run.path) as served, open_browser() as page:
        page.open(served.address)
        page.wait_for("document.querySelector('#model').textContent.includes('10 classes')")
        page.evaluate(DROP % base64.b64encode(picture(1)).decode())
        page.wait_for("document.querySelectorAll('.bars li').length === 5")
        (wanted,) = Classifier.load(image_run.path).classify([picture(1)], top=1)
        assert page.text(".bars li span") == wanted[0].name
        page.resize(360, 740, is_phone=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.evaluate(DROP % base64.b64encode(b"no picture").decode())
        page.wait_for("document.querySelector('.picture .problem') !== null")
        assert all(address.startswith((served.address, "blob:")) for address in page.requests)
