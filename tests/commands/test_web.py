"""The page of runs: who may look at it, and who may write."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest

from echelon.commands import web
from echelon.commands.web import open_page
from echelon.dashboard import details, endpoints
from echelon.errors import UserError
from echelon.runfolder import RunFolder, RunNotes
from echelon.serve.limits import Limits
from tests.explain.made_runs import MadeRun


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    return MadeRun().write(tmp_path / "run", is_ended=False)


def get(address: str, **headers: str) -> tuple[int, str]:
    """As a browser, with cookies."""
    browser = build_opener(HTTPCookieProcessor())
    try:
        with browser.open(Request(address, headers=headers)) as answer:
            assert "token" not in answer.url, "it would stay in the browser's history"
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_and_its_parts_are_served_on_loopback(run: RunFolder) -> None:
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        status, page = get(address)
        assert status == 200
        assert "main.js" in page
        status, runs = get(f"{address}api/runs")
        assert status == 200
        assert [row["name"] for row in json.loads(runs)["rows"]] == ["run"]
        assert "Plotly" in get(f"{address}plotly.min.js")[1]
        assert get(f"{address}etc/passwd")[0] == 404
        assert get(f"{address}..%2fcatalogue.py")[0] == 404


def post(address: str, content: bytes, **headers: str) -> int:
    try:
        with urlopen(Request(f"{address}api/notes", content, headers)) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_only_the_page_itself_can_write_notes(run: RunFolder) -> None:
    content = json.dumps({"run": str(run.path), "tags": ["good"], "note": "kept"}).encode()
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        get(f"{address}api/runs")
        own, kind = address.rstrip("/"), "application/json"
        assert post(address, content, **{"Content-Type": kind}) == 403
        assert post(address, content, **{"Content-Type": kind, "Origin": "http://evil.example"}) == 403
        assert post(address, content, **{"Content-Type": "text/plain", "Origin": own}) == 403
        assert post(address, b"[]", **{"Content-Type": kind, "Origin": own}) == 400
        assert not run.notes.exists()
        assert post(address, content, **{"Content-Type": kind, "Origin": own}) == 200
    assert RunNotes.read(run) == RunNotes(("good",), "kept")


def test_what_another_site_has_a_browser_ask_for_is_refused(run: RunFolder) -> None:
    """It could not read the answer, but have it computed again and again."""
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        for path, status in (("api/runs", 403), ("api/answers?run=run", 403), ("events", 403), ("", 200)):
            assert get(f"{address}{path}", **{"Sec-Fetch-Site": "cross-site"})[0] == status
        assert get(f"{address}api/runs", **{"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_many_reports_do_not_keep_the_list_waiting(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over, begun = threading.Event(), threading.Event()

    def wait(*_: object) -> dict[str, str]:
        begun.set()
        is_over.wait()
        return {}

    monkeypatch.setattr(details.Answers, "of", wait)
    with open_page([run.path], "127.0.0.1", 0) as (address,), contextlib.ExitStack() as sockets:
        get(f"{address}api/runs")
        place = urlsplit(address)
        asked = (
            f"GET /api/answers?run={quote(str(run.path))} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
        )
        for _ in range(50):  # more than there are threads
            connection = socket.create_connection((str(place.hostname), place.port or 0))
            sockets.enter_context(connection).sendall(asked)
        begun.wait()
        try:
            with urlopen(f"{address}api/runs", timeout=60) as answer:
                assert answer.status == 200
        finally:
            is_over.set()


def test_a_page_of_another_site_cannot_look(run: RunFolder) -> None:
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        assert get(address, Host="evil.example")[0] == 400
        assert get(address, Host="localhost:1234")[0] == 200


def test_beyond_this_machine_a_token_is_asked_for(run: RunFolder) -> None:
    with open_page([run.path], "0.0.0.0", 0) as (by_name, *_):
        local = by_name.replace(socket.gethostname(), "127.0.0.1")
        bare, _, token = local.partition("?token=")
        assert len(token) > 20
        assert get(bare)[0] == 401
        assert get(f"{bare}api/runs")[0] == 401
        assert get(f"{bare}events?token=wrong")[0] == 401
        assert get(local)[0] == 200
        cookie = f"echelon-token-{urlsplit(bare).port}"
        assert get(f"{bare}api/runs", Cookie=f"{cookie}={token}")[0] == 200
        assert get(f"{bare}api/runs", Cookie=f"{cookie}=wrong")[0] == 401
        assert get(f"{bare}api/runs", Authorization=f"Bearer {token}")[0] == 200


def test_connections_that_ask_for_nothing_are_few_and_closed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some say nothing, one a byte now and then; a reader at another address gets in meanwhile."""
    monkeypatch.setattr(web, "_LIMITS", Limits(receive_s=1.0, client_connections=8))
    before = threading.active_count()
    with open_page([run.path], "127.0.0.1", 0) as (address,), contextlib.ExitStack() as stack:
        place = (str(urlsplit(address).hostname), urlsplit(address).port or 0)
        silent = [
            stack.enter_context(socket.create_connection(place, timeout=60, source_address=("127.0.0.2", 0)))
            for _ in range(100)
        ]
        assert get(f"{address}api/runs")[0] == 200
        assert threading.active_count() - before < 10
        dripping, ended = silent[0], False
        while not ended:  # for ever, if nobody looks at the clock
            with contextlib.suppress(OSError):
                dripping.sendall(b"x")
            ended = has_ended(dripping, wait_s=0.1)
        assert all(has_ended(one, wait_s=60.0) for one in silent)
        assert get(f"{address}api/runs")[0] == 200


