"""A run on this machine alone: real processes that fail, hang and are stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from echelon.agent import single_host
from echelon.agent.actions import RecordEvent
from echelon.agent.single_host import run_on_this_machine
from echelon.errors import TrainingError
from echelon.launch import local
from echelon.monitor.heartbeat import Heartbeats
from echelon.recipe.schema import RestartSettings
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder
from tests.launch.conftest import Program
from tests.waiting import wait_until

TWO = WorkerRange(2, 2)


@dataclass
class Attempt:
    """Supervises workers and keeps what the user was told."""

    run: RunFolder
    program: list[str]
    workers: WorkerRange = TWO
    max_restarts: int = 2
    hang_s: float = 0.0
    told: list[str] = field(default_factory=list)

    def __call__(self) -> tuple[str, int]:
        restart = RestartSettings(max_restarts=self.max_restarts, window_minutes=60, hang_seconds=self.hang_s)
        with self.run.lock() as lock:
            outcome = run_on_this_machine(
                self.run,
                restart,
                self.workers,
                lock=lock,
                tell=self._tell,
                on_tick=lambda: None,
                program=self.program,
            )
        return outcome.outcome, outcome.restarts

    def _tell(self, news: RecordEvent) -> None:
        if news.kind == "event":
            self.told.append(news.message)


HEART = """
import faulthandler, threading
from echelon.monitor.heartbeat import open_heart
faulthandler.register(signal.SIGUSR1, all_threads=True)
heart = open_heart()
"""
"""A worker that lets itself be watched as `echelon.train.worker` does."""


@pytest.mark.usefixtures("short_grace")
def test_a_worker_that_dies_once_is_named_and_the_group_started_again(
    run: RunFolder, program: Program
) -> None:
    body = """
    started()
    if rank == 1 and not (run / "has-failed").exists():
        (run / "has-failed").write_text("")
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    attempt = Attempt(run, program(body))
    assert attempt() == ("finished", 1)
    first, second = attempt.told
    assert first.startswith("worker 1 on ")
    assert first.endswith(f"failed (signal 9); its log is {run.worker_log(1)}\n  about to die")
    assert second == "restarting (1 of 2) with 2 workers from the newest checkpoint"


SURVIVOR = """
import threading
from echelon.monitor.regrouping import open_line
line = open_line()
is_lost = threading.Event()
line.on_abandon = is_lost.set
def join_again():
    \"\"\"Continue as `echelon.train.worker` does if another worker is lost.\"\"\"
    is_lost.wait()
    line.wait_for_group()
def note():
    with open(run / f"places-{os.getpid()}", "a") as file:
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], "ECHELON_STORE_FD" in os.environ, file=file)
"""


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("fewest", [3, 1])
def test_the_other_workers_are_kept_and_put_into_the_next_group(
    run: RunFolder, program: Program, monkeypatch: pytest.MonkeyPatch, fewest: int
) -> None:
    """The first worker dies. It is started again, unless fewer workers will do."""
    monkeypatch.setattr(single_host, "available_cores", lambda: 3)
    body = """
    note()
    if rank == 0 and not (run / "has-failed").exists():
        while len(list(run.glob("able-*"))) < 2: time.sleep(0.01)
        (run / "has-failed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if rank > 0:
        line.say_able()
        (run / f"able-{rank}").touch()
        join_again()
        note()
    """
    attempt = Attempt(run, program(SURVIVOR + textwrap.dedent(body)), WorkerRange(fewest, 3))
    assert attempt() == ("finished", 1)
    workers = max(fewest, 2)
    assert attempt.told[1] == f"restarting (1 of 2) with {workers} workers; 2 workers kept the weights"
    places = sorted(file.read_text().splitlines() for file in run.path.glob("places-*"))
    if fewest == 1:
        assert places == [["0 3 True"], ["1 3 False", "1 2 False"], ["2 3 False", "0 2 True"]]
    else:
        assert places[:2] == [["0 3 True"], ["0 3 True"]]
        assert places[2:] == [["1 3 False", "1 3 False"], ["2 3 False", "2 3 False"]]


