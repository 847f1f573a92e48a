"""Hosts on which a user types the same command, each with its number: here two "hosts" on one machine's loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint
from tests.integration.runs import (
    ENDLESS,
    SETTINGS,
    Echelon,
    Undisturbed,
    assert_same_end,
    length_beyond,
    signal_worker,
    train_words,
    wait_for_step,
    wait_until,
    worker_process,
    worker_processes,
)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Node:
    """One host's `echelon train`, as its user typed it."""

    def __init__(self, command: list[str], run: RunFolder, log: Path) -> None:
        self._run, self._log = run, log
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)

    @property
    def messages(self) -> str:
        """What it has told its user so far."""
        return self._log.read_text()

    def end(self, status: int = 0) -> dict[str, Any]:
        """What it printed, once it has left with this status."""
        output, _ = self.process.communicate(timeout=200)
        assert self.process.returncode == status, output + self.messages
        document: dict[str, Any] = json.loads(output)
        return document

    def kill(self) -> None:
        """End it and its workers, if they are still there."""
        with self.process as process:
            process.kill()
        for worker in worker_processes(self._run):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


StartNode = Callable[..., Node]


@pytest.fixture
def node(toy_recipe: Path, tmp_path: Path) -> Iterator[StartNode]:
    """node(0, run, "train.steps=9"): types the command on node 0 of two."""
    port, nodes = free_port(), list[Node]()

    def start(rank: int, run: RunFolder, *settings: str, workers: int = 1) -> Node:
        place = ["--nodes", "2", "--node-rank", str(rank), "--master", f"127.0.0.1:{port}"]
        words = [*train_words(toy_recipe, run, *settings), "--workers", str(workers), *place, "--json"]
        nodes.append(Node(words, run, tmp_path / f"node-{len(nodes)}.log"))
        return nodes[-1]

    yield start
    for each in nodes:
        each.kill()


@pytest.mark.slow
def test_two_nodes_form_the_group_that_one_machine_has(
    undisturbed: Undisturbed, node: StartNode, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "shared")
    second = node(1, run)
    wait_until(
        lambda: "waiting for node 0 at 127.0.0.1:" in second.messages, "node 1 does not say that it waits"
    )
    first = node(0, run)
    results = [first.end(), second.end()]
    assert_same_end(undisturbed(workers=2), run)
    assert results[0] == results[1]
    assert results[0]["finished"] is True
    for each in (first, second):
        assert "training starts: 30 steps, 2 workers" in each.messages, "each user sees how it goes"


@pytest.mark.slow
def test_nodes_without_a_shared_folder_and_with_other_numbers_of_workers_go_on_together(
    undisturbed: Undisturbed, node: StartNode, tmp_path: Path
) -> None:
    runs = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    nodes = [node(rank, runs[rank], *SETTINGS, ENDLESS, workers=1 + rank) for rank in (0, 1)]
    wait_for_step(runs[0], 13)
    nodes[1].process.terminate()
    assert [each.end(status=1)["finished"] for each in nodes] == [False, False]
    (saved,) = {choose_checkpoint(run.checkpoints, "last").step for run in runs}
    length = length_beyond(saved)
    nodes = [node(rank, runs[rank], *SETTINGS, length, workers=1 + rank) for rank in (0, 1)]
    assert [each.end()["run"] for each in nodes] == [str(run.path) for run in runs]
    for run in runs:
        assert_same_end(undisturbed(*SETTINGS, length, workers=3), run)


@pytest.mark.slow
def test_a_worker_that_dies_on_one_node_ends_both_with_the_same_error(
    node: StartNode, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    nodes = [node(rank, run, ENDLESS) for rank in (0, 1)]
    wait_for_step(run, 5)
    signal_worker(run, 1, signal.SIGKILL)
    errors = [each.end(status=1)["error"] for each in nodes]
    assert errors[0] == errors[1]
    assert errors[0].startswith(f"worker 1 on {socket.gethostname()} failed (signal 9)")
    assert worker_processes(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_stopped_is_noticed_and_ends_both(
    node: StartNode, tmp_path: Path, victim: int
) -> None:
    run = RunFolder(tmp_path / "run")
    nodes = [node(rank, run, ENDLESS, "restart.hang_seconds=3") for rank in (0, 1)]
    wait_for_step(run, 5)
    signal_worker(run, victim, signal.SIGSTOP)
    errors = [each.end(status=1)["error"] for each in nodes]
    assert errors[0] == errors[1]
    assert errors[0].startswith(f"worker {victim} on ")
    assert "no progress for " in errors[0]
    assert worker_processes(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_killed_outright_ends_the_other(node: StartNode, tmp_path: Path, victim: int) -> None:
    run = RunFolder(tmp_path / "run")
    nodes = [node(rank, run, ENDLESS, "checkpoint.every=100000") for rank in (0, 1)]
    wait_for_step(run, 5)
    worker = worker_process(run, victim)
    nodes[victim].process.kill()
    with contextlib.suppress(ProcessLookupError):  # it may have left when its launcher did
        os.kill(worker, signal.SIGKILL)
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
def test_nodes_with_other_recipes_do_not_train_together(node: StartNode, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    other, first = node(1, run, "train.steps=31"), node(0, run)
    assert "its recipe, or its --set, differs from that of node 0" in other.end(status=2)["error"]
    assert node(1, run).end()["finished"] is True
    assert first.end()["finished"] is True
    assert "node 1 on " in first.messages
    assert "was turned away" in first.messages
