"""A SLURM of one machine, for tests: munged, slurmctld and slurmd with a folder, ports and a key of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
CONFIG = """\
ClusterName=echelon-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def open_slurm() -> Iterator[Slurm]:
    """A SLURM for as long as this lasts; the test is skipped where there can be none."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    # Not in pytest's own folder, which munge finds too private.
    with tempfile.TemporaryDirectory(prefix="echelon-slurm-") as folder:
        slurm = Slurm(Path(folder))
        try:
            yield slurm
        finally:
            slurm.stop()


def why_not() -> str | None:
    """Why SLURM cannot run here; None where it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"SLURM is not installed: no {', '.join(missing)}"
    return None if os.geteuid() == 0 else "slurmd needs root"


class Slurm:
    """Runs until `stop`; `environment` leads its programs to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir()
        folder.chmod(0o755)
        text = CONFIG.format(
            folder=folder, host=socket.gethostname().split(".")[0], ports=_free_ports(2), cores=os.cpu_count()
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupMountpoint=/sys/fs/cgroup\nIgnoreSystemd=yes\n")
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        munge = self._folder / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o600)
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        self.run("munged", *(f"--{option}={munge / name}" for option, name in files.items()))
        self.run("slurmctld")
        self.run("slurmd")
        self.wait_for("sinfo", "--noheader", "--format=%T", says="idle")

    def run(self, *command: str) -> str:
        """What a command of SLURM prints."""
        result = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}\n{self._logs()}"
        return result.stdout

    def wait_for(self, *command: str, says: str, timeout_s: float = 120) -> str:
        """Repeat a command until what it prints holds `says`."""
        deadline = time.monotonic() + timeout_s
        while says not in (output := self.run(*command)):
            assert time.monotonic() < deadline, f"{command} still says {output}\n{self._logs()}"
            time.sleep(0.1)
        return output

    def state(self, job: str) -> str:
        """What SLURM knows of a job."""
        return self.run("scontrol", "show", "job", job)

    def wait_for_state(self, job: str, state: str) -> str:
        return self.wait_for("scontrol", "show", "job", job, says=f"JobState={state}")

    def start_now(self, job: str) -> None:
        """Let a job that was put back into the queue start: SLURM has it wait two minutes."""
        self.wait_for_state(job, "PENDING")
        time.sleep(2)  # slurmd refuses what is as old, in whole seconds, as the job that it has just ended
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def _logs(self) -> str:
        return "".join(log.read_text()[-3000:] for log in self._folder.glob("slurm*.log"))

    def stop(self) -> None:
        """End the daemons, by their process numbers, and whatever jobs they still run."""
        with contextlib.suppress(OSError, AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--signal=KILL", "--full", "--user=root")
            self.run("scancel", "--user=root")
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                process = psutil.Process(int((self._folder / name).read_text()))
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]
