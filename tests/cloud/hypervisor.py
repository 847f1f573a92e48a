"""An AWS whose machines are real: moto's server, and for each of its instances a "machine" with its own network,
processes, mounts and sshd, which starts from the instance's user data and ends when moto says that it has.

`python -m tests.cloud.hypervisor FOLDER` runs inside a network namespace of its own, which is the laptop's and the
internet between; it ends, with all machines, when its standard input does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import yaml
from moto.backends import get_backend

from tests.cloud.server import ACCOUNT, REGION, moto_server

LAPTOP = "203.0.113.7"
SOURCE = Path(__file__).parents[2] / "src"
_BOOT = """\
set -e
while ! ip link show eth0 > /dev/null 2>&1; do sleep 0.05; done
hostname {name}
ip link set lo up
ip link set eth0 up
ip address add {private}/32 dev eth0
ip address add {public}/32 dev lo
ip route add default dev eth0 src {private}
mount -t tmpfs none /run
mkdir -p /run/sshd /run/echelon
mkdir -p {home}/.echelon
mount --bind {installed} {home}/.echelon
mkdir -p {laptop}
mount -t tmpfs none {laptop}
{mount}
exec {sshd} -D -f {folder}/sshd_config -E {folder}/log
"""


class Machine:
    """One instance, running."""

    def __init__(self, instance: Any, folder: Path, number: int) -> None:
        self.folder = folder / instance.id
        self.folder.mkdir(parents=True)
        user_data = yaml.safe_load(instance.user_data.decode())
        self._write_files(instance, user_data)
        script = _BOOT.format(
            name=f"machine{number}",
            private=instance.private_ip,
            public=instance.public_ip,
            home=Path.home(),
            installed=self.folder / "installed",
            laptop=folder / "laptop",
            mount=_render_mount(user_data, folder),
            sshd="/usr/sbin/sshd",
            folder=self.folder,
        )
        unshare = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen([*unshare, "sh", "-c", script], stdin=subprocess.DEVNULL)
        link = f"veth{number}"
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self._inside))
        _run("ip", "link", "set", link, "master", "net0", "up")

    @property
    def _inside(self) -> int:
        """A process in the machine's namespaces."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while not children.read_text().split():
            time.sleep(0.01)
        return int(children.read_text().split()[0])

    def _write_files(self, instance: Any, user_data: dict[str, Any]) -> None:
        host_key = self.folder / "host_key"
        host_key.write_text(user_data["ssh_keys"]["ed25519_private"])
        host_key.chmod(0o600)
        ec2: Any = get_backend("ec2")[ACCOUNT][REGION]
        pairs = ec2.describe_key_pairs([instance.key_name])
        (self.folder / "authorized_keys").write_text(pairs[0].material_public.decode() + "\n")
        (self.folder / "sshd_config").write_text(
            f"HostKey {host_key}\nAuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv OMP_NUM_THREADS=1 PATH={self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        )
        # The user data are carried out when sshd runs. The cloud-init of this computer, if it has one, waits for ever.
        _write_program(self.folder / "bin" / "cloud-init", '[ "$*" = "status --wait" ]\n')
        # The timer that ends a real machine is tried in test_boot.py; here the hypervisor ends them.
        _write_program(
            self.folder / "bin" / "systemctl", '[ "$*" = "is-active --quiet echelon-end.service" ]\n'
        )
        # An image that has Echelon already: installing torch would take minutes.
        python = self.folder / "installed" / "env" / "bin" / "python"
        _write_program(python, f'PYTHONPATH={SOURCE} exec {sys.executable} "$@"\n')

    def give_notice(self) -> None:
        """What the watcher on a spare machine does when it is told that the machine is wanted back."""
        _run("nsenter", "-t", str(self._inside), "-m", "touch", "/run/echelon/leaving")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _render_mount(user_data: dict[str, Any], folder: Path) -> str:
    """What the machine's fstab would do: the file server is a folder here."""
    mounts = user_data.get("mounts", [])
    if not mounts:
        return ""
    server, place = mounts[0][0].rpartition(":")[0], mounts[0][1]
    files = folder / "files" / server
    return f"mkdir -p {files} {place} && mount --bind {files} {place}"


def _write_program(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


class Hypervisor:
    """Keeps the machines as moto's instances are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machines: dict[str, Machine] = {}
        self._started = 0
        for command in (
            "link set lo up",
            "link add net0 type bridge",
            f"address add {LAPTOP}/32 dev net0",
            "link set net0 up",
            f"route add default dev net0 src {LAPTOP}",
        ):
            _run("ip", *command.split())

    def look(self) -> None:
        instances = {each.id: each for each in get_backend("ec2")[ACCOUNT][REGION].all_instances()}
        for id_, instance in instances.items():
            if instance.state == "running" and id_ not in self._machines:
                self._machines[id_] = Machine(instance, self._folder, self._started)
                self._started += 1
        for id_ in [id_ for id_ in self._machines if instances[id_].state != "running"]:
            self._machines.pop(id_).end()

    def obey(self, line: str) -> None:
        """`take ID`: the machine gets its notice, and some seconds later is gone."""
        id_ = line.split()[1]
        self._machines[id_].give_notice()
        time.sleep(8)
        get_backend("ec2")[ACCOUNT][REGION].terminate_instances([id_])

    def end(self) -> None:
        for machine in self._machines.values():
            with contextlib.suppress(OSError):
                machine.end()


def main() -> None:
    folder = Path(sys.argv[1])
    hypervisor = Hypervisor(folder)
    is_over = threading.Event()

    def obey_all() -> None:
        for line in sys.stdin:
            hypervisor.obey(line)
        is_over.set()

    threading.Thread(target=obey_all, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.set())
    try:
        with moto_server() as address:
            (folder / "address").write_text(address)
            while not is_over.wait(0.2):
                hypervisor.look()
    except Exception:
        traceback.print_exc()
        raise
    finally:
        hypervisor.end()
        os._exit(0)


if __name__ == "__main__":
    main()
