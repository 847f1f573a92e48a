"""What a hostile run folder or host says is shown, and never acted on by the terminal."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table

from echelon import cli
from echelon.commands.dashboard import Dashboard
from echelon.console import SafeConsole
from echelon.monitor.screen import open_screen
from echelon.runfolder import RunFolder
from tests.explain.made_runs import MadeRun

SOURCE = Path(__file__).parents[1] / "src" / "echelon"
ATTACK = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e[/bold][link=http://x]"
"""Sets the window's title, clears the screen, turns red, turns text round, and closes a style that nobody opened."""
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def poison(value: Any) -> Any:
    """The same JSON with the attack at the end of every text."""
    match value:
        case str():
            return value + ATTACK
        case list():
            return [poison(entry) for entry in value]
        case dict():
            return {key: entry if key in ("kind", "name") else poison(entry) for key, entry in value.items()}
    return value


@pytest.fixture
def hostile_run(tmp_path: Path) -> RunFolder:
    """A run whose name, host names, outputs and messages all hold escape sequences."""
    run = MadeRun().write(tmp_path / f"run{ATTACK.replace('/', '')}")
    for file in run.records.glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        poisoned = "".join(json.dumps(poison(line)) + "\n" for line in lines)
        file.write_text(
            poisoned + json.dumps({"kind": "event", "message": f"hello{ATTACK}", "time": 1.0}) + "\n"
        )
    return run


@pytest.mark.parametrize(
    "arguments",
    [("status", "RUN"), ("report", "RUN"), ("compare", "RUN", "RUN"), ("watch", "RUN"), ("runs", "FOLDER")],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_verb_passes_escapes_on(
    hostile_run: RunFolder,
    arguments: tuple[str, ...],
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"RUN": str(hostile_run.path), "FOLDER": str(hostile_run.path.parent)}
    words = [places.get(word, word) for word in arguments] + ["--json"] * as_json
    monkeypatch.setattr(sys, "argv", ["echelon", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    output = captured.out + captured.err
    assert "pwned" in output, "the test looks at what it means to"
    assert not HARMFUL.search(output)


def on_terminal() -> tuple[SafeConsole, io.StringIO]:
    out = io.StringIO()
    return SafeConsole(file=out, width=400, force_terminal=True, color_system=None), out


def assert_harmless(output: str) -> None:
    """Rich itself moves the cursor of a live display, and nothing else."""
    own = re.compile(r"\x1b\[(\?25[lh]|\d*[AK]|2K)|\r")
    assert "pwned" in output
    assert not HARMFUL.search(own.sub("", output))


def test_the_dashboard_is_safe(hostile_run: RunFolder) -> None:
    console, out = on_terminal()
    board = Dashboard(hostile_run, console)
    board.show({"kind": "event", "message": f"gone{ATTACK}"})
    board.close()
    assert_harmless(out.getvalue())


def test_the_progress_bar_is_safe() -> None:
    console, out = on_terminal()
    screen = open_screen(console, 1)
    screen.show(
        {"kind": "start", "step": 0, "steps": 9, "workers": 1, "unit": f"pictures{ATTACK}", "kernels": ATTACK}
    )
    step = {"kind": "step", "step": 1, "loss": 1.0, "targets": 1, "seconds": 1.0, "learning_rate": 1.0}
    screen.show(step)
    screen.show({"kind": "event", "message": f"host{ATTACK} has gone"})
    screen.close()
    assert_harmless(out.getvalue())


def test_tables_and_live_displays_are_safe() -> None:
    console, out = on_terminal()
    table = Table()
    table.add_column(ATTACK)
    table.add_row(ATTACK)
    with Live(table, console=console, auto_refresh=False) as live:
        live.refresh()
    console.print(ATTACK, table)
    assert_harmless(out.getvalue())


def test_brackets_are_shown_as_they_are_and_styles_still_work() -> None:
    out = io.StringIO()
    SafeConsole(file=out, width=80).print("[bold]x[/bold] [a/b]")
    assert out.getvalue() == "[bold]x[/bold] [a/b]\n"
    out = io.StringIO()
    SafeConsole(file=out, width=80, force_terminal=True, color_system="standard").print("x", style="red")
    assert out.getvalue() == "\x1b[31mx\x1b[0m\n"


def test_rich_alone_would_pass_them_on() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print("\x1b]0;pwned", markup=False)
    assert "\x1b" in out.getvalue()


def test_nobody_else_writes_to_the_terminal() -> None:
    """Verbs print through SafeConsole and write_out; the other writers speak to programs, or write data."""
    allowed = {
        "console.py",  # the place itself
        "agent/__main__.py",  # JSON to the launcher, over ssh
        "comm/linktest.py",
        "launch/bootstrap.py",
        "launch/dialogue.py",
        "train/worker.py",  # its log
        "recipe/reference.py",  # a page of our own words
        "export/edge_runner.py",  # translations, where Echelon is not installed
    }
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"print|sys\.std(out|err)\.write", ast.unparse(node.func))
    }
    assert found <= allowed
