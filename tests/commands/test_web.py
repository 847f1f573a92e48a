"""The live page: who may look at it, and how it looks and behaves in a real browser."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest

from echelon.commands import web
from echelon.commands.web import LivePage, open_page
from echelon.errors import UserError
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from echelon.serve.limits import Limits
from tests.browser import Page, open_browser
from tests.explain.made_runs import COMPUTING, Clock, MadeRun

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"
MADE = MadeRun(
    steps=400,
    hosts=3,
    workers=3,
    phases={
        rank: COMPUTING | {"communication": 0.05 + 0.004 * rank, "backward": 0.07 - 0.004 * rank}
        for rank in range(3)
    },
    loss=lambda step: 1.9 + 7.0 * (step + 2) ** -0.55 + 0.08 * ((step * 7919) % 13 - 6) / 6,
    received=13_400_000,
    line_bytes_per_s=118e6,
    overrides=(
        "name=captions",
        "schedule.kind=inverse_sqrt",
        "schedule.learning_rate=0.003",
        "schedule.warmup_steps=80",
    ),
    valid=tuple((step, 2.1 + 6.4 * step**-0.5, 36 * (1 - 2 ** (-step / 110))) for step in range(40, 401, 40)),
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """A run that is going on, a little over half of it done."""
    begun = MadeRun(**{**MADE.__dict__, "steps": 240})
    folder = begun.write(tmp_path / "run", is_ended=False)
    recipe = folder.recipe.read_text()
    folder.recipe.write_text(recipe.replace("steps = 240", "steps = 400"))
    for rank in range(3):
        records = folder.worker_records(rank)
        records.write_text(records.read_text().replace('"steps": 240', '"steps": 400'))
    with folder.lock():
        yield folder


def go_on(run: RunFolder, first: int, last: int) -> None:
    """More steps of every worker."""
    clock = Clock()
    for rank in range(3):
        with contextlib.closing(RecordWriter(run.worker_records(rank))) as records:
            for step in range(first, last + 1):
                MADE.write_step(records, rank, step, clock)


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
    with open_page(run, "127.0.0.1", 0) as (address,):
        status, page = get(address)
        assert status == 200
        assert page.count("<svg") == 8
        status, sections = get(f"{address}sections")
        assert status == 200
        assert {"head", "tiles", "charts", "answers", "events", "hosts", "samples", "servers"} == set(
            json.loads(sections)
        )
        assert get(f"{address}etc/passwd")[0] == 404


def test_a_page_of_another_site_cannot_look(run: RunFolder) -> None:
    with open_page(run, "127.0.0.1", 0) as (address,):
        assert get(address, Host="evil.example")[0] == 400
        assert get(address, Host="localhost:1234")[0] == 200


def test_beyond_this_machine_a_token_is_asked_for(run: RunFolder) -> None:
    with open_page(run, "0.0.0.0", 0) as (by_name, *_):
        local = by_name.replace(socket.gethostname(), "127.0.0.1")
        bare, _, token = local.partition("?token=")
        assert len(token) > 20
        assert get(bare)[0] == 401
        assert get(f"{bare}sections")[0] == 401
        assert get(f"{bare}events?token=wrong")[0] == 401
        assert get(local)[0] == 200
        cookie = f"echelon-token-{urlsplit(bare).port}"
        assert get(f"{bare}sections", Cookie=f"{cookie}={token}")[0] == 200
        assert get(f"{bare}sections", Cookie=f"{cookie}=wrong")[0] == 401
        assert get(f"{bare}sections", Authorization=f"Bearer {token}")[0] == 200


def test_connections_that_ask_for_nothing_are_few_and_closed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some say nothing, one a byte now and then; a reader at another address gets in meanwhile."""
    monkeypatch.setattr(web, "_LIMITS", Limits(receive_s=1.0, client_connections=8))
    before = threading.active_count()
    with open_page(run, "127.0.0.1", 0) as (address,), contextlib.ExitStack() as stack:
        place = (str(urlsplit(address).hostname), urlsplit(address).port or 0)
        silent = [
            stack.enter_context(socket.create_connection(place, timeout=60, source_address=("127.0.0.2", 0)))
            for _ in range(100)
        ]
        assert get(f"{address}sections")[0] == 200
        assert threading.active_count() - before < 10
        dripping, ended = silent[0], False
        while not ended:  # for ever, if nobody looks at the clock
            with contextlib.suppress(OSError):
                dripping.sendall(b"x")
            ended = has_ended(dripping, wait_s=0.1)
        assert all(has_ended(one, wait_s=60.0) for one in silent)
        assert get(f"{address}sections")[0] == 200


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
    with open_page(run, "0.0.0.0", 0) as addresses:
        assert socket.gethostname() in addresses[0]
        assert not [address for address in addresses if "0.0.0.0" in address or "127.0.0.1" in address]
        for address in addresses[1:]:
            assert get(address)[0] == 200


