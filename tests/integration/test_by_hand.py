"""Hosts on which a user types the same command, each with its number: here two "hosts" on one machine's loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint
from tests.integration.runs import (
    SETTINGS,
    Echelon,
    TrainToy,
    assert_same_end,
    wait_for_step,
    worker_processes,
)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Node:
    """One host's `echelon train`, as its user typed it."""

    def __init__(
        self, recipe: Path, run: RunFolder, rank: int, port: int, *settings: str, workers: int = 1
    ) -> None:
        sets = [word for setting in settings for word in ("--set", setting)]
        place = ["--nodes", "2", "--node-rank", str(rank), "--master", f"127.0.0.1:{port}"]
        words = [
            "train",
            str(recipe),
            "--run",
            str(run.path),
            "--workers",
            str(workers),
            *place,
            *sets,
            "--json",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "echelon", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, status: int = 0) -> dict[str, Any]:
        """What it printed, once it has left with this status."""
        output, self.messages = self.process.communicate(timeout=200)
        assert self.process.returncode == status, output + self.messages
        document: dict[str, Any] = json.loads(output)
        return document


@contextmanager
def two_nodes(
    recipe: Path, runs: tuple[RunFolder, RunFolder], *settings: str, workers: tuple[int, int] = (1, 1)
) -> Iterator[tuple[Node, Node]]:
    """Node 1 first, node 0 after it; nothing of them is left where the test fails."""
    port, nodes = free_port(), []
    try:
        nodes.append(Node(recipe, runs[1], 1, port, *settings, workers=workers[1]))
        time.sleep(2.5)
        nodes.append(Node(recipe, runs[0], 0, port, *settings, workers=workers[0]))
        yield nodes[1], nodes[0]
    finally:
        for node in nodes:
            with node.process as process:
                process.kill()
        for pid in {pid for run in runs for pid in worker_processes(run)}:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_two_nodes_form_the_group_that_one_machine_has(
    train_toy: TrainToy, toy_recipe: Path, tmp_path: Path
) -> None:
    alone = train_toy("alone", workers=2)
    run = RunFolder(tmp_path / "shared")
    with two_nodes(toy_recipe, (run, run)) as nodes:
        results = [node.end() for node in nodes]
    assert_same_end(alone, run)
    assert results[0] == results[1]
    assert results[0]["finished"] is True
    assert "waiting for node 0 at 127.0.0.1:" in nodes[1].messages
    for node in nodes:
        assert "training starts: 30 steps, 2 workers" in node.messages, "each user sees how it goes"


@pytest.mark.slow
def test_nodes_without_a_shared_folder_and_with_other_numbers_of_workers_go_on_together(
    train_toy: TrainToy, toy_recipe: Path, tmp_path: Path
) -> None:
    whole = train_toy("whole", *SETTINGS, workers=3)
    runs = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    with two_nodes(toy_recipe, runs, *SETTINGS, "train.steps=4000", workers=(1, 2)) as nodes:
        wait_for_step(runs[0], 13)
        nodes[1].process.terminate()
        assert [node.end(status=1)["finished"] for node in nodes] == [False, False]
    saved = {choose_checkpoint(run.checkpoints, "last").step for run in runs}
    assert len(saved) == 1
    if saved.pop() >= 40:
        pytest.skip("the run was quicker than the signal")
    with two_nodes(toy_recipe, runs, *SETTINGS, workers=(1, 2)) as nodes:
        results = [node.end() for node in nodes]
    assert [result["run"] for result in results] == [str(run.path) for run in runs]
    for run in runs:
        assert_same_end(whole, run)


@pytest.mark.slow
def test_a_worker_that_dies_on_one_node_ends_both_with_the_same_error(
    toy_recipe: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    with two_nodes(toy_recipe, (run, run), "train.steps=100000") as nodes:
        wait_for_step(run, 5)
        for pid in worker_processes(run):
            if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
        errors = [node.end(status=1)["error"] for node in nodes]
    assert errors[0] == errors[1]
    assert errors[0].startswith(f"worker 1 on {socket.gethostname()} failed (signal 9)")
    assert worker_processes(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_stopped_is_noticed_and_ends_both(
    toy_recipe: Path, tmp_path: Path, victim: int
) -> None:
    run = RunFolder(tmp_path / "run")
    with two_nodes(toy_recipe, (run, run), "train.steps=100000", "restart.hang_seconds=3") as nodes:
        wait_for_step(run, 5)
        own = f"RANK={victim}".encode()
        for pid in worker_processes(run):
            if own in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGSTOP)
        errors = [node.end(status=1)["error"] for node in nodes]
    assert errors[0] == errors[1]
    assert errors[0].startswith(f"worker {victim} on ")
    assert "no progress for " in errors[0]
    assert worker_processes(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_killed_outright_ends_the_other(toy_recipe: Path, tmp_path: Path, victim: int) -> None:
    run = RunFolder(tmp_path / "run")
    with two_nodes(toy_recipe, (run, run), "train.steps=100000", "checkpoint.every=100000") as nodes:
        wait_for_step(run, 5)
        workers = worker_processes(run)
        nodes[victim].process.kill()
        own = f"RANK={victim}".encode()
        for pid in workers:
            if own in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
        error = nodes[1 - victim].end(status=1)["error"]
    assert f"node {victim}" in error
    assert "has gone without a word" in error
    assert worker_processes(run) == []


def test_an_address_of_another_host_is_refused_at_once(
    echelon: Echelon, toy_recipe: Path, tmp_path: Path
) -> None:
    words = ["--nodes", "2", "--node-rank", "0", "--master", "203.0.113.7:29500", "--run", tmp_path / "run"]
    refused = echelon("train", toy_recipe, *words, status=2)
    assert "node 0 listens at 203.0.113.7:29500, but 203.0.113.7 is no address of this host" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_nodes_with_other_recipes_do_not_train_together(toy_recipe: Path, tmp_path: Path) -> None:
    run, port = RunFolder(tmp_path / "run"), free_port()
    other = Node(toy_recipe, run, 1, port, "train.steps=31")
    with other.process:
        first = Node(toy_recipe, run, 0, port)
        with first.process:
            assert "its recipe, or its --set, differs from that of node 0" in other.end(status=2)["error"]
            right = Node(toy_recipe, run, 1, port)
            with right.process:
                assert right.end()["finished"] is True
            assert first.end()["finished"] is True
    assert "node 1 on " in first.messages
    assert "was turned away" in first.messages
