"""Restarts: what is decided, with a clock of our own; and what is done, with real processes that fail and hang."""

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

from echelon.errors import TrainingError, WorkerError
from echelon.launch import local
from echelon.launch.local import LocalJob, StopRequests
from echelon.launch.supervise import Failure, GiveUp, Restart, RestartPolicy, Supervised, supervise
from echelon.monitor.heartbeat import Heartbeats
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder
from tests.launch.conftest import Program

TWO = WorkerRange(2, 2)
POLICY = RestartPolicy(max_restarts=2, window_s=60.0, workers=TWO)


def failures(*times: float, workers: int = 2) -> list[Failure]:
    return [Failure(time_s, workers, is_final=False) for time_s in times]


def test_failures_are_followed_by_restarts_up_to_the_bound() -> None:
    assert POLICY.decide(failures(5.0), 5.0) == Restart(1, 2)
    assert POLICY.decide(failures(5.0, 6.0), 6.0) == Restart(2, 2)
    assert POLICY.decide(failures(5.0, 6.0, 7.0), 7.0) == GiveUp(2)


def test_restarts_before_the_window_do_not_count() -> None:
    assert POLICY.decide(failures(5.0, 6.0, 64.9), 64.9) == GiveUp(2)
    assert POLICY.decide(failures(5.0, 6.0, 65.0), 65.0) == Restart(2, 2)
    assert POLICY.decide(failures(5.0, 6.0, 7.0, 1000.0), 1000.0) == Restart(1, 2)


def test_no_restarts_means_none() -> None:
    policy = RestartPolicy(0, 60.0, WorkerRange(2, 2))
    assert policy.decide(failures(5.0), 5.0) == GiveUp(0)


def test_a_final_failure_is_not_tried_again() -> None:
    final = Failure(6.0, 2, is_final=True)
    assert POLICY.decide([final], 6.0) == GiveUp(0)
    assert POLICY.decide([*failures(5.0), final], 6.0) == GiveUp(1)


def test_a_range_loses_a_worker_a_failure_down_to_its_fewest() -> None:
    policy = RestartPolicy(9, 60.0, WorkerRange(2, 4))
    assert [policy.decide(failures(5.0, workers=workers), 5.0) for workers in (4, 3, 2)] == [
        Restart(1, 3),
        Restart(1, 2),
        Restart(1, 2),
    ]


@dataclass
class Attempt:
    """Supervises workers and keeps what the user was told."""

    run: RunFolder
    program: list[str]
    workers: WorkerRange = TWO
    max_restarts: int = 2
    hang_s: float = 0.0
    told: list[str] = field(default_factory=list)

    def __call__(self) -> Supervised:
        def tell(message: str, **_: object) -> None:
            self.told.append(message)

        with self.run.lock() as lock:

            def start(workers: int, stops: StopRequests) -> LocalJob:
                assert self.run.is_locked()
                return LocalJob(
                    self.run, workers, lock, program=self.program, stops=stops, hang_s=self.hang_s
                )

            policy = RestartPolicy(self.max_restarts, 3600.0, self.workers)
            return supervise(start, self.workers.most, policy, tell, lambda: None)


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
    assert attempt() == Supervised(is_finished=True, restarts=1)
    first, second = attempt.told
    assert first.startswith("worker 1 on ")
    assert first.endswith(f"failed (signal 9); its log is {run.worker_log(1)}\n  about to die")
    assert second == "restarting (1 of 2) with 2 workers from the newest checkpoint"


@pytest.mark.usefixtures("short_grace")
def test_a_worker_that_always_dies_is_given_up(run: RunFolder, program: Program) -> None:
    body = """
    with open(run / f"starts-{rank}", "a") as file: file.write("x")
    print("no way", flush=True)
    sys.exit(3)
    """
    attempt = Attempt(run, program(body), WorkerRange(1, 1))
    with pytest.raises(WorkerError) as caught:
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
    with pytest.raises(WorkerError, match=r"failed \(exit code 2\); its log is"):
        attempt()
    assert attempt.told == []


@pytest.mark.usefixtures("short_grace")
def test_a_range_goes_on_with_those_that_are_left(run: RunFolder, program: Program) -> None:
    body = """
    with open(run / f"sizes-{rank}", "a") as file: file.write(os.environ["WORLD_SIZE"])
    if os.environ["WORLD_SIZE"] != "1": sys.exit(1)
    """
    attempt = Attempt(run, program(body), WorkerRange(1, 3))
    assert attempt() == Supervised(is_finished=True, restarts=2)
    assert (run.path / "sizes-0").read_text() == "321"


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
    assert attempt() == Supervised(is_finished=True, restarts=1)
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
    assert attempt() == Supervised(is_finished=True, restarts=0)


def test_a_worker_that_has_not_begun_has_time_to_import_its_libraries(
    run: RunFolder, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = program("time.sleep(1)")
    assert Attempt(run, slow, max_restarts=0, hang_s=0.2)() == Supervised(is_finished=True, restarts=0)
    monkeypatch.setattr(local, "START_S", 0.5)
    with pytest.raises(WorkerError, match=r"no progress for \d+ seconds at step 0"):
        Attempt(run, program("time.sleep(600)"), max_restarts=0, hang_s=0.2)()


LAUNCHER = """
import sys
from pathlib import Path
from echelon.errors import EchelonError
from echelon.launch.local import LocalJob
from echelon.launch.supervise import RestartPolicy, supervise
from echelon.monitor.heartbeat import Heartbeats
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder
run = RunFolder(Path(sys.argv[1]))
with run.lock() as lock:
    def start(workers, stops):
        return LocalJob(run, workers, lock, program=sys.argv[2:], stops=stops)
    def tell(message, **values):
        print(message.splitlines()[0], flush=True)
    try:
        policy = RestartPolicy(3, 3600.0, WorkerRange(1, 1))
        print(supervise(start, 1, policy, tell, lambda: None))
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
    assert output.splitlines()[-1] == "Supervised(is_finished=False, restarts=1)"
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
    assert output.startswith("WorkerError worker 0 on ")


def test_a_stop_between_two_groups_starts_no_other(run: RunFolder, program: Program) -> None:
    """The signal comes while the user is being told of the failure, when no worker is there to pass it on to."""
    starts = []

    def tell(message: str, **_: object) -> None:
        if message.startswith("restarting"):
            os.kill(os.getpid(), signal.SIGTERM)

    with run.lock() as lock:

        def start(workers: int, stops: StopRequests) -> LocalJob:
            starts.append(workers)
            return LocalJob(run, workers, lock, program=program("sys.exit(1)"), stops=stops)

        with pytest.raises(TrainingError, match="stopped while the workers were being restarted"):
            supervise(start, 1, RestartPolicy(3, 60.0, WorkerRange(1, 1)), tell, lambda: None)
    assert starts == [1]
