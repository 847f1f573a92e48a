"""The server as a process: it listens where it should, ends well, and outlives clients that behave badly."""

from __future__ import annotations

import asyncio
import http.client
import json
import selectors
import signal
import socket
import ssl
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import uvicorn
from uvicorn.server import ServerState

from echelon.runfolder import RunFolder
from echelon.serve.guard import Refusal, refuse
from echelon.serve.http_server import TimedProtocol, is_loopback
from tests.conftest import WORDS
from tests.serve.certificates import make_certificate
from tests.serve.served import Served, serve
from tests.small_run import sentences
from tests.waiting import wait_until

Played = TypeVar("Played")


def post(served: Served, lines: list[str]) -> list[str]:
    body = json.dumps({"text": lines}).encode()
    headers = {"Content-Type": "application/json"}
    if served.token:
        headers["Authorization"] = f"Bearer {served.token}"
    with urlopen(Request(f"{served.address}v1/translate", body, headers), timeout=60) as answer:
        return [found["text"] for found in json.load(answer)["translations"]]


def begin_request(connection: socket.socket, body: bytes) -> None:
    """Ask for a translation; the server has begun with it when this returns."""
    head = "POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)


def talk(served: Served, text: bytes, patience_s: float = 30) -> bytes:
    """Send bytes as they are; what comes back until the server closes or falls silent."""
    where = urlsplit(served.address)
    answer = b""
    with socket.create_connection((where.hostname, where.port), timeout=patience_s) as connection:
        connection.sendall(text)
        try:
            while part := connection.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            pass
    return answer


def test_which_addresses_are_loopback() -> None:
    loopback = ("127.0.0.1", "127.9.9.9", "::1", "localhost")
    assert [
        host for host in (*loopback, "0.0.0.0", "::", "10.0.0.1", "example.org") if is_loopback(host)
    ] == [*loopback]


class Hasty(TimedProtocol):
    patience_s = 0.5


async def find_nothing(_scope: Any, _receive: Any, send: Any) -> None:
    await refuse(send, Refusal(404, "nothing is here", {}))


