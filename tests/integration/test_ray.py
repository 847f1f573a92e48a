"""Training on a real Ray cluster: several raylets on loopback addresses of this machine (tests/own_ray.py)."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder, parse_json
from tests.integration.runs import ENDLESS, Undisturbed, assert_same_end, length_beyond
from tests.integration.test_launchers_page import commands
from tests.waiting import wait_until

pytest.importorskip("ray", reason="the extra `ray` is not installed")


@dataclass
class OwnRay:
    """A cluster, and how to change it."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    def tell(self, *words: str) -> None:
        """Have a node added or killed; returns when that is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        self.hear(f"{'added' if words[0] == 'add' else 'killed'} {words[1]}")

    def hear(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"the cluster has ended before {word!r}: {self.log.read_text()[-2000:]}")


@pytest.fixture
def own_ray(tmp_path: Path) -> Iterator[OwnRay]:
    """A cluster with two nodes that can train, and a head that cannot."""
    # Ray makes sockets in this folder, whose names may have 107 characters.
    log = tmp_path / "ray.log"
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        log.open("w") as said,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.own_ray", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        try:
            own = OwnRay(process, "", log)
            own.address = own.hear("127.")
            own.tell("add", "127.0.0.3", "2")
            own.tell("add", "127.0.0.4", "2")
            yield own
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextlib.contextmanager
def training_on(own: OwnRay, recipe: Path, run: RunFolder, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """`train --launcher ray` with one worker on each node; it is ended at the end."""
    words = [
        "train",
        recipe,
        "--run",
        run.path,
        "--launcher",
        "ray",
        "--address",
        own.address,
        "--workers",
        "1",
    ]
    log = run.path.with_suffix(".log").open("w")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-m", "echelon", *map(str, words), "--json", *settings],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def result_of(process: subprocess.Popen[str], run: RunFolder) -> dict[str, object]:
    stdout, _ = process.communicate()
    assert process.returncode == 0, run.path.with_suffix(".log").read_text()
    document = parse_json(stdout)
    assert isinstance(document, dict)
    return document


def test_two_nodes_of_ray_end_with_the_bits_of_two_workers_here(
    own_ray: OwnRay, toy_recipe: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = RunFolder(tmp_path / "run")
    with training_on(own_ray, toy_recipe, run) as process:
        result = result_of(process, run)
    assert result["finished"]
    assert_same_end(run, undisturbed(workers=2))
    hosts = {record["host"] for record in read_records(run.agent_records(0)) if record["kind"] == "start"}
    assert hosts == {"ray-0"}


def group_sizes(run: RunFolder) -> list[int]:
    """How many workers each group has had that has begun to train."""
    return [
        int(record["workers"]) for record in read_records(run.worker_records(0)) if record["kind"] == "start"
    ]


def last_trained(run: RunFolder) -> int:
    steps = [
        int(record["step"]) for record in read_records(run.worker_records(0)) if record["kind"] == "step"
    ]
    return max(steps, default=0)


def wait_for_three_more_steps(run: RunFolder, said: Callable[[], str]) -> None:
    wanted = last_trained(run) + 3
    wait_until(lambda: last_trained(run) >= wanted, said)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_raylet_dies_and_the_other_node_continues_and_a_new_node_is_taken_in(
    own_ray: OwnRay, toy_recipe: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = RunFolder(tmp_path / "run")
    said = run.path.with_suffix(".log").read_text
    frequent, patient = "checkpoint.every=10", "restart.silence_seconds=15"
    sets = [word for setting in (frequent, patient) for word in ("--set", setting)]
    options = ("--num-hosts", "1:2", *sets)
    with training_on(own_ray, toy_recipe, run, *options, "--set", ENDLESS) as process:
        wait_until(lambda: last_trained(run) >= 12, said)
        own_ray.tell("kill", "127.0.0.4")
        wait_until(lambda: group_sizes(run)[-1] == 1, said)
        wait_for_three_more_steps(run, said)
        own_ray.tell("add", "127.0.0.5", "2")
        wait_until(lambda: group_sizes(run)[-1] == 2, said)
        wait_for_three_more_steps(run, said)
        process.send_signal(signal.SIGINT)
        process.wait()
        assert process.returncode == 1, said()
    assert "has come: the run saves, and continues with it" in said()
    whole = length_beyond(last_trained(run))
    with training_on(own_ray, toy_recipe, run, *options, "--set", whole) as process:
        assert result_of(process, run)["finished"]
    assert_same_end(run, undisturbed(whole, frequent, workers=2))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_launchers_page_run(own_ray: OwnRay, toy_recipe: Path) -> None:
    toy_recipe.rename(toy_recipe.with_name("my.toml"))
    found = [command for command in commands() if "--launcher ray" in command]
    for command in found:
        # Two nodes with two cores each.
        here = f"{command.replace('--workers 4', '--workers 1')} --address {own_ray.address}"
        words = [sys.executable, "-m", *shlex.split(here)]
        done = subprocess.run(words, cwd=toy_recipe.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{here}\n{done.stdout}\n{done.stderr}"