@pytest.mark.usefixtures("short_grace")
def test_those_that_were_kept_are_ended_if_the_run_is_given_up(run: RunFolder, program: Program) -> None:
    body = """
    if rank == 0:
        while not (run / "able").exists(): time.sleep(0.01)
        sys.exit(3)
    line.say_able()
    (run / "able").touch()
    join_again()
    """
    attempt = Attempt(run, program(SURVIVOR + textwrap.dedent(body)), max_restarts=0)
    with pytest.raises(TrainingError, match="exit code 3"):
        attempt()


@pytest.mark.usefixtures("short_grace")
def test_a_worker_that_always_dies_is_given_up(run: RunFolder, program: Program) -> None:
    body = """
    with open(run / f"starts-{rank}", "a") as file: file.write("x")
    print("no way", flush=True)
    sys.exit(3)
    """
    attempt = Attempt(run, program(body), WorkerRange(1, 1))
    with pytest.raises(TrainingError) as caught:
        attempt()
    assert str(caught.value).endswith(
        f"failed (exit code 3) after 2 restarts within 60 minutes; its log is {run.worker_log(0)}\n  no way"
    )
    assert (run.path / "starts-0").read_text() == "xxx"
    assert [message for message in attempt.told if message.startswith("restarting")] == [
        "restarting (1 of 2) with 1 worker from the newest checkpoint",
        "restarting (2 of 2) with 1 worker from the newest checkpoint",
    ]


@pytest.mark.usefixtures("short_grace")
def test_a_users_mistake_is_not_tried_again(run: RunFolder, program: Program) -> None:
    attempt = Attempt(run, program("print('error: no such file', flush=True)\nsys.exit(2)"))
    with pytest.raises(TrainingError, match=r"failed \(exit code 2\); its log is"):
        attempt()
    assert attempt.told == []


@pytest.mark.usefixtures("short_grace")
def test_a_range_goes_on_with_those_that_are_left(
    run: RunFolder, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_host, "available_cores", lambda: 3)
    body = """
    with open(run / f"sizes-{rank}", "a") as file: file.write(os.environ["WORLD_SIZE"])
    if os.environ["WORLD_SIZE"] != "1": sys.exit(1)
    """
    attempt = Attempt(run, program(body), WorkerRange(1, 3))
    assert attempt() == ("finished", 2)
    # The first to fail may be any of them: the others are ended before they have written, on a busy machine.
    assert {size for path in run.path.glob("sizes-*") for size in path.read_text()} == {"3", "2", "1"}


@pytest.mark.parametrize(
    ("hang", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", ", stopped by a signal"),
        ("while True: pass", ""),
        ("threading.Event().wait()", ""),
    ],
    ids=["SIGSTOP", "endless loop", "deadlock"],
)
def test_a_worker_that_hangs_is_named_with_its_stack_and_the_group_started_again(
    run: RunFolder, program: Program, hang: str, cause: str
) -> None:
    """Until its first beat a worker is importing: none hangs before the other waits for it, nor when started again."""
    body = f"""
    def hang():
        heart.beat(7)
        {hang}
    def wait_for_worker_1():
        heart.beat(7)
        with heart.waiting():
            (run / "waiting").touch()
            time.sleep(600)
    if (run / f"second-{{rank}}").exists():
        sys.exit()
    (run / f"second-{{rank}}").touch()
    if rank == 0:
        wait_for_worker_1()
    while not (run / "waiting").exists(): time.sleep(0.01)
    hang()
    """
    attempt = Attempt(run, program(HEART + textwrap.dedent(body)), hang_s=1.0)
    assert attempt() == ("finished", 1)
    assert attempt.told[0].startswith("worker 1 on ")
    progress = rf"failed \(no progress for \d+ seconds at step 7{cause}\); its log is"
    assert re.search(progress, attempt.told[0])
    assert "in hang" in attempt.told[0]
    assert "in hang" in run.worker_log(1).read_text()
    assert "in wait_for_worker_1" in run.worker_log(0).read_text()


