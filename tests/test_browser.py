"""The browser that other tests use shows, runs and reports what a page does."""

from __future__ import annotations

from pathlib import Path

from tests.browser import open_browser

PAGE = """<!doctype html><title>A page</title>
<button onclick="document.title = 'clicked'">Press</button><input>
<script>
console.error("first"); fetch("missing.json").catch(() => {}); setTimeout(() => { throw Error("second") });
</script>"""


def test_a_page_is_opened_used_and_seen(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    with open_browser(400, 300) as page:
        page.open((tmp_path / "page.html").as_uri())
        page.click("button")
        assert page.evaluate("document.title") == "clicked"
        page.click("input")
        page.type("grün")
        assert page.evaluate("document.querySelector('input').value") == "grün"
        assert page.text("button") == "Press"
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
        assert [text for text in ("first", "second") if any(text in error for error in page.errors)] == [
            "first",
            "second",
        ]
        assert any(address.endswith("missing.json") for address in page.requests)
