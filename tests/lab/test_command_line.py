"""The lab's verbs from the command line, one after the other, with --json."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Echelon = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lab_machine")]


def test_a_lab_from_up_to_down(echelon: Echelon, tmp_path: Path) -> None:
    name = f"t{os.getpid()}cli"

    def lab(*words: str) -> Any:
        return json.loads(echelon("lab", *words, "--name", name, "--json").stdout)

    folder = tmp_path / "box"
    try:
        made = lab("up", "--hosts", "2", "--rate", "500mbit", "--cpus", "0.5", "--folder", str(folder))
        assert made == lab("status")
        assert made["ssh_config"] == str(folder / "ssh_config")
        assert [host["name"] for host in made["hosts"]] == ["host1", "host2"]
        assert made["hosts"][0] == {
            "name": "host1",
            "address": made["hosts"][0]["address"],
            "running": True,
            "connected": True,
            "frozen": False,
            "rate": "500mbit",
            "cpus": 0.5,
            "processes": 2,
        }
        again = echelon("lab", "up", "--name", name, "--json", status=2)
        assert "is up already" in json.loads(again.stdout)["error"]
        assert not lab("cut", "host1")["connected"]
        assert lab("heal", "host1")["connected"]
        assert lab("freeze", "host1")["frozen"]
        assert not lab("thaw", "host1")["frozen"]
        assert not lab("kill", "host1")["running"]
        assert lab("boot", "host1")["running"]
        assert lab("rate", "host1", "10mbit")["rate"] == "10mbit"
        assert "host1  " in echelon("lab", "status", "--name", name).stdout
        assert "unlimited" in echelon("lab", "rate", "host1", "unlimited", "--name", name, status=2).stderr
    finally:
        assert lab("down") == {"name": name, "removed": True, "kept": None}
    assert lab("down") == {"name": name, "removed": False, "kept": None}
    assert not folder.exists()
