"""A report's page in a real browser: it needs no server and nothing from elsewhere, and it prints."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from echelon.commands.report import make_reports, render_report
from echelon.monitor.records import RecordWriter
from tests.browser import Page, open_browser
from tests.explain.made_runs import MadeRun

pytestmark = pytest.mark.slow
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_a_report_is_one_file_that_prints_whole(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    records = RecordWriter(run.launcher_records)
    records.write("failure", message=HOSTILE)
    records.close()
    file = tmp_path / "report.html"
    file.write_text(render_report(make_reports([run.path], None, None)[0], "html"))
    with open_browser() as page:
        page.prefer(prefers_color_scheme="dark")
        page.open(file.as_uri())
        assert page.evaluate("document.querySelectorAll('figure svg').length") >= 5
        assert not page.evaluate("Boolean(document.querySelector('canvas, script, img'))")
        is_unfolded = "document.querySelector('details:not([open])').lastElementChild.checkVisibility()"
        assert not page.evaluate(is_unfolded)
        page.call("Emulation.setEmulatedMedia", media="print", features=DARK)
        assert page.evaluate(is_unfolded), "what is folded on a screen is on paper"
        assert colour(page) == "rgb(255, 255, 255)", "no dark ground on paper"
        printed = base64.b64decode(page.call("Page.printToPDF")["data"])
        assert printed.startswith(b"%PDF")
        assert page.errors == []
        assert [each for each in page.requests if not each.startswith("data:")] == [file.as_uri()]


def colour(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))
