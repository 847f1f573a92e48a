"""How an agent comes to life, or says why it cannot."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.agent.service import _hold, find_agent
from echelon.agent.spec import dump_spec
from echelon.errors import RunError
from echelon.runfolder import RunFolder, parse_json
from tests.agent.cluster import open_cluster


def test_whatever_keeps_an_agent_from_starting_is_what_its_launcher_hears(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.mkdir()
    with open_cluster([run], 1) as cluster:
        spec = replace(cluster.spec, run=str(run.path), files={"recipe.toml": ""})
        answer = subprocess.run(
            [sys.executable, "-m", "echelon.agent", "start"],
            input=dump_spec(spec),
            capture_output=True,
            check=False,
            timeout=60,
        )
    assert answer.returncode == 1
    assert "Is a directory" in parse_json(answer.stdout)["error"]


def test_somebody_who_only_looks_does_not_keep_an_agent_out(tmp_path: Path) -> None:
    lock = tmp_path / "agent-0.lock"
    looking = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_EX)
    threading.Timer(0.1, os.close, [looking]).start()
    with _hold(lock), pytest.raises(RunError, match="at work already"), _hold(lock):
        pass


def test_an_agent_is_found_while_it_holds_its_lock(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert find_agent(run, 0) is None
    with _hold(run.agent_lock(0)):
        assert find_agent(run, 0) == os.getpid()
    assert find_agent(run, 0) is None
