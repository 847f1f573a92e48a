"""The tutorial's commands, run in order as its reader would, on real hosts: they work, and say what it shows.

In docs/tutorial-many-hosts.md a block `sh` is run, and the block `text` after it is what it must print: numbers may
differ, and `...` stands for anything. `sh second terminal` is left running; a block `text second terminal` must then
come there, followed by a Ctrl-C where its kind says so. `text for example` shows what the model said on one machine,
and is not compared.

What differs from what a reader types: the lab's name, so that labs do not collide, and in "Your own hosts" alpha and
beta are the hosts of a second lab, and their keys are shown and not copied.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from echelon.errors import UserError
from echelon.lab.lab import Lab
from tests.lab.conftest import MakeLab

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HOME = "/home/you/echelon"
"""The checkout in what the tutorial shows."""
PATIENCE_S = 120
OWN_HOSTS = "Your own hosts"


@dataclass(frozen=True)
class Block:
    """A fenced block of the tutorial, and the chapter it is in."""

    chapter: str
    kind: str
    text: str


def read_blocks(page: str) -> list[Block]:
    """All blocks that have a kind, in order."""
    found, chapter = [], ""
    for heading, kind, text in re.findall(r"^## ([^\n]*)$|^```(\w[\w ,-]*)\n(.*?)^```$", page, re.M | re.S):
        chapter = heading or chapter
        if kind:
            found.append(Block(chapter, kind, text))
    return found


def render_pattern(shown: str) -> re.Pattern[str]:
    """What an output must contain to be what was shown: the same lines, with any numbers, sizes and times."""
    lines = []
    for line in shown.splitlines():
        pattern = r"(?:.*\n)*?" if line == "..." else _render_line(line) + r" *\n"
        lines.append(pattern)
    return re.compile("^" + "".join(lines), re.M)


def _render_line(line: str) -> str:
    pattern = re.escape(line)
    pattern = pattern.replace(re.escape("..."), ".*").replace("─", "").replace(r"\+", "[+-]")
    pattern = re.sub(r"(?<![A-Za-z\d])\d[\d,:]*(\\\.\d+)*(\\ s\b)?", r"(?:[\\d,:.]+(?: s\\b)?|\\?)", pattern)
    pattern = re.sub(r"\b[kMG]B\b", "[kMG]?B", pattern)
    return re.sub(r"(\\ )+", " +", pattern) + "─*"


class Reader:
    """Follows the tutorial in a folder of its own, with a lab of its own name."""

    def __init__(self, folder: Path, lab: str) -> None:
        self.folder = folder
        self._lab = lab
        self._before: list[str] = [_call_lab_by(lab)]
        """What the terminal remembers: functions, exports."""
        self._last = ""
        self._second: subprocess.Popen[str] | None = None
        self._second_output = folder / "second-terminal.txt"
        self._second_read = 0
        self._started: list[subprocess.Popen[str]] = []

    def do(self, block: Block) -> None:
        match block.kind:
            case "sh":
                self._last = self._run(block.text)
            case "text":
                self._compare(render_pattern(self._show(block.text)), self._last)
            case "sh second terminal":
                self.leave_second_terminal()
                self._open_second_terminal(block.text)
            case "text second terminal" | "text second terminal, then Ctrl-C":
                self._wait_for(render_pattern(self._show(block.text)))
                if block.kind.endswith("Ctrl-C"):
                    self.leave_second_terminal()
            case "text for example":
                assert self._last.count("\n") == block.text.count("\n")
            case _:
                raise AssertionError(f"blocks of the kind {block.kind!r} are not known")

    def use_own_hosts(self, lab: Lab) -> None:
        """A new terminal, in which alpha and beta are the hosts of a lab."""
        config = self.folder / "own_ssh_config"
        config.write_text(
            re.sub(r"\bhost1\b", "alpha", re.sub(r"\bhost2\b", "beta", lab.ssh_config.read_text()))
        )
        (self.folder / "home" / ".ssh").mkdir(parents=True)
        file = shlex.quote(str(config))
        self._before = [
            self._before[1],
            f"export ECHELON_SSH_CONFIG={file}",
            f'ssh() {{ command ssh -F {file} "$@"; }}',
            f'ssh-copy-id() {{ command ssh-copy-id -n -F {file} "$@"; }}',
        ]

    def leave_second_terminal(self) -> None:
        """Press Ctrl-C there, where something still runs."""
        if self._second is None:
            return
        if self._second.poll() is None:
            os.killpg(self._second.pid, signal.SIGINT)
        assert self._second.wait(timeout=60) == 0, self._second_output.read_text()
        self._second = None

    def end(self) -> None:
        """End what a tutorial that broke off has left running."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(self.folder):
                    process.kill()
        for started in self._started:
            with started:
                started.kill()

    def _show(self, text: str) -> str:
        return text.replace(HOME, str(self.folder)).replace("the lab 'lab'", f"the lab '{self._lab}'")

    def _run(self, commands: str) -> str:
        commands = commands.replace(" --install", "")  # the lab's hosts have no way to a package index
        process = self._start(commands, subprocess.PIPE)
        output, _ = process.communicate()
        assert process.returncode == 0, f"{commands}\n{output}"
        self._before += [line for line in commands.splitlines() if line.startswith(("export ", "source "))]
        return output

    def _start(self, commands: str, out: int) -> subprocess.Popen[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("ECHELON_SSH_CONFIG", "ECHELON_CACHE", "OMP_NUM_THREADS")
        }
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", "\n".join([*self._before, commands])],
            cwd=self.folder,
            env={**environment, "HOME": str(self.folder / "home"), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def _compare(self, pattern: re.Pattern[str], output: str) -> None:
        assert pattern.search(output), f"not as shown:\n{output}\nshould match\n{pattern.pattern}"

    def _open_second_terminal(self, commands: str) -> None:
        with open(self._second_output, "w") as file:
            self._second = self._start(commands, file.fileno())
        self._second_read = 0

    def _wait_for(self, pattern: re.Pattern[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            output = self._second_output.read_text()
            if found := pattern.search(output, self._second_read):
                self._second_read = found.end()
                return
            time.sleep(0.2)
        self._compare(pattern, output[self._second_read :])


def _call_lab_by(name: str) -> str:
    """A shell function `echelon` whose lab has a name of its own, and the folder `lab` all the same."""
    return f"""
        echelon() {{
            if [ "$1 $2" = "lab up" ]; then command echelon "$@" --name {name} --folder lab
            elif [ "$1" = lab ]; then command echelon "$@" --name {name}
            else command echelon "$@"; fi
        }}"""


@pytest.fixture
def reader(lab_machine: None, tmp_path: Path) -> Iterator[Reader]:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    here = shlex.quote(str(Path(sys.executable).parent))
    (programs / "activate").write_text(f"export PATH={here}:$PATH\n")
    name = f"t{os.getpid()}t"
    reader = Reader(tmp_path, name)
    try:
        yield reader
    finally:
        reader.end()
        with contextlib.suppress(UserError):
            Lab.find(name).down()


@pytest.mark.long
def test_the_tutorial_is_true(reader: Reader, make_lab: MakeLab) -> None:
    blocks = read_blocks((ROOT / "docs" / "tutorial-many-hosts.md").read_text())
    own = False
    for block in blocks:
        if block.chapter == OWN_HOSTS and not own:
            own = True
            reader.use_own_hosts(make_lab(hosts=2))
        began = time.monotonic()
        reader.do(block)
        print(f"{time.monotonic() - began:6.1f} s  {block.chapter}: {block.text.splitlines()[0]}", flush=True)
    assert own
    reader.leave_second_terminal()


def test_the_readmes_commands_for_many_hosts_run(reader: Reader) -> None:
    (commands,) = re.findall(
        r"^## Many hosts\n.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    reader.do(Block("", "sh", "source .venv/bin/activate"))
    for command in commands.splitlines():
        short = " --set train.steps=20" if " train " in command else ""
        reader.do(Block("", "sh", command + short))


def test_what_is_shown_is_compared_line_by_line() -> None:
    shown = render_pattern("host1 is here, 24.0 GB\n...\nstep 30  loss 5.671  ETA 35 s\n")
    assert shown.search("so\nhost1 is here, 1.5 MB\na\nb\nstep 1,200 loss 0.3  ETA 1:02:03\nend\n")
    assert not shown.search("host2 is here, 24.0 GB\nstep 30  loss 5.671  ETA 35 s\n")
    assert not shown.search("host1 is here, 24.0 GB\nstep 30  loss nan  ETA 35 s\n")
    assert not render_pattern("one\ntwo\n").search("one\nbetween\ntwo\n")
