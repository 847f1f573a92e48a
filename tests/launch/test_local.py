"""Workers on this machine: real processes that finish, fail, hang and are killed."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

import echelon
from echelon.errors import WorkerError
from echelon.launch.local import LocalJob, listen
from echelon.launch.placement import WORKER_PROGRAM, Placement
from echelon.launch.probe import LINK_PROGRAM
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from tests.launch.conftest import Program
from tests.waiting import NEVER_S, wait_until


def wait_for(run: RunFolder, workers: int, program: list[str]) -> bool:
    with run.lock() as lock:
        return LocalJob(run, workers, lock, program=program).wait(lambda: None)


def pids(run: RunFolder) -> list[int]:
    return [int(path.read_text()) for path in sorted(run.path.glob("pid-*"))]


@pytest.mark.parametrize("program", [WORKER_PROGRAM, LINK_PROGRAM])
def test_no_code_is_taken_from_the_current_folder(program: Sequence[str], tmp_path: Path) -> None:
    """Which may have come with somebody else's recipe; `python -m` looks for modules there first."""
    for name in ("echelon", "torch", "json"):
        (tmp_path / f"{name}.py").write_text("open('it-ran', 'w')")
    subprocess.run([*program, "--help"], cwd=tmp_path, capture_output=True, check=False, timeout=100)
    assert not (tmp_path / "it-ran").exists()


def test_every_python_that_is_started_here_leaves_the_current_folder_alone() -> None:
    sources = Path(echelon.__file__).parent.rglob("*.py")
    started = [
        (source.name, ast.unparse(found))
        for source in sources
        for found in ast.walk(ast.parse(source.read_text()))
        if isinstance(found, ast.List | ast.Tuple) and "sys.executable" in map(ast.unparse, found.elts)
    ]
    assert len(started) > 8
    others = {name for name, command in started if not re.search(r"sys\.executable, '(-P|-IS)'", command)}
    assert others == {
        "bootstrap.py",  # on a host, in the home folder
        "session.py",  # a list of places
        "wheel.py",  # in a folder of its own
    }


def test_workers_beat_in_their_own_place_and_need_no_lock(run: RunFolder, program: Program) -> None:
    body = """
    from echelon.monitor.heartbeat import open_heart
    heart = open_heart()
    heart.beat(10 + rank)
    while not (run / "seen").exists(): time.sleep(0.01)
    """
    place = Placement(3, 1, first_local_rank=1, local_size=3)
    job = LocalJob(run, 2, None, program=program(body), place=place)

    def look() -> None:
        """By rank in the whole group, whatever the place in the memory."""
        if {rank: pulse.step for rank, pulse in job.pulses().items()} == {1: 11, 2: 12}:
            (run.path / "seen").touch()

    assert job.watch(look)


def test_workers_whose_group_is_over_are_kept_though_none_of_them_failed(
    run: RunFolder, program: Program
) -> None:
    """As if another host were lost, which they cannot notice by themselves."""
    body = """
    import threading
    from echelon.monitor.regrouping import open_line
    line = open_line()
    is_lost = threading.Event()
    line.on_abandon = is_lost.set
    if rank == 0: line.say_able()
    (run / f"able-{rank}").touch()
    is_lost.wait()
    line.wait_for_group()
    """
    job = LocalJob(run, 2, None, program=program(body), keeps_survivors=True)

    def release() -> None:
        if len(list(run.path.glob("able-*"))) == 2:
            job.release()

    with pytest.raises(WorkerError):
        job.watch(release)
    assert job.survivors is not None
    assert len(job.survivors) == 1, "the other one cannot continue"
    second = LocalJob(run, 1, None, program=program(body), keeps_survivors=True, survivors=job.survivors)
    assert second.watch(lambda: None)


def test_when_a_worker_failed_is_known(run: RunFolder, program: Program) -> None:
    body = """
    started()
    fail_after(1)
    """
    before = time.time() - 1
    job = LocalJob(run, 2, None, program=program(body))
    with pytest.raises(WorkerError):
        job.watch(lambda: None)
    assert before < job.failed_at < time.time()
    job = LocalJob(run, 1, None, program=program("os.kill(os.getpid(), signal.SIGKILL)"))
    with pytest.raises(WorkerError):
        job.watch(lambda: None)
    assert job.failed_at == 0.0, "it died without a word"


def test_a_hosts_workers_log_and_fail_under_their_rank_in_the_whole_group(
    run: RunFolder, program: Program
) -> None:
    body = "print('bad', os.environ['RANK'], 'ECHELON_STORE_FD' in os.environ); sys.exit(rank == 3)"
    with run.lock() as lock:
        place, listener = Placement(4, first_rank=2), listen("127.0.0.1")
        job = LocalJob(run, 2, lock, program=program(body), place=place, listener=listener)
        with pytest.raises(WorkerError, match="worker 3 on") as caught:
            job.wait(lambda: None)
    assert caught.value.last_lines == ["bad 3 False"]
    assert run.worker_log(2).read_text() == "bad 2 True\n"


