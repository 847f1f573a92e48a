"""What a hostile run folder or host says is shown, and never acted on by the terminal."""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table

from echelon import cli
from echelon.commands import translate
from echelon.commands.terminal_dashboard import Dashboard
from echelon.console import SafeConsole
from echelon.inference.decoding import Alternative, Translation
from echelon.launch.ssh import Remote
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


def test_a_hostile_model_s_translations_in_json_are_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Translation((Alternative(ATTACK, 0.0),))]
    monkeypatch.setattr(translate, "translate", lambda *_: found)
    (tmp_path / "lines").write_text("x\n")
    monkeypatch.setattr(
        sys, "argv", ["echelon", "translate", "run", "--input", str(tmp_path / "lines"), "--json"]
    )
    with pytest.raises(SystemExit):
        cli.main()
    output = capsys.readouterr().out
    assert json.loads(output) == {"translations": [ATTACK]}
    assert not HARMFUL.search(output)


def on_terminal() -> tuple[SafeConsole, io.StringIO]:
    out = io.StringIO()
    return SafeConsole(file=out, width=400, force_terminal=True, color_system=None), out


def assert_harmless(output: str) -> None:
    """Rich itself moves the cursor of a live display and switches to the alternate screen, and nothing else."""
    own = re.compile(r"\x1b\[(\?(25|1049)[lh]|\d*[AK]|2K|H)|\r")
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


def test_what_is_logged_or_warned_of_is_safe() -> None:
    """The server's log of a fault quotes the request; libraries quote the files that they warn of."""
    program = (
        "import logging, sys, warnings; from echelon import cli\n"
        "try: cli.main()\n"
        "except SystemExit: logging.getLogger('x').error('%s', sys.argv[2]); warnings.warn(sys.argv[2])"
    )
    command = [sys.executable, "-c", program, "--version", ATTACK]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert said.count("pwned") == 2
    assert not HARMFUL.search(said)


def test_nobody_else_writes_to_the_terminal() -> None:
    """Verbs print through SafeConsole and write_out; the other writers speak to programs, or write data."""
    allowed = {
        "console.py",  # the place itself
        "agent/__main__.py",  # JSON to the launcher, over ssh
        "comm/linktest.py",
        "launch/bootstrap.py",
        "launch/dialogue.py",
        "train/task_trial.py",  # numbers, to `doctor --task`
        "train/worker.py",  # its log
        "recipe/reference.py",  # a page of our own words
        "export/edge_runner.py",  # translations, where Echelon is not installed
    }
    writers = r"print|rich\.print|(typer|click)\.s?echo|sys\.(__)?std(out|err)(__)?(\.buffer)?\.write"
    found = {place for place, call in calls() if re.fullmatch(writers, ast.unparse(call.func))}
    assert found - {"cli/__init__.py"} <= allowed
    in_cli = [
        call for place, call in calls() if place == "cli/__init__.py" and "echo" in ast.unparse(call.func)
    ]
    assert [ast.unparse(call) for call in in_cli] == ["typer.echo(f'echelon {echelon.__version__}')"]


@functools.cache
def calls() -> list[tuple[str, ast.Call]]:
    return [
        (str(path.relative_to(SOURCE)), node)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]


def test_every_console_is_the_safe_one_and_nothing_uses_rich_s_own() -> None:
    """Progress bars and live displays write to a console of Rich's own if they are not given one."""
    consoles = {place for place, call in calls() if ast.unparse(call.func) == "Console"}
    assert consoles == {"commands/readiness.py"}, "a table as text, which SafeConsole prints"
    shown = [
        (place, {keyword.arg for keyword in call.keywords} | {"console" for _ in call.args[1:]})
        for place, call in calls()
        if ast.unparse(call.func) in ("Live", "Progress") and "data/" not in place
    ]
    assert len(shown) >= 3
    assert [place for place, given in shown if "console" not in given] == []


def test_no_program_inherits_the_terminal() -> None:
    """What a program of a host or of the system writes is captured, kept in a file, or thrown away."""
    started = [
        (place, {keyword.arg for keyword in call.keywords})
        for place, call in calls()
        if re.fullmatch(r"subprocess\.(run|Popen|call|check_call|check_output)", ast.unparse(call.func))
    ]
    assert len(started) > 20
    unbound = [place for place, given in started if not given & {"capture_output", "stdout"}]
    unheard = [place for place, given in started if not given & {"capture_output", "stderr"}]
    assert (unbound, unheard) == ([], ["agent/firewall.py"]), "nft writes into the agent's log"


def test_a_host_s_stderr_does_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Remote("localhost").start(["sh", "-c", "printf '\\033[2Jpwned' | tee /dev/stderr"]) as process:
        assert process.wait() == 0
    assert capfd.readouterr() == ("", "")
