"""The run folder: its lock between real processes, and files that are never half written."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import echelon
from echelon.errors import RunError
from echelon.runfolder import (
    RunFolder,
    list_runs,
    open_no_link,
    parse_toml,
    read_file,
    remove_folder,
    to_json,
    write_atomically,
    write_json,
)
from tests.integration.damage import set_trap

HOLD = """
import subprocess, sys
from pathlib import Path
from echelon.runfolder import RunFolder
with RunFolder(Path(sys.argv[1])).lock() as descriptor:
    if "--child" in sys.argv:
        child = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=[descriptor])
        print(child.pid, flush=True)
    print("held", flush=True)
    input()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "one")
    folder.create()
    return folder


@contextlib.contextmanager
def holder(run: RunFolder, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run's lock until its stdin closes."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            if "--child" not in arguments:
                assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def wait_until_free(run: RunFolder) -> None:
    while run.is_locked():
        time.sleep(0.01)


def test_a_second_process_is_told_who_trains_the_run(run: RunFolder) -> None:
    with holder(run) as other:
        assert run.is_locked()
        with pytest.raises(RunError) as caught, run.lock():
            pytest.fail("the lock was taken twice")
    assert str(run.path) in str(caught.value)
    assert f"process {other.pid} on {os.uname().nodename}" in str(caught.value)


def test_a_killed_process_leaves_the_run_free(run: RunFolder) -> None:
    with holder(run) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert not run.is_locked()
        with run.lock():
            assert run.is_locked()


def test_workers_that_inherit_the_lock_keep_it_when_the_launcher_is_killed(run: RunFolder) -> None:
    with holder(run, "--child") as launcher:
        assert launcher.stdout is not None
        worker = int(launcher.stdout.readline())
        assert launcher.stdout.readline() == "held\n"
        launcher.kill()
        launcher.wait()
        assert run.is_locked()
        os.kill(worker, signal.SIGKILL)
        wait_until_free(run)


def test_the_lock_is_free_again_after_its_block_even_after_an_error(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    assert not run.is_locked()
    with run.lock():
        pass


def test_a_run_that_was_never_locked_is_not_locked(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path / "nothing").is_locked()


def test_asking_whether_a_run_is_locked_never_makes_a_start_fail(run: RunFolder) -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            run.is_locked()

    with run.lock():
        pass
    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(100):
            with run.lock():
                pass
    finally:
        stop.set()
        for asker in askers:
            asker.join()


def test_a_folder_that_cannot_be_made_is_the_users_to_put_right(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made: Not a directory; choose another with --run"):
        RunFolder(tmp_path / "file" / "run").create()
    with pytest.raises(RunError, match="cannot be made: File exists"):
        RunFolder(tmp_path / "file").create()


def test_a_folder_without_a_recipe_is_no_run(run: RunFolder) -> None:
    with pytest.raises(RunError, match=r"there is no run here \(no recipe\.toml\)"):
        run.require()
    run.recipe.write_text("")
    assert run.require() is run


def test_every_file_name_lies_inside_the_folder(run: RunFolder) -> None:
    paths = [value for value in vars(run).values() if isinstance(value, Path)]
    paths += [run.worker_records(3), run.worker_log(3), run.score_file("test"), run.outputs_file("test")]
    paths += [run.references_file("test")]
    assert all(path.is_relative_to(run.path) for path in paths)
    assert len(set(paths)) == len(paths)


def test_runs_are_listed_by_name_and_only_where_there_is_a_recipe(tmp_path: Path) -> None:
    for name in ("b", "a", "empty", ".c.123.removed"):
        RunFolder(tmp_path / name).create()
        if name != "empty":
            RunFolder(tmp_path / name).recipe.write_text("")
    (tmp_path / "file").write_text("")
    assert [run.name for run in list_runs(tmp_path)] == ["a", "b"]
    assert list_runs(tmp_path / "missing") == []


def test_an_atomic_write_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "Käse")
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_half_way_leaves_the_old_content(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: the write really fails after some kilobytes."""
    path = tmp_path / "file"
    path.write_text("old")
    script = (
        "import resource, signal, sys; from pathlib import Path; from echelon.runfolder import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "write_atomically(Path(sys.argv[1]), 'new' * 100_000)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert "File too large" in result.stderr
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_killed_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    script = (
        "import sys; from pathlib import Path; from echelon.runfolder import write_atomically\n"
        "for number in range(10**9): write_atomically(Path(sys.argv[1]), f'{number % 10}' * 200_000)\n"
    )
    for _ in range(3):
        before = path.stat().st_ino
        with subprocess.Popen([sys.executable, "-c", script, str(path)]) as writer:
            changes = 0
            while changes < 5:
                changes += path.stat().st_ino != before
                before = path.stat().st_ino
            writer.kill()
        content = path.read_text()
        assert content == content[0] * 200_000


def test_json_has_null_for_what_json_cannot_say(tmp_path: Path) -> None:
    value = {
        "a": math.nan,
        "b": [math.inf, 1.5],
        "c": (-math.inf, "ü"),
        "d": {"e": math.nan},
        "f": True,
        "g": 3,
    }
    assert to_json(value) == (
        '{"a": null, "b": [null, 1.5], "c": [null, "ü"], "d": {"e": null}, "f": true, "g": 3}'
    )
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_bytes())["b"] == [None, 1.5]


@pytest.mark.parametrize("trap", ["fifo", "device", "huge"])
def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path, trap: str) -> None:
    path = tmp_path / "file"
    set_trap(path, trap)
    with pytest.raises(OSError, match=r"not a regular file|more than 67,108,864 bytes"):
        read_file(path)


@pytest.mark.parametrize("trap", ["fifo", "device"])
def test_nothing_else_is_written_into(run: RunFolder, trap: str) -> None:
    for path in (run.lock_file, run.worker_records(0), run.worker_log(0)):
        set_trap(path, trap)
        assert not run.is_locked()
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            open_no_link(path, os.O_WRONLY)
        with pytest.raises(RunError, match=r"is a (link|device), and a run writes only into files"):
            run.create()
        path.unlink()


def test_a_removed_folder_is_gone_with_everything_in_it(tmp_path: Path) -> None:
    (tmp_path / "doomed" / "inside").mkdir(parents=True)
    remove_folder(tmp_path / "doomed")
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_was_put_there_meanwhile_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), open(tmp_path / "log", "a", opener=open_no_link):
        pass


def names_of_a_run() -> list[str]:
    """Everything that RunFolder names: what its attributes, its properties and its methods give."""
    run = RunFolder(Path("run"))
    methods = (
        run.agent_lock,
        run.mirror_state,
        run.worker_records,
        run.agent_records,
        run.worker_log,
        run.agent_log,
    )
    files = [run.launcher_records, run.launcher_log, run.score_file("test"), run.outputs_file("test")]
    files += [run.references_file("test")]
    inside = [
        run.rendezvous / "by_hand",
        run.generations / "000001.json",
        run.tensorboard / "events",
        run.path / "slurm-7.log",
    ]
    paths = [path for path in vars(run).values() if path != run.path]
    return [
        str(path.relative_to(run.path)) for path in [*paths, *(call(0) for call in methods), *files, *inside]
    ]


@pytest.mark.parametrize("name", names_of_a_run())
def test_a_run_whose_folder_leads_elsewhere_is_not_opened(tmp_path: Path, name: str) -> None:
    """Old checkpoints of another run would be removed, and other files be written over."""
    target, run = tmp_path / "elsewhere", RunFolder(tmp_path / "run")
    run.path.mkdir()
    target.write_text("") if "." in name or name == "lock" else target.mkdir()
    run.recipe.write_text("")
    link = run.path / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    for use in (run.create, run.require, run.refuse_links):
        with pytest.raises(
            RunError, match=f"{name}: is a link, and a run writes only into files and folders of its own"
        ):
            use()


def test_every_method_that_gives_a_path_is_among_the_names() -> None:
    """A method for another name in the run folder has to be added above, and its pattern to `_NUMBERED`."""
    methods = {
        name
        for name, value in vars(RunFolder).items()
        if "Path" in str(getattr(value, "__annotations__", {}))
    }
    assert methods == {
        *(
            "worker_records",
            "worker_log",
            "agent_records",
            "agent_log",
            "agent_lock",
            "agent_locks",
            "mirror_state",
        ),
        *("score_file", "outputs_file", "references_file", "_own_paths", "__init__"),
    }


def test_the_lock_of_another_run_is_not_this_one_s(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "runs" / "other")
    other.create()
    run.lock_file.symlink_to(other.lock_file)
    with other.lock():
        assert other.is_locked()
        assert not run.is_locked()


LONG_KEY = ".".join(["a"] * 200)


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG_KEY} = 1",
        f"[{LONG_KEY}]",
        f"[[{LONG_KEY}]]",
        f"x = {{{LONG_KEY} = 1}}",
        " \t. ".join(['"a.\\""', "'\"'"] * 100) + " = 1",
        f"x = '''it's'''''\ny = {{b = '#', {LONG_KEY} = 1}}",
        f"# it's \"\n{LONG_KEY} = 1",
    ],
)
def test_a_key_of_very_many_parts_is_refused_before_it_is_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own reader compares every part with all before it, which takes hours for a megabyte of them."""
    monkeypatch.setattr("tomllib.loads", lambda _: pytest.fail("it is being read"))
    with pytest.raises(RecursionError, match="parts"):
        parse_toml(text)


@pytest.mark.parametrize(
    "text",
    [
        f'x = "{LONG_KEY}"',
        f'x = """\n\\"{LONG_KEY}"""""',
        f"x = '''\n{LONG_KEY}'''",
        f"# {LONG_KEY}\nx = 1",
        f'"{LONG_KEY}" = 1',
        "x = [" + "1.5, " * 200 + "]",
        "".join(f"[a.b{number}]\nc.d = 1.5\n" for number in range(200)),
    ],
)
def test_dots_elsewhere_do_not_make_a_key_long(text: str) -> None:
    assert parse_toml(text) == tomllib.loads(text)


def test_what_others_wrote_as_toml_is_read_by_this_alone() -> None:
    source = Path(echelon.__file__).parent
    readers = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"tomllib\.loads?\((?!files|f\")", path.read_text())
    }
    own = {
        "serve/access.py",
        "explain/hardware.py",
        "cloud/prices.py",
        "launch/wheel.py",
        "train/task_trial.py",
    }
    assert readers - own == {"runfolder.py"}, "parse_toml takes no hours for a hostile file"
