"""A real OpenSSH server for tests: loopback only, a port and keys of its own, and a configuration to reach it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

ALIASES = ("alpha", "beta", "gamma")
"""Names that all lead to the one server."""


class Sshd:
    """`config` is for `ssh -F`: it knows ALIASES. `environment` is what commands there find."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self._pid_file = folder / "pid"
        self._program = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
        if self._program is None:
            pytest.skip("no sshd here: install openssh-server")
        for key in ("host_key", "user_key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        self.port = free_port()
        self._write_configurations(environment)
        self.know_host_key("host_key")
        self._start()

    def _write_configurations(self, environment: dict[str, str]) -> None:
        variables = " ".join(f'"{name}={value}"' for name, value in environment.items())
        (self.folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/user_key.pub\nPidFile {self._pid_file}\n"
            f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nSetEnv {variables}\n"
        )
        self.config.write_text(
            f"Host {' '.join(ALIASES)}\n  HostName 127.0.0.1\n  Port {self.port}\n"
            f"Host *\n  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile none\n"
        )

    def know_host_key(self, name: str) -> None:
        """Make a key the one that clients expect of the server."""
        key = (self.folder / f"{name}.pub").read_text()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key}")

    def _start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd started by root insists on it
        assert self._program is not None
        log = str(self.folder / "log")
        subprocess.run([self._program, "-f", str(self.folder / "sshd_config"), "-E", log], check=True)
        wait_until(self._pid_file.exists)

    @property
    def pid(self) -> int:
        return int(self._pid_file.read_text())

    def stop(self) -> None:
        os.kill(self.pid, 15)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
