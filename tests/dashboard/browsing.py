"""The page of all runs in a real browser: what its tests open, wait for, read and do."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echelon.commands.web import open_page
from tests.browser import Page, open_browser
from tests.explain.made_runs import MadeRun


def made(rate: float, seed: int) -> MadeRun:
    noise = random.Random(seed)
    return MadeRun(
        steps=300,
        loss=lambda step: 1.5 + rate + 5 * step**-0.5 + noise.gauss(0, 0.1),
        overrides=(f"seed={seed}", f"schedule.learning_rate={rate}"),
        valid=tuple((step, 2 + 5 * step**-0.5, 30 + seed - 100 / step) for step in range(50, 301, 50)),
    )


@contextmanager
def opened(folder: Path, view: str = "") -> Iterator[tuple[Page, str]]:
    with open_page([folder], "127.0.0.1", 0, hourly=0.75) as (address,), open_browser(1440, 1000) as page:
        page.open(f"{address}{view}")
        wait_until_drawn(page)
        yield page, address
        assert page.errors == []
        wrong = [each for each in page.requests if not each.startswith((address, "data:", "blob:"))]
        assert wrong == [], "nothing is loaded from elsewhere"


def wait_until_drawn(page: Page) -> None:
    page.wait_for(
        "document.body.dataset.drawn && !document.getElementById('count').innerText.includes('reading')"
    )
    page.wait_for("document.querySelector('[data-chart=loss] .plot .scatterlayer .trace')")


def names(page: Page) -> list[str]:
    return list(
        page.evaluate("[...document.querySelectorAll('#runs tbody th button')].map(b => b.innerText)")
    )


def traces(page: Page, chart: str = "loss") -> list[dict[str, Any]]:
    """What a chart draws."""
    return list(
        page.evaluate(
            f"document.querySelector('[data-chart=\"{chart}\"] .plot').data.map(t => ({{name: t.name,"
            " kind: t.meta.kind, curve: t.meta.curve, x: [...t.x], y: [...t.y], width: t.line?.width}))"
        )
    )


def drawn_runs(page: Page) -> set[str]:
    return {trace["name"].split(" ")[0] for trace in traces(page) if trace["curve"] == "loss"}


def choose(page: Page, control: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const e = document.getElementById('{control}'); e.value = {json.dumps(value)};"
        " e.dispatchEvent(new Event('change')) })()"
    )


def wait_for_runs(page: Page, expected: set[str]) -> None:
    listed = json.dumps(sorted(expected))
    page.wait_for(
        "JSON.stringify([...new Set(document.querySelector('[data-chart=loss] .plot').data"
        f".filter(t => t.meta.curve === 'loss').map(t => t.name.split(' ')[0]))].sort()) === JSON.stringify({listed})"
    )


def drag(page: Page, selector: str, down: float = 0.0) -> None:
    """Press the mouse on the left of an element and let go on the right, and so much of its height further down."""
    page.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
    x, y, width, height = page.evaluate(
        f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        "return [b.x, b.y, b.width, b.height] })()"
    )
    steps = [
        ("mouseMoved", 0.3, 0.0),
        ("mousePressed", 0.3, 0.0),
        ("mouseMoved", 0.5, 0.5),
        ("mouseMoved", 0.7, 1.0),
        ("mouseReleased", 0.7, 1.0),
    ]
    for kind, across, share in steps:
        page.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x + across * width,
            y=y + (0.5 + share * down) * height,
            button="left",
            buttons=1,
            clickCount=1,
        )
