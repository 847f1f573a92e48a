"""What the server answers: translations where the request is right, and otherwise a 4xx that says what is wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from echelon import Translator
from echelon.inference.decoding import Decoding
from echelon.serve.access import Access, Token
from echelon.serve.batching import Batcher
from echelon.serve.limits import Limits
from echelon.serve.metrics import Metrics
from tests.serve.conftest import MakeClient, access_with
from tests.small_run import sentences
from tests.waiting import wait_until


class Slow(Translator):
    """A translator that waits until it is let go."""

    def __init__(self, real: Translator) -> None:
        self.real, self.rules, self.decoding, self.engine = real, real.rules, real.decoding, real.engine
        self.go_on = threading.Event()
        self.batches: list[int] = []

    def translate(self, lines: Any, decoding: Decoding | None = None, **options: Any) -> Any:
        self.batches.append(len(lines))
        self.go_on.wait()
        return self.real.translate(lines, decoding, **options)


class Broken(Slow):
    def translate(self, lines: Any, decoding: Decoding | None = None, **options: Any) -> Any:
        raise RuntimeError("the inside of the server")


def ask(client: TestClient, text: str | Sequence[str], **wishes: Any) -> Any:
    answer = client.post("/v1/translate", json={"text": text, **wishes})
    assert answer.status_code == 200, answer.text
    return answer.json()["translations"]


def test_lines_are_translated_in_order(client: TestClient, translator: Translator) -> None:
    lines = [*sentences(5), ""]
    expected = [str(found) for found in translator.translate(lines)]
    assert [found["text"] for found in ask(client, lines)] == expected
    (only,) = ask(client, lines[0])
    assert only["text"] == expected[0]


def test_a_request_of_very_many_unknown_keys_takes_no_long_look_at_each(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """90,000 fit into a request; suggesting another for each kept the server from everybody for a minute."""
    looked_at: list[str] = []

    def look(word: str, *_: Any, **__: Any) -> list[str]:
        looked_at.append(word)
        return []

    monkeypatch.setattr("difflib.get_close_matches", look)
    answer = client.post(
        "/v1/translate", json={"text": "one", **{f"key{number}": 1 for number in range(2000)}}
    )
    assert answer.status_code == 422
    assert "key0: there is no such key" in answer.json()["error"]
    assert 0 < len(looked_at) <= 20


def test_a_long_text_has_no_alignment(client: TestClient) -> None:
    """The weights of a line grow with its square: 4,000 characters took 3 GB."""
    assert ask(client, "one two " * 200, alignment=True)[0]["alignment"] is None


def test_alternatives_and_alignment_come_when_they_are_asked_for(client: TestClient) -> None:
    (found,) = ask(client, "one two three", n_best=5, alignment=True)
    assert len(found["alternatives"]) == 5
    assert len(found["alignment"]["weights"]) == len(found["alignment"]["target"])
    (drawn,) = ask(client, "one two three", temperature=1.0, n_best=2, seed=5)
    assert len(drawn["alternatives"]) == 2
    (same,) = ask(client, "one two three", temperature=1.0, n_best=2, seed=5)
    assert same == drawn
    (begun,) = ask(client, "one two", prefix="Vogel")
    assert begun["text"].startswith("Vogel")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "JSON"),
        (b"\xff\xfe", 400, ""),
        (b"[" * 100_000, 400, ""),
        (b"[]", 422, "body"),
        (b"{}", 422, "text: is missing"),
        (b'{"text": 3}', 422, "text"),
        (b'{"text": "a", "beam": 0}', 422, "beam: must be greater than or equal to 1"),
        (b'{"text": "a", "n_best": NaN}', 422, "n_best"),
        (b'{"text": "a", "seed": 3}', 422, "give a temperature too"),
        (b'{"text": "a", "prefix": "\xe4\xbd\xa0"}', 422, "vocabulary lacks"),
        (b'{"text": "a", "temperature": 1, "top_k": 1, "n_best": 2}', 422, "top_k = 1 always draws the same"),
        (b'{"text": "a", "wish": 3}', 422, "wish: there is no such key"),
        (b'{"txt": "a"}', 422, "txt: there is no such key; did you mean 'text'?"),
        (b'{"text": "\\ud800"}', 422, "text"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    client: TestClient, body: bytes, status: int, message: str
) -> None:
    answer = client.post("/v1/translate", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


def test_limits_are_kept(make_client: MakeClient) -> None:
    client = make_client(Limits(body_bytes=1000, characters=50, lines=3))
    assert client.post("/v1/translate", json={"text": "x" * 2000}).status_code == 413
    assert client.post("/v1/translate", content=(b"x" * 600 for _ in range(4))).status_code == 413
    assert client.post("/v1/translate", json={"text": "x" * 60}).status_code == 413
    assert client.post("/v1/translate", json={"text": ["x"] * 4}).status_code == 422
    assert len(ask(client, ["one"] * 3)) == 3


def test_what_all_clients_send_at_once_is_bounded(make_client: MakeClient, translator: Translator) -> None:
    """Two requests of 600 bytes are under way, so that a third has no room; when they are done, it has."""
    slow = Slow(translator)
    client = make_client(Limits(held_bytes=1500), translator=slow)
    request = partial(client.post, "/v1/translate", json={"text": "x" * 600})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(request)
        wait_until(lambda: slow.batches == [1])  # both at once would be one batch
        second = pool.submit(request)
        wait_until(lambda: "echelon_queue_lines 1" in client.get("/metrics").text)
        refused = request()
        slow.go_on.set()
        assert [answer.result().status_code for answer in (first, second)] == [200, 200]
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert request().status_code == 200


def test_a_server_is_ready_while_it_has_room_for_another_request(
    make_client: MakeClient, translator: Translator
) -> None:
    """Not with a full queue, not with hardly a byte left for bodies, and not when it is about to stop."""
    slow = Slow(translator)
    client = make_client(Limits(queue_lines=1), translator=slow)
    assert client.get("/ready").json() == {"status": "ready"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, "one")
        wait_until(lambda: slow.batches == [1])
        second = pool.submit(ask, client, "two")
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/health").status_code == 200
        slow.go_on.set()
        assert first.result()
        assert second.result()
    assert client.get("/ready").status_code == 200
    full = make_client(Limits(held_bytes=1000, body_bytes=1001))
    assert full.get("/ready").json() == {"error": "too many requests are waiting"}


def test_a_client_that_asks_too_often_is_told_to_wait(make_client: MakeClient) -> None:
    client = make_client(Limits(requests_per_second=1e-3, burst=3))
    answers = [client.get("/v1/model") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert client.get("/health").status_code == 200


def test_without_its_token_nothing_is_told(make_client: MakeClient) -> None:
    client = make_client(access=access_with(Token(name="shop", token="secret-of-the-shop")))
    for path in ("/v1/model", "/metrics", "/openapi.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer secret-of-the-shop"}).status_code == 200
    assert client.post("/v1/translate", json={"text": "one"}).status_code == 401
    assert client.get("/health").status_code == client.get("/").status_code == 200


def test_who_shows_no_token_cannot_take_up_room_with_a_body(make_client: MakeClient) -> None:
    client = make_client(access=access_with(Token(name="shop", token="secret-of-the-shop")))
    for path in ("/health", "/ready", "/", "/v1/translate"):
        answer = client.post(path, content=iter([b"x"] * 4))  # chunked
        assert answer.status_code in (400, 401)
        assert answer.headers["connection"] == "close", "what is left of the body is not read"


def test_a_request_with_two_lengths_is_refused(make_client: MakeClient) -> None:
    headers = {"Transfer-Encoding": "chunked", "Content-Length": "3"}
    assert make_client().post("/v1/translate", content=b"{}", headers=headers).status_code == 400


def test_another_sites_name_for_this_machine_is_refused(make_client: MakeClient) -> None:
    client = make_client(access=Access(hosts=frozenset({"testserver"})))
    assert client.get("/v1/model").status_code == 200
    assert client.get("/v1/model", headers={"Host": "evil.example"}).status_code == 400


def test_what_a_page_of_another_site_sends_to_this_machine_is_refused(make_client: MakeClient) -> None:
    """It cannot read the answer, but a form can be posted to anywhere."""
    client = make_client(access=Access(hosts=frozenset({"testserver"})))
    for others in ("https://evil.example", "http://testserver:1", "null", "http://[", "x"):
        answer = client.post("/v1/translate", json={"text": "a"}, headers={"Origin": others})
        assert (answer.status_code, answer.headers["connection"]) == (403, "close")
    assert client.get("/v1/model", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    own = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/translate", json={"text": "a"}, headers=own).status_code == 200
    public = make_client(access=Access())
    assert (
        public.post("/v1/translate", json={"text": "a"}, headers={"Origin": "https://a"}).status_code == 200
    )


@pytest.mark.parametrize("port", ["", ":80", ":8000"])
@pytest.mark.parametrize("name", ["localhost", "LocalHost", "127.0.0.1", "[::1]"])
def test_this_machine_is_known_by_its_names_with_and_without_a_port(
    make_client: MakeClient, name: str, port: str
) -> None:
    client = make_client(access=Access(hosts=frozenset({"localhost", "127.0.0.1", "::1"})))
    assert client.get("/v1/model", headers={"Host": name + port}).status_code == 200
    assert client.get("/v1/model", headers={"Host": f"{name}.evil.example{port}"}).status_code == 400


def ask_while_one_waits(
    client: TestClient, slow: Slow, requests: Sequence[Callable[[], Any]], lines: int
) -> list[Any]:
    """The answers to requests of so many lines each: the first is held, until all the others are in the queue."""
    with ThreadPoolExecutor(len(requests)) as pool:
        first = pool.submit(requests[0])
        wait_until(lambda: slow.batches == [lines])
        others = [pool.submit(request) for request in requests[1:]]
        queued = f"echelon_queue_lines {lines * len(others):.1f}\n"
        wait_until(lambda: queued in client.get("/metrics").text)
        slow.go_on.set()
        return [answer.result() for answer in (first, *others)]


def test_what_arrives_meanwhile_is_the_next_batch(make_client: MakeClient, translator: Translator) -> None:
    slow = Slow(translator)
    client = make_client(Limits(answer_s=3600.0), translator=slow)
    ask_while_one_waits(client, slow, [partial(ask, client, line) for line in sentences(9)], lines=1)
    assert slow.batches == [1, 8]


def test_what_is_drawn_with_a_seed_does_not_depend_on_who_else_asks(
    make_client: MakeClient, translator: Translator
) -> None:
    """Two of three who draw with the same seed have waited together."""
    slow = Slow(translator)
    client = make_client(Limits(answer_s=3600.0), translator=slow)
    draw = partial(ask, client, ["one two", "red bird"], temperature=2.0, seed=7)
    first, *others = ask_while_one_waits(client, slow, [draw] * 3, lines=2)
    assert slow.batches == [2, 2, 2]
    assert others == [first] * 2


def test_a_full_queue_and_a_late_answer_are_said_to_be_so(
    make_client: MakeClient, translator: Translator
) -> None:
    slow = Slow(translator)
    client = make_client(Limits(queue_lines=2, answer_s=0.5), translator=slow)
    full = client.post("/v1/translate", json={"text": ["one"] * 3})
    assert (full.status_code, full.headers["retry-after"]) == (503, "1")
    assert client.post("/v1/translate", json={"text": "one"}).status_code == 504
    slow.go_on.set()
    wait_until(lambda: client.post("/v1/translate", json={"text": "one"}).status_code == 200)


def test_a_fault_is_confessed_without_its_details(
    make_client: MakeClient, translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(translator=Broken(translator))
    answer = client.post("/v1/translate", json={"text": "one"})
    assert answer.status_code == 500
    assert "inside" not in answer.text
    assert "Traceback" not in answer.text
    assert "the inside of the server" in caplog.text
    assert client.get("/health").status_code == 200


def test_metrics_count_what_was_answered(client: TestClient) -> None:
    ask(client, ["one", "two"])
    client.get("/no/such/page")
    text = client.get("/metrics").text
    assert 'echelon_requests_total{method="POST",path="/v1/translate",status="200",token=""} 1.0' in text
    assert 'path="other",status="404",token=""} 1.0' in text
    assert 'echelon_batch_lines_bucket{le="2.0"} 1.0' in text
    assert "no/such" not in text


def test_the_page_and_the_api_describe_themselves(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    model = client.get("/v1/model").json()
    assert (model["source_language"], model["engine"]) == ("en", "torch")
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/translate", "/v1/model", "/health", "/ready", "/metrics"} == paths.keys()


def test_lines_of_clients_that_have_gone_are_not_kept(translator: Translator) -> None:
    """While one batch takes its time, nobody fills the queue by asking and leaving."""

    async def play() -> tuple[int, int]:
        slow = Slow(translator)
        batcher = Batcher(slow, Limits(queue_lines=100), Metrics())
        batcher.start()
        lines, prefixes = ["one"] * 50, [""] * 50
        first = asyncio.create_task(batcher.translate(["one"], translator.decoding, [""]))
        await asyncio.to_thread(wait_until, lambda: slow.batches == [1])
        gone = [
            asyncio.create_task(batcher.translate(lines, translator.decoding, prefixes)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        waiting = batcher.num_waiting
        gone[0].cancel()
        await asyncio.gather(gone[0], return_exceptions=True)
        left = batcher.num_waiting
        slow.go_on.set()
        assert len(await first + await gone[1]) == 51
        await batcher.stop()
        return waiting, left

    assert asyncio.run(play()) == (100, 50)