def test_a_page_that_is_looked_at_closes_without_a_word(
    run: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_LOOK_S", 3600.0)
    with open_page(run, "127.0.0.1", 0) as (address,):
        events = urlopen(f"{address}events")
        assert events.readline().startswith(b"data: ")
    assert events.read() == b"\n"
    events.close()
    assert caplog.records == []


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_the_page_is_served_on_the_other_loopback(run: RunFolder) -> None:
    with open_page(run, "::1", 0) as (address,):
        assert address.startswith("http://[::1]:")
        assert get(address)[0] == 200


@pytest.mark.parametrize(
    "request_line",
    ["GET / HTTP/1.1\r\nHost: [", "GET http://[ HTTP/1.1\r\nHost: localhost", "no HTTP\r\nHost: localhost"],
)
def test_a_request_that_names_no_address_is_refused_in_silence(
    run: RunFolder, request_line: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with open_page(run, "127.0.0.1", 0) as (address,):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(f"{request_line}\r\nConnection: close\r\n\r\n".encode())
            assert line.recv(100).startswith(b"HTTP/1.1 40")
    assert (capfd.readouterr().err, caplog.records) == ("", [])


def test_an_address_that_is_not_this_machines_is_said_to_be_wrong(run: RunFolder) -> None:
    with pytest.raises(UserError, match="choose another address"), open_page(run, "192.0.2.1", 0):
        pass


def test_a_port_that_is_taken_is_said_to_be(run: RunFolder) -> None:
    with open_page(run, "127.0.0.1", 0) as (address,):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with (
            pytest.raises(UserError, match="choose another port with --port"),
            open_page(run, "127.0.0.1", port),
        ):
            pass


def test_what_was_written_too_soon_after_a_look_is_shown_later(run: RunFolder) -> None:
    page = LivePage(run)
    before = page.version()
    page._next_look = math.inf

    go_on(run, 241, 242)

    assert page.version() == before, "the page is not built yet, so there is nothing to fetch"
    page._next_look = 0.0
    assert page.version() != before


@pytest.mark.slow
def test_a_browser_draws_the_page_and_keeps_it_up_to_date(run: RunFolder, tmp_path: Path) -> None:
    with open_page(run, "127.0.0.1", 0, hourly=0.752) as (address,), open_browser(1280, 900) as page:
        page.open(address)
        assert "step 240 of 400" in page.text(".state")
        assert charts_drawn(page) == 8
        page.click("#answer-network summary")
        assert page.evaluate("document.querySelector('#answer-network details').open")
        go_on(run, 241, 320)
        page.wait_for("document.querySelector('.state').innerText.includes('step 320')")
        assert page.evaluate("document.querySelector('#answer-network details').open"), "it stays open"
        take_pictures(page, tmp_path)
        assert_usable_without_a_mouse(page)
        assert page.errors == []
        assert [request for request in page.requests if not request.startswith((address, "data:"))] == []


@pytest.mark.slow
@pytest.mark.skipif(
    "ECHELON_SCREENSHOTS" not in os.environ,
    reason="the pictures in docs/images are taken where ECHELON_SCREENSHOTS names a run",
)
def test_pictures_of_a_real_run() -> None:
    run = RunFolder(Path(os.environ["ECHELON_SCREENSHOTS"]))
    with open_page(run, "127.0.0.1", 0) as (address,), open_browser(1280, 900) as page:
        page.open(address)
        take_pictures(page, SCREENSHOTS)


def charts_drawn(page: Page) -> int:
    """Charts that take room and have lines or shapes in them."""
    return int(
        page.evaluate(
            "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height > 60 &&"
            " s.querySelector('polyline.line:not(.grid), polygon')).length"
        )
    )


def take_pictures(page: Page, folder: Path) -> None:
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(folder / "watch-light.png")
    page.prefer(prefers_color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 27)"
    page.screenshot(folder / "watch-dark.png")
    page.prefer(prefers_color_scheme="light")
    for part in ("hosts", "answers"):
        page.evaluate(f"document.getElementById('{part}').scrollIntoView()")
        page.screenshot(folder / f"watch-{part}.png")
    page.resize(390, 844, is_phone=True)
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(folder / "watch-phone.png")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no scrolling sideways"
    page.resize(1280, 900)


def assert_usable_without_a_mouse(page: Page) -> None:
    """The first Tab offers to skip to the answers, later ones reach every piece of evidence; charts have words."""
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached: list[str] = []
    for _ in range(30):
        page.press("Tab")
        reached.append(
            str(page.evaluate("document.activeElement.className || document.activeElement.tagName"))
        )
    assert reached.count("SUMMARY") >= 10
    assert page.evaluate(
        "[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label').length > 20)"
    )
    assert page.evaluate("document.querySelectorAll('[role=progressbar][aria-valuenow]').length") == 1
    assert page.evaluate("document.querySelectorAll('[role=status]').length") == 1


def test_the_page_needs_no_extra() -> None:
    extras = ("fastapi", "prometheus_client", "python_multipart")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import echelon.commands.web"
    subprocess.run([sys.executable, "-c", code], check=True)
