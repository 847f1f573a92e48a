"""Up, train, down with real parts: moto's server, machines with their own network and sshd, and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.lab.requirements import check_machine
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder

ROOT = Path(__file__).parents[2]
CLUSTER = """\
name = "whole"
type = "c7i.2xlarge"
count = 2
spot = true
hours = 2
user = "root"
ssh_from = "203.0.113.7"
mount = "{mount}"
"""


@contextmanager
def hypervisor(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Somewhere to rent machines; its process, whose network namespace is the laptop's, and its address."""
    command = ["unshare", "--net", sys.executable, "-m", "tests.cloud.hypervisor", str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with open(folder / "hypervisor.log", "w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, env=environment, cwd=ROOT
        )
        with process:
            address = folder / "address"
            deadline = time.monotonic() + 60
            while not address.exists() or not address.read_text():
                assert process.poll() is None, (folder / "hypervisor.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            try:
                yield process, address.read_text()
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=30)


@pytest.mark.slow
def test_machines_are_rented_trained_on_replaced_and_given_back(toy_recipe: Path, tmp_path: Path) -> None:
    try:
        check_machine()
    except UserError as error:
        pytest.skip(str(error))
    laptop = tmp_path / "laptop"
    laptop.mkdir()
    with (
        tempfile.TemporaryDirectory(
            dir="/srv", prefix="echelon-"
        ) as mount,  # the temp folder is the system's
        hypervisor(tmp_path) as (cloud, address),
        contextlib.ExitStack() as leaving,
    ):
        (laptop / "cluster.toml").write_text(CLUSTER.format(mount=mount))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "ECHELON_STATE": str(laptop / "state"),
            "ECHELON_CACHE": str(laptop / "cache"),
        }
        inside = ["nsenter", "--net", "--target", str(cloud.pid), sys.executable, "-m", "echelon"]

        def echelon(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            command = [*inside, *map(str, arguments)]
            result = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, cwd=laptop, timeout=280
            )
            assert result.returncode == 0, f"{arguments}\n{result.stdout}\n{result.stderr}"
            return result

        up = json.loads(echelon("cloud", "up", "cluster.toml", "--yes", "--json").stdout)
        assert up["hosts"] == ["whole-0", "whole-1"]
        assert echelon("cloud", "ssh", "whole", "1", "hostname").stdout.strip() == "machine1"

        settings = ["--set", "train.steps=1000000", "--set", "train.log_every=50"]
        run = RunFolder(laptop / "runs" / "toy")
        with open(tmp_path / "train.log", "w") as log:
            train = subprocess.Popen(
                [*inside, "train", str(toy_recipe), "--cluster", "whole", *settings],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=laptop,
            )
        leaving.callback(train.wait)
        leaving.callback(train.kill)  # first, and in vain where it has ended by itself
        wait_for(lambda: "generation 1: whole-0, whole-1" in events(run) and steps(run) > 0, train, tmp_path)
        machines = json.loads(echelon("cloud", "list", "--json").stdout)[0]["found"]
        doomed = [each["id"] for each in machines if each["kind"] == "machine"][1]
        assert cloud.stdin is not None
        cloud.stdin.write(f"take {doomed}\n")
        cloud.stdin.flush()
        wait_for(lambda: "generation 2 (a host must go): whole-0" in events(run), train, tmp_path)
        wait_for(
            lambda: "generation 3 (a host has come back): whole-0, whole-1" in events(run), train, tmp_path
        )
        before = steps(run)
        wait_for(lambda: steps(run) > before, train, tmp_path)
        train.send_signal(signal.SIGINT)
        assert train.wait(timeout=120) == 1, (tmp_path / "train.log").read_text()
        assert "is about to be taken away" in events(run)
        assert events(run).count("generation 1: ") == 1, "what both hosts see has come home once"

        more = f"train.steps={steps(run) + 100}"
        command = (
            "train",
            toy_recipe,
            "--cluster",
            "whole",
            "--json",
            "--set",
            more,
            "--set",
            "train.log_every=50",
        )
        result = json.loads(echelon(*command).stdout)
        assert result["finished"]
        assert result["test"]["bleu"] >= 0
        assert list(run.checkpoints.iterdir()), "the result has come home"

        listed = json.loads(echelon("cloud", "list", "--json").stdout)[0]
        assert (listed["state"], listed["machines"]) == ("running", 2)
        assert doomed not in [each["id"] for each in listed["found"]]
        removed = json.loads(echelon("cloud", "down", "whole", "--yes", "--json").stdout)
        assert removed["left"] == []
        assert json.loads(echelon("cloud", "list", "--json").stdout) == []


def events(run: RunFolder) -> str:
    """What launcher and agents have told so far, in lines."""
    records = [record for file in sorted(run.records.glob("*.jsonl")) for record in read_records(file)]
    return "\n".join(str(record["message"]) for record in records if record["kind"] == "event")


def steps(run: RunFolder) -> int:
    """How far the run has got, as far as is known here."""
    found = [record["step"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"]
    return int(found[-1]) if found else 0


def wait_for(is_so: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 150
    while not is_so():
        log = (folder / "train.log").read_text()
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.3)