def test_a_worker_that_is_slow_but_gets_on_is_left_alone(
    run: RunFolder, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 1 beats for longer than the limit while worker 0 waits for it in silence; time passes as worker 1 says."""
    clock = run.path / "clock"
    clock.write_text("0")
    monkeypatch.setattr(local, "Heartbeats", partial(Heartbeats, clock=lambda: float(clock.read_text())))
    body = """
    heart.beat(7)
    if rank == 1:
        for second in range(25):
            heart.beat()
            (run / "new").write_text(str(second))
            (run / "new").replace(run / "clock")
            time.sleep(0.05)
        (run / "arrived").write_text("")
    with heart.waiting():
        while not (run / "arrived").exists(): time.sleep(0.01)
    """
    attempt = Attempt(run, program(HEART + textwrap.dedent(body)), hang_s=5.0)
    assert attempt() == ("finished", 0)


def test_a_worker_that_has_not_begun_has_time_to_import_its_libraries(
    run: RunFolder, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = program("time.sleep(1)")
    assert Attempt(run, slow, max_restarts=0, hang_s=0.2)() == ("finished", 0)
    monkeypatch.setattr(local, "START_S", 0.5)
    with pytest.raises(TrainingError, match=r"no progress for \d+ seconds at step 0"):
        Attempt(run, program("time.sleep(600)"), max_restarts=0, hang_s=0.2)()


LAUNCHER = """
import sys
from pathlib import Path
from echelon.agent.single_host import run_on_this_machine
from echelon.errors import EchelonError
from echelon.recipe.schema import RestartSettings
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder
run = RunFolder(Path(sys.argv[1]))
def tell(news):
    if news.kind == "event":
        print(news.message.splitlines()[0], flush=True)
def on_tick():
    pass
with run.lock() as lock:
    try:
        one = WorkerRange(1, 1)
        how = {"lock": lock, "tell": tell, "on_tick": on_tick, "program": sys.argv[2:]}
        outcome = run_on_this_machine(run, RestartSettings(), one, **how)
        print(outcome.outcome, outcome.restarts)
    except EchelonError as error:
        print(type(error).__name__, error)
"""


@contextlib.contextmanager
def launcher(run: RunFolder, program: list[str], ready: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LAUNCHER, str(run.path), *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            while not ready.exists():
                assert process.poll() is None
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def test_ctrl_c_after_a_restart_makes_the_workers_save_and_leave(run: RunFolder, program: Program) -> None:
    body = """
    signal.signal(signal.SIGTERM, save_and_leave)
    if not (run / "has-failed").exists():
        (run / "has-failed").write_text("")
        sys.exit(1)
    (run / "ready").write_text("")
    time.sleep(600)
    """
    with launcher(run, program(body), run.path / "ready") as process:
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]
    assert output.splitlines()[-1] == "interrupted 1"
    assert run.worker_log(0).read_text() == "saved\n"


def test_a_worker_that_fails_while_it_saves_is_not_started_again(run: RunFolder, program: Program) -> None:
    body = """
    def fail(number, frame):
        os._exit(1)
    signal.signal(signal.SIGTERM, fail)
    (run / "ready").write_text("")
    time.sleep(600)
    """
    with launcher(run, program(body), run.path / "ready") as process:
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]
    assert output.startswith("TrainingError worker 0 on ")


def test_a_second_ctrl_c_kills_the_workers(run: RunFolder, program: Program) -> None:
    body = """
    def linger(number, frame):
        (run / "asked").write_text("")
    signal.signal(signal.SIGTERM, linger)
    (run / "ready").write_text("")
    while True: time.sleep(600)
    """
    with launcher(run, program(body), run.path / "ready") as process:
        process.send_signal(signal.SIGINT)
        wait_until((run.path / "asked").exists)
        while process.poll() is None:  # a signal within a second of the first counts as the same one
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        output = process.communicate()[0]
    assert output.startswith("TrainingError the workers were killed before they had saved;")


def test_a_stop_between_two_groups_starts_no_other(run: RunFolder, program: Program) -> None:
    """The signal comes while the user is being told of the failure, when no worker is there to pass it on to."""
    body = """
    with open(run / "starts", "a") as file: file.write("x")
    sys.exit(1)
    """

    def tell(news: RecordEvent) -> None:
        if news.message.startswith("restarting"):
            os.kill(os.getpid(), signal.SIGTERM)

    with (
        run.lock() as lock,
        pytest.raises(TrainingError, match="stopped while the workers were being restarted"),
    ):
        run_on_this_machine(
            run,
            RestartSettings(),
            WorkerRange(1, 1),
            lock=lock,
            tell=tell,
            on_tick=lambda: None,
            program=program(body),
        )
    assert (run.path / "starts").read_text() == "x"