def has_ended(connection: socket.socket, wait_s: float) -> bool:
    connection.settimeout(wait_s)
    try:
        while connection.recv(1000):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_page_for_everybody_is_announced_at_addresses_that_others_can_open(run: RunFolder) -> None:
    with open_page([run.path], "0.0.0.0", 0) as addresses:
        assert socket.gethostname() in addresses[0]
        assert not [address for address in addresses if "0.0.0.0" in address or "127.0.0.1" in address]
        for address in addresses[1:]:
            assert get(address)[0] == 200


def test_a_page_that_is_looked_at_closes_without_a_word(
    run: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_LOOK_S", 3600.0)
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        events = urlopen(f"{address}events")
        assert events.readline().startswith(b"data: ")
    assert events.read() == b"\n"
    events.close()
    assert caplog.records == []


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_the_page_is_served_on_the_other_loopback(run: RunFolder) -> None:
    with open_page([run.path], "::1", 0) as (address,):
        assert address.startswith("http://[::1]:")
        assert get(address)[0] == 200


@pytest.mark.parametrize(
    "request_line",
    ["GET / HTTP/1.1\r\nHost: [", "GET http://[ HTTP/1.1\r\nHost: localhost", "no HTTP\r\nHost: localhost"],
)
def test_a_request_that_names_no_address_is_refused_in_silence(
    run: RunFolder, request_line: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(f"{request_line}\r\nConnection: close\r\n\r\n".encode())
            assert line.recv(100).startswith(b"HTTP/1.1 40")
    assert (capfd.readouterr().err, caplog.records) == ("", [])


def test_an_address_that_is_not_this_machines_is_said_to_be_wrong(run: RunFolder) -> None:
    with pytest.raises(UserError, match="choose another address"), open_page([run.path], "192.0.2.1", 0):
        pass


def test_a_port_that_is_taken_is_said_to_be(run: RunFolder) -> None:
    with open_page([run.path], "127.0.0.1", 0) as (address,):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with (
            pytest.raises(UserError, match="choose another port with --port"),
            open_page([run.path], "127.0.0.1", port),
        ):
            pass


def test_the_page_needs_plotly_and_no_other_extra() -> None:
    extras = ("fastapi", "prometheus_client")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import echelon.commands.web"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_plotly_the_extra_is_named(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(UserError, match=r"extra dashboard"), open_page([run.path], "127.0.0.1", 0):
        pass