class Idling(selectors.DefaultSelector):
    """Lets the loop's time pass at once, when nothing is left to do but to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(None if timeout is None else min(timeout, 0.02))
        if not events and timeout is not None:
            self.now += timeout
        return events


def play(scenario: Coroutine[Any, Any, Played]) -> Played:
    """What a scenario comes to in a loop whose time stands still while anybody works, however busy the machine is."""

    def make_loop() -> asyncio.AbstractEventLoop:
        idling = Idling()
        loop = asyncio.SelectorEventLoop(idling)
        loop.time = lambda: idling.now  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(scenario)


async def talk_hastily(parts: list[bytes], keep_alive_s: int) -> list[bytes]:
    """What an application without patience answers to parts sent 0.05 s apart, each answer's status line."""
    config = uvicorn.Config(find_nothing, timeout_keep_alive=keep_alive_s, log_config=None, lifespan="off")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Hasty(config, ServerState(), {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        answer = await reader.read()
        writer.close()
    return [line for line in answer.split(b"\r\n") if b"HTTP/1.1 " in line]


WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: loc"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "num_answers"),
    [
        ([], 0),
        ([HALF], 0),
        ([WHOLE, HALF], 1),
        ([WHOLE + HALF], 1),
        ([WHOLE, WHOLE + WHOLE, HALF[:3], HALF[3:9], HALF[9:]], 3),
        ([POST, b"half"], 1),
    ],
)
def test_every_request_s_head_has_to_arrive_in_time(parts: list[bytes], num_answers: int) -> None:
    answers = play(talk_hastily(parts, keep_alive_s=60))
    assert [b" 404 " in answer for answer in answers] == [True] * num_answers + [False]
    assert b" 408 " in answers[-1]


def test_a_connection_that_rests_after_an_answer_is_closed_without_another() -> None:
    spread_out = [WHOLE, HALF, b"\r\n\r\n", WHOLE, *[b""] * 12, WHOLE]
    answers = play(talk_hastily(spread_out, keep_alive_s=1))
    assert [b" 404 " in answer for answer in answers] == [True] * 4


def test_nobody_chooses_their_own_address(run: RunFolder) -> None:
    """X-Forwarded-For, from loopback too, is what a client says; only of a proxy that was named is it believed."""
    forwarded = b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Forwarded-For: 10.0.0.%d\r\n\r\n"
    options = ("--engine", "torch", "--requests-per-second", "0.1")
    with serve(run.path, *options) as served:
        answers = [talk(served, forwarded % number).split(b"\r\n")[0] for number in range(6)]
        assert any(b" 429 " in answer for answer in answers)
    with serve(run.path, *options, "--trusted-proxy", "127.0.0.1", "--token", "secret") as served:
        believed = forwarded.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer secret\r\n\r\n")
        answers = [talk(served, believed % number).split(b"\r\n")[0] for number in range(6)]
        assert [b" 200 " in answer for answer in answers] == [True] * 6
        assert b" 401 " in talk(served, forwarded % 7).split(b"\r\n")[0]


@pytest.mark.slow
def test_a_server_translates_and_finishes_what_it_has_when_told_to_stop(run: RunFolder) -> None:
    with serve(run.path) as served:
        assert served.token is None
        assert post(served, ["one two"])[0].split()[0] in WORDS.values()
        where = urlsplit(served.address)
        with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
            begin_request(connection, json.dumps({"text": sentences(250)}).encode())
            assert served.stop() == 0
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert len(json.load(answer)["translations"]) == 250


@pytest.mark.slow
def test_any_other_address_than_loopback_has_a_token(run: RunFolder) -> None:
    with serve(run.path, "--host", "0.0.0.0", "--engine", "torch") as served:
        assert served.token
        local = Served(served.address.replace("0.0.0.0", "127.0.0.1"), served.token, served.process)
        assert post(local, ["one"])
        refused = talk(local, b"GET /v1/model HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 401 " in refused.split(b"\r\n")[0]


@pytest.mark.slow
def test_a_company_s_server_reads_its_files_again_and_drains_before_it_stops(
    run: RunFolder, tmp_path: Path
) -> None:
    files, tokens, audit = make_certificate(tmp_path), tmp_path / "tokens.toml", tmp_path / "audit.jsonl"
    tokens.touch(0o600)
    entry = '[[token]]\nname = "%s"\ntoken = "token-of-the-%s"\n'
    tokens.write_text(entry % ("shop", "shop"))
    trusting = ssl.create_default_context(cafile=files.certificate)

    def status(path: str, token: str = "") -> int:
        request = Request(f"{served.address}{path}", headers={"Authorization": f"Bearer {token}"})
        try:
            with urlopen(request, context=trusting, timeout=60) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    options = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--tokens", str(tokens))
    more = ("--audit-log", str(audit), "--drain-seconds", "3600", "--engine", "torch")
    with serve(run.path, *options, *more) as served:
        assert served.address.startswith("https://127.0.0.1:")
        assert served.token is None
        assert [status("v1/model", f"token-of-the-{name}") for name in ("shop", "intern")] == [200, 401]
        tokens.write_text(entry % ("intern", "intern"))
        audit.rename(tmp_path / "audit.1")
        served.process.send_signal(signal.SIGHUP)
        wait_until(audit.exists)
        wait_until(lambda: status("v1/model", "token-of-the-intern") == 200)
        assert status("v1/model", "token-of-the-shop") == 401
        tokens.write_text("nonsense")
        served.process.send_signal(signal.SIGHUP)
        assert status("v1/model", "token-of-the-intern") == 200, "the old tokens hold"
        names = [json.loads(line)["token"] for line in (tmp_path / "audit.1").read_text().splitlines()]
        assert names == ["shop", None]
        assert status("ready") == 200
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: status("ready") == 503)
        assert status("v1/model", "token-of-the-intern") == status("health") == 200
        assert served.stop() == 0, "told twice"


@pytest.mark.slow
def test_strangers_bytes_get_4xx_and_nobody_else_notices(run: RunFolder) -> None:
    head = b"POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    bad = {
        b"\x16\x03\x01\x02\x00\x01\x00": b" 400 ",
        b"GET / HTTP/9.9\r\n\r\n": b" 400 ",
        head + b"Content-Length: 99999999999\r\n\r\n": b" 413 ",
        head + b"Content-Length: -5\r\n\r\n": b" 400 ",
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n": b" 400 ",
        head + b"X: " + b"y" * 200_000 + b"\r\n\r\n": b" 4",
        head + b"Content-Length: 50\r\n\r\n{": b" 408 ",  # the rest never comes
        b"GET /v1/mo": b" 408 ",
    }
    with serve(run.path, "--engine", "torch") as served:
        found: dict[bytes, bytes] = {}
        threads = [
            threading.Thread(target=lambda text=text: found.update({text: talk(served, text)}))
            for text in bad
        ]
        for thread in threads:
            thread.start()
        assert post(served, ["one two"])
        for thread in threads:
            thread.join(60)
        for text, status in bad.items():
            assert status in found[text].split(b"\r\n")[0], (text[:80], found[text][:200])
            assert b"Traceback" not in found[text]
        assert post(served, ["one two"])
        assert served.stop() == 0


@pytest.mark.slow
def test_the_port_of_another_is_a_clear_mistake(run: RunFolder, tmp_path: Path) -> None:
    import subprocess
    import sys

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "echelon", "serve", str(run.path), "--port", port]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "choose another port with --port" in result.stderr
