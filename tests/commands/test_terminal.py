"""Real terminals: without colour, without cursor movement, narrow, and with keys pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from echelon.recipe.shipped import find_recipe
from tests.explain.made_runs import MadeRun
from tests.waiting import wait_until

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:[349][0-7])(?:;\d+)*m")


def on_terminal(folder: Path, *words: str, columns: int = 80, **settings: str) -> bytes:
    """What `echelon` writes on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {
        key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    shown = bytearray()
    with subprocess.Popen(
        [sys.executable, "-m", "echelon", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**environment, "TERM": "xterm-256color", **settings},
        start_new_session=True,
    ):
        os.close(theirs)
        while part := _read(ours):
            shown += part
    os.close(ours)
    return bytes(shown)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_an_error_is_coloured_unless_the_terminal_or_the_user_has_no_colour(tmp_path: Path) -> None:
    words = ("describe", "missing.toml")
    assert COLOUR.search(on_terminal(tmp_path, *words))
    assert not COLOUR.search(on_terminal(tmp_path, *words, NO_COLOR="1"))
    assert b"\x1b" not in on_terminal(tmp_path, *words, TERM="dumb")


def test_help_is_plain_on_terminals_without_colour(tmp_path: Path) -> None:
    assert b"\x1b[" in on_terminal(tmp_path, "--help")
    assert b"\x1b" not in on_terminal(tmp_path, "--help", NO_COLOR="1")
    assert b"\x1b" not in on_terminal(tmp_path, "--help", TERM="dumb")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("runs",), "a-run-with-a-long-name"),
        (
            ("plan", str(find_recipe("demo")), "--on", "4xg4dn.2xlarge", "--on", "2x(2xV100, 1gbit)"),
            "4xg4dn.2xlarge",
        ),
    ],
)
def test_tables_fit_a_narrow_terminal(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    MadeRun().write(tmp_path / "runs" / "a-run-with-a-long-name")
    shown = on_terminal(tmp_path, *words, columns=50).decode()
    assert says in shown
    assert max(map(len, shown.splitlines())) <= 50


@pytest.mark.skipif(shutil.which("tmux") is None, reason="apt-get install tmux")
def test_keys_leave_no_ghosts_on_a_narrow_dashboard_and_q_leaves_it(tmp_path: Path) -> None:
    run = MadeRun(steps=30).write(tmp_path / "run", is_ended=False)
    socket = str(tmp_path / "tmux")

    def tmux(*words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", socket, *words], check=False, capture_output=True, text=True
        ).stdout

    def shows(pattern: str) -> Callable[[], bool]:
        return lambda: re.search(pattern, tmux("capture-pane", "-p", "-t", "watch")) is not None

    watching = shlex.join([sys.executable, "-m", "echelon", "watch", str(run.path)])
    with run.lock():
        try:
            tmux(
                "new-session",
                "-d",
                "-s",
                "watch",
                "-x",
                "50",
                "-y",
                "40",
                f"{watching}; echo left with $?; exec cat",
            )
            wait_until(shows("q leaves"))
            tmux("send-keys", "-t", "watch", "x", "Enter", "y", "Enter")
            tmux("resize-window", "-t", "watch", "-x", "46")
            tmux("send-keys", "-t", "watch", "q")
            wait_until(shows("left with 0"))
            screen = tmux("capture-pane", "-p", "-t", "watch")
        finally:
            tmux("kill-server")
    assert screen.count("╭") == screen.count("╰") == 1
    assert not re.search(r"^[xy]$", screen, re.MULTILINE)
