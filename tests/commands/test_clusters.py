"""Training on hosts, of which this machine is the only one: real agents, without ssh."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from echelon.agent.service import find_agent
from echelon.runfolder import RunFolder
from tests.integration.runs import worker_processes


@pytest.mark.slow
def test_ctrl_c_while_the_agents_are_being_started_leaves_none_behind(
    toy_recipe: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    command = [sys.executable, "-m", "echelon", "train", str(toy_recipe), "--run", str(run.path)]
    with subprocess.Popen(
        [*command, "--hosts", "localhost:1", "--set", "train.steps=100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not run.agent_lock(0).exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert find_agent(run, 0) is None, said
    assert worker_processes(run) == []
