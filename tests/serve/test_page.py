"""The page in a real browser: type, choose, look, drop a file; by keyboard, in the dark, on a phone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from echelon.runfolder import RunFolder
from tests.browser import Page, open_browser
from tests.serve.served import Served, serve
from tests.small_run import sentences

DROP = """(() => {
  const data = new DataTransfer();
  data.items.add(new File([%s], "letter.txt", { type: "text/plain" }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
})()"""


@pytest.fixture(scope="module")
def served(run: RunFolder) -> Iterator[Served]:
    with serve(run.path, "--engine", "torch") as served:
        yield served


@pytest.fixture
def page(served: Served) -> Iterator[Page]:
    with open_browser() as page:
        page.open(served.address)
        page.wait_for("document.querySelector('#model').textContent.includes('en → de')")
        yield page
        page.evaluate("1")  # collects what the console has said
        assert page.errors == []
        assert all(address.startswith((served.address, "blob:")) for address in page.requests), page.requests


def write(page: Page, text: str) -> None:
    page.click("#source")
    page.type(text)
    page.wait_for("document.querySelectorAll('#alternatives button').length > 1")


@pytest.mark.slow
def test_german_appears_while_one_types(page: Page) -> None:
    write(page, "red bird")
    assert "rot" in page.text("#target")
    before = page.text("#target")
    page.type(" one two")
    page.wait_for(f"document.querySelector('#target').innerText !== {json.dumps(before)}")
    assert page.text("#source-language") == "English"
    page.press("Escape")
    page.wait_for("document.querySelector('#target').innerText.trim() === ''")


@pytest.mark.slow
def test_alternatives_are_chosen_by_keyboard_and_attention_is_shown(page: Page) -> None:
    write(page, "red bird")
    cells = page.evaluate("document.querySelectorAll('#alignment td').length")
    words = len(page.text("#target").split())
    assert cells == words * 3  # two words and the end of the sentence
    page.evaluate("document.querySelector('#alternatives button').focus()")
    page.press("ArrowDown")
    second = page.evaluate("document.activeElement.firstChild.innerText")
    page.evaluate("document.activeElement.click()")
    assert page.text("#target").strip() == second
    assert page.evaluate("document.querySelectorAll('[aria-pressed=true]').length") == 1


@pytest.mark.slow
def test_a_dropped_file_is_translated_and_offered(page: Page, tmp_path: Path) -> None:
    lines = [*sentences(70), "", "one"]
    page.evaluate(DROP % json.dumps("\r\n".join(lines) + "\r\n"))
    page.wait_for("!document.querySelector('#file-save').hidden")
    assert page.text("#file-count") == "72 of 72 lines"
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#file-save")
    saved, deadline = tmp_path / "letter.de.txt", time.monotonic() + 30
    while not saved.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    translated = saved.read_text().split("\n")
    assert (len(translated), translated[70], translated[72]) == (73, "", "")


@pytest.mark.slow
def test_it_fits_a_phone_and_the_dark(page: Page) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.prefer(prefers_color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.resize(360, 740, is_phone=True)
    write(page, " ".join(sentences(3)))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_a_token_opens_the_page(run: RunFolder) -> None:
    with serve(run.path, "--engine", "torch", "--token", "secret") as served, open_browser() as page:
        page.open(served.address)
        page.wait_for("!document.querySelector('#entry').hidden")
        page.open(f"{served.address}?again#token=secret")
        page.wait_for("document.querySelector('#model').textContent.includes('en → de')")
        assert "secret" not in page.evaluate("location.href")
