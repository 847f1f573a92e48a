"""The server as a process: it listens where it should, ends well, and outlives clients that behave badly."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from echelon.runfolder import RunFolder
from echelon.serve.server import is_loopback
from tests.conftest import WORDS
from tests.serve.served import Served, serve
from tests.small_run import sentences


def post(served: Served, lines: list[str]) -> list[str]:
    body = json.dumps({"text": lines}).encode()
    headers = {"Content-Type": "application/json"}
    if served.token:
        headers["Authorization"] = f"Bearer {served.token}"
    with urlopen(Request(f"{served.address}v1/translate", body, headers), timeout=60) as answer:
        return [found["text"] for found in json.load(answer)["translations"]]


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


@pytest.mark.slow
def test_a_server_translates_and_finishes_what_it_has_when_told_to_stop(run: RunFolder) -> None:
    with serve(run.path) as served:
        assert served.token is None
        assert post(served, ["one two"])[0].split()[0] in WORDS.values()
        answers: list[list[str]] = []
        lines = sentences(250)
        asking = threading.Thread(target=lambda: answers.append(post(served, lines)))
        asking.start()
        time.sleep(0.2)
        assert served.stop() == 0
        asking.join(60)
        assert [len(answer) for answer in answers] == [250]


@pytest.mark.slow
def test_any_other_address_than_loopback_has_a_token(run: RunFolder) -> None:
    with serve(run.path, "--host", "0.0.0.0", "--engine", "torch") as served:
        assert served.token
        local = Served(served.address.replace("0.0.0.0", "127.0.0.1"), served.token, served.process)
        assert post(local, ["one"])
        refused = talk(local, b"GET /v1/model HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 401 " in refused.split(b"\r\n")[0]


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
    assert "choose another with --port" in result.stderr