def test_workers_that_finish_are_a_finished_job(run: RunFolder, program: Program) -> None:
    assert wait_for(run, 2, program("print('worker', rank, os.environ['WORLD_SIZE'])")) is True
    assert run.worker_log(0).read_text() == "worker 0 2\n"
    assert run.worker_log(1).read_text() == "worker 1 2\n"


def test_on_poll_is_called_once_more_after_the_last_worker_has_ended(
    run: RunFolder, program: Program
) -> None:
    seen: list[bool] = []
    with run.lock() as lock:
        job = LocalJob(run, 1, lock, program=program("(run / 'done').write_text('')"))
        job.wait(lambda: seen.append((run.path / "done").exists()))
    assert seen[-1]


@pytest.mark.usefixtures("short_grace")
def test_a_failing_worker_ends_the_others_and_its_last_lines_are_shown(
    run: RunFolder, program: Program
) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    started()
    if rank == 1:
        for number in range(40): print("line", number, flush=True)
        sys.exit(3)
    time.sleep(600)
    """
    with pytest.raises(WorkerError) as caught:
        wait_for(run, 3, program(body))
    error = caught.value
    assert (error.rank, error.exit_code, error.log) == (1, 3, run.worker_log(1))
    lines = "".join(f"\n  line {number}" for number in range(28, 40))
    assert str(error) == (
        f"worker 1 on {socket.gethostname()} failed (exit code 3); its log is {run.worker_log(1)}{lines}"
    )
    assert len(pids(run)) == 3


def test_a_failed_workers_own_error_is_in_the_first_line(run: RunFolder, program: Program) -> None:
    body = """
    from echelon.monitor.records import RecordWriter
    from echelon.runfolder import RunFolder
    records = RecordWriter(RunFolder(run).worker_records(rank))
    records.write("failure", message="RuntimeError: you tried to allocate 25601280016 bytes\\nsecond line")
    sys.exit(1)
    """
    with pytest.raises(WorkerError) as caught:
        wait_for(run, 1, program(body))
    assert str(caught.value).splitlines()[0] == (
        f"worker 0 on {socket.gethostname()} failed (exit code 1): RuntimeError: you tried to allocate 25601280016 "
        f"bytes; its log is {run.worker_log(0)}"
    )


def test_a_worker_that_is_killed_from_outside_is_the_one_to_blame(run: RunFolder, program: Program) -> None:
    """The others fail because of it, and say so in their records, as real workers do."""
    body = """
    started()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fail_after(0)
    """
    with pytest.raises(WorkerError, match=r"worker 1 on .* failed \(signal 9\)"):
        wait_for(run, 2, program(body))


def test_the_first_worker_to_fail_is_the_one_to_blame(run: RunFolder, program: Program) -> None:
    body = """
    started()
    fail_after(2)
    """
    with pytest.raises(WorkerError) as caught:
        wait_for(run, 3, program(body))
    assert caught.value.rank == 2


def test_failures_and_log_lines_of_earlier_starts_do_not_count(run: RunFolder, program: Program) -> None:
    writer = RecordWriter(run.worker_records(0))
    writer.write("failure", message="long ago")
    writer.close()
    run.worker_log(1).write_text("old line\n")
    body = """
    started()
    fail_after(1)
    """
    with pytest.raises(WorkerError) as caught:
        wait_for(run, 2, program(body))
    assert caught.value.rank == 1
    assert "old line" not in str(caught.value)


def test_what_a_worker_started_ends_with_it(run: RunFolder, program: Program) -> None:
    body = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (run / f"child-{rank}").write_text(str(child.pid))
    os._exit(0)
    """
    assert wait_for(run, 1, program(body))
    child = int((run.path / "child-0").read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie")


def test_workers_are_ended_when_another_cannot_be_started(run: RunFolder, program: Program) -> None:
    run.worker_log(1).mkdir()
    with run.lock() as lock, pytest.raises(IsADirectoryError):
        LocalJob(run, 2, lock, program=program("time.sleep(600)"))


def test_workers_save_and_leave_when_watching_them_fails(run: RunFolder, program: Program) -> None:
    body = """
    signal.signal(signal.SIGTERM, save_and_leave)
    started()
    time.sleep(600)
    """

    def fail() -> None:
        if len(pids(run)) == 2:
            raise BrokenPipeError

    with run.lock() as lock, pytest.raises(BrokenPipeError):
        LocalJob(run, 2, lock, program=program(body)).wait(fail)
    assert run.worker_log(0).read_text() == "saved\n"


def test_an_interrupted_worker_makes_an_interrupted_job(run: RunFolder, program: Program) -> None:
    assert wait_for(run, 2, program("sys.exit(75 if rank else 0)")) is False


def test_the_store_listens_on_loopback_only_and_only_worker_0_has_it(
    run: RunFolder, program: Program
) -> None:
    body = """
    import socket
    if rank == 0:
        listener = socket.socket(fileno=int(os.environ["ECHELON_STORE_FD"]))
        print(listener.getsockname() == ("127.0.0.1", int(os.environ["MASTER_PORT"])))
        (run / "ready").write_text("")
        listener.accept()[0].sendall(b"hello")
    else:
        print("ECHELON_STORE_FD" in os.environ)
        print(socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))).recv(5))
    """
    assert wait_for(run, 2, program(body))
    assert run.worker_log(0).read_text() == "True\n"
    assert run.worker_log(1).read_text() == "False\nb'hello'\n"


def test_workers_keep_the_lock_of_the_run(run: RunFolder, program: Program) -> None:
    with run.lock() as lock:
        job = LocalJob(run, 1, lock, program=program("time.sleep(600)"))
    assert run.is_locked()
    job.stop()
    assert job.wait(lambda: None) is False
    assert not run.is_locked()


LAUNCHER = """
import sys
from pathlib import Path
from echelon.errors import EchelonError
from echelon.launch import stop_requests
from echelon.launch.local import LocalJob
from echelon.runfolder import RunFolder
run, stop_requests._SAME_STOP_S = RunFolder(Path(sys.argv[1])), float(sys.argv[2])
with run.lock() as lock:
    try:
        print("finished", LocalJob(run, 2, lock, program=sys.argv[3:]).wait(lambda: None))
    except EchelonError as error:
        print(type(error).__name__, error)
"""


@contextlib.contextmanager
def launcher(
    run: RunFolder, program: list[str], same_stop_s: float = NEVER_S
) -> Iterator[subprocess.Popen[str]]:
    """A launcher process of its own, with both its workers running; signals within `same_stop_s` are one."""
    command = [sys.executable, "-c", LAUNCHER, str(run.path), str(same_stop_s), *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            while not (run.path / "ready-0").exists() or not (run.path / "ready-1").exists():
                assert process.poll() is None
                time.sleep(0.01)
            yield process
        finally:
            process.kill()
            left = [pid for pid in pids(run) if psutil.pid_exists(pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_makes_the_workers_save_and_leave(
    run: RunFolder, program: Program, number: signal.Signals
) -> None:
    body = """
    signal.signal(signal.SIGTERM, save_and_leave)
    started()
    (run / f"ready-{rank}").write_text("")
    time.sleep(600)
    """
    with launcher(run, program(body)) as process:
        process.send_signal(number)
        assert process.communicate()[0] == "finished False\n"
    assert [run.worker_log(rank).read_text() for rank in (0, 1)] == ["saved\n", "saved\n"]


def test_a_signal_that_comes_twice_at_once_is_one(run: RunFolder, program: Program) -> None:
    """As from `timeout`, which tells its child and then its child's group."""
    body = """
    def save_slowly(number, frame):
        (run / f"asked-{rank}").write_text("")
        while not (run / "again").exists(): time.sleep(0.01)
        save_and_leave(number, frame)
    signal.signal(signal.SIGTERM, save_slowly)
    started()
    (run / f"ready-{rank}").write_text("")
    time.sleep(600)
    """
    with launcher(run, program(body)) as process:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: len(list(run.path.glob("asked-*"))) == 2)
        process.send_signal(signal.SIGTERM)
        (run.path / "again").touch()
        assert process.communicate()[0] == "finished False\n"
    assert [run.worker_log(rank).read_text() for rank in (0, 1)] == ["saved\n", "saved\n"]


def test_a_second_signal_kills_workers_that_do_not_leave(run: RunFolder, program: Program) -> None:
    body = """
    def note(number, frame):
        (run / f"asked-{rank}").write_text("")
    signal.signal(signal.SIGTERM, note)
    started()
    (run / f"ready-{rank}").write_text("")
    while True: time.sleep(600)
    """
    with launcher(run, program(body), same_stop_s=0.0) as process:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: len(list(run.path.glob("asked-*"))) == 2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.communicate()[0] == (
            f"TrainingError {run.path}: the workers were killed before they had saved; "
            "the same command resumes from the last checkpoint\n"
        )


def test_workers_that_have_not_begun_may_be_ended_by_the_signal_itself(
    run: RunFolder, program: Program
) -> None:
    """A worker that is still importing torch does not catch SIGTERM yet."""
    body = """
    started()
    (run / f"ready-{rank}").write_text("")
    if rank == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    """
    with launcher(run, program(body)) as process:
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0] == "finished False\n"


def test_a_worker_that_fails_while_it_saves_is_still_a_failure(run: RunFolder, program: Program) -> None:
    body = """
    def fail(number, frame):
        print("disk full", flush=True)
        os._exit(1)
    signal.signal(signal.SIGTERM, fail if rank == 1 else signal.SIG_IGN)
    started()
    (run / f"ready-{rank}").write_text("")
    while True: time.sleep(600)
    """
    with launcher(run, program(body)) as process:
        process.send_signal(signal.SIGTERM)
        output = process.communicate()[0]
    assert output.startswith("WorkerError worker 1 on ")
    assert output.endswith("  disk full\n")
