"""Carries out changes of a lab while its lock is held; namespaces.py and host_files.py decide what they are."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from echelon.errors import LabError, UserError
from echelon.lab import host_files, namespaces, processes, registry
from echelon.lab.cgroup import CpuController
from echelon.lab.layout import HostLayout, LabPlan
from echelon.lab.requirements import find_program, search_path
from echelon.lab.surroundings import find_surroundings

_BOOT_S = 60.0
_SSH_PORT = 22
_LAST_LINES = 5


@dataclass(frozen=True)
class HostStatus:
    """A host's status."""

    name: str
    address: str
    running: bool
    connected: bool
    """Its link is up and it sees the shared folder."""
    frozen: bool
    rate: str
    cpus: float
    processes: int


class Change:
    """One change of a lab. Programs inherit `lock`, so nothing of a killed change continues unlocked."""

    def __init__(self, plan: LabPlan, controller: CpuController, lock: int) -> None:
        self.plan = plan
        self._controller = controller
        self._lock = lock

    def make(self) -> None:
        """Make everything in the plan."""
        self._make_keys()
        self._write_files()
        self._run_all(namespaces.make_switch(self.plan))
        self._side_by_side(self._switch_on)

    def remove(self) -> None:
        """Remove everything in the plan that is there."""
        self._side_by_side(self._switch_off)
        self._remove_namespace(self.plan.switch)
        for path in self.plan.own_files:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in reversed(self.plan.made_folders):
            with contextlib.suppress(OSError):  # not empty: it holds a user's files
                folder.rmdir()

    def status(self, host: HostLayout) -> HostStatus:
        running = self._processes(host)
        first = processes.find_first(running)
        return HostStatus(
            name=host.name,
            address=host.address,
            running=first is not None,
            connected=first is not None and self._has_cable(host) and self._has_shared(first),
            frozen=first is not None and processes.is_stopped(first),
            rate=host.rate,
            cpus=self.plan.cpus,
            processes=len(running),
        )

    def cut(self, host: HostLayout) -> None:
        first = self._first_process(host)
        self._run(namespaces.disconnect(self.plan, host))
        if self._has_shared(first):
            self._run(host_files.in_mounts_of(first, host_files.unmount_shared(self.plan)))

    def heal(self, host: HostLayout) -> None:
        first = self._first_process(host)
        if not self._has_shared(first):
            self._run(host_files.in_mounts_of(first, host_files.mount_shared(self.plan)))
        self._run(namespaces.connect(self.plan, host))

    def kill(self, host: HostLayout) -> None:
        """The cable goes first, so that no closing connection reaches another host."""
        self._try(namespaces.disconnect(self.plan, host))
        self._switch_off(host)

    def boot(self, host: HostLayout) -> None:
        if processes.find_first(self._processes(host)) is None:
            self._switch_off(host)  # leftovers of a crash
            self._switch_on(host)

    def freeze(self, host: HostLayout) -> None:
        self._first_process(host)
        processes.stop_all(lambda: self._processes(host))

    def thaw(self, host: HostLayout) -> None:
        self._first_process(host)
        processes.send(signal.SIGCONT, self._processes(host))

    def set_rate(self, host: HostLayout, rate: str) -> None:
        self.plan = replace(self.plan, rates={**self.plan.rates, host.name: rate})
        registry.save(self.plan)
        if registry.namespace_exists(host.namespace):
            self._run_all(namespaces.limit(self.plan, self.plan.host(host.name)))

    def _make_keys(self) -> None:
        for host in self.plan.hosts:
            for folder in (host.machine, host.disk, host.log.parent):
                folder.mkdir(parents=True, exist_ok=True)
        self._make_key(self.plan.user_key)
        self._side_by_side(lambda host: self._make_key(host.key))

    def _make_key(self, file: Path) -> None:
        comment = f"lab {self.plan.name}"
        self._run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)])

    def _write_files(self) -> None:
        plan, sshd, surroundings = self.plan, find_program("sshd"), find_surroundings()
        for folder in (plan.shared, plan.disk, plan.stage):
            folder.mkdir(exist_ok=True)
        public = {host.name: host.key.with_suffix(".pub").read_text().strip() for host in plan.hosts}
        known_hosts = host_files.render_known_hosts(plan, public)
        plan.known_hosts.write_text(known_hosts)
        plan.ssh_config.write_text(host_files.render_ssh_config(plan))
        for host in plan.hosts:
            texts = {
                "boot.sh": host_files.render_boot(plan, host, sshd, surroundings.visible),
                "sshd_config": host_files.render_sshd_config(surroundings.environment),
                "profile": host_files.render_profile(surroundings.environment),
                "hosts": host_files.render_hosts(plan),
                "ssh_config": host_files.render_inner_ssh_config(),
                "ssh_known_hosts": f"{known_hosts}localhost,127.0.0.1 {public[host.name]}\n",
                "authorized_keys": plan.user_key.with_suffix(".pub").read_text(),
            }
            host.machine.chmod(0o755)
            for name, text in texts.items():
                (host.machine / name).write_text(text)
                # sshd refuses what others may write, as some umasks let them.
                (host.machine / name).chmod(0o644)
            shutil.copy(plan.user_key, host.machine / "user_key")

    def _switch_on(self, host: HostLayout) -> None:
        self._controller.make(host.namespace, self.plan.cpus)
        self._run_all(namespaces.plug_in(self.plan, host))
        start = host_files.start_command(host, self._controller.process_file(host.namespace))
        with open(host.log, "ab") as log:
            # Without the lock, which the host would hold as long as it runs.
            subprocess.run(
                start,
                env={"PATH": search_path()},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )
        self._wait_for_sshd(host)

    def _wait_for_sshd(self, host: HostLayout) -> None:
        deadline, has_begun = time.monotonic() + _BOOT_S, False
        while time.monotonic() < deadline:
            running = self._processes(host)
            first = processes.find_first(running)
            if first is not None and processes.listens(first, _SSH_PORT):
                return
            if has_begun and not running:
                break
            has_begun = bool(running)
            time.sleep(0.005)
        last = "\n".join(host.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        raise LabError(f"{host.name} did not start; it said last:\n{last}")

    def _switch_off(self, host: HostLayout) -> None:
        """End a host, even a partial one: its first process's parent first, which takes all others with it."""
        running = self._processes(host)
        first = processes.find_first(running)
        parent = processes.find_parent(first) if first is not None else None
        processes.send(signal.SIGKILL, [process for process in running if process == parent])
        self._controller.remove(host.namespace)
        self._try(namespaces.unplug(self.plan, host))
        self._remove_namespace(host.namespace)

    def _remove_namespace(self, namespace: str) -> None:
        if registry.namespace_exists(namespace):
            self._run(namespaces.remove_namespace(namespace))

    def _processes(self, host: HostLayout) -> list[int]:
        return self._controller.processes(host.namespace)

    def _first_process(self, host: HostLayout) -> int:
        first = processes.find_first(self._processes(host))
        if first is None:
            raise UserError(f"{host.name} is off; `echelon lab boot {host.name}` switches it on")
        return first

    def _has_cable(self, host: HostLayout) -> bool:
        return bool(self._run(namespaces.show_if_connected(self.plan, host)).strip())

    def _has_shared(self, first: int) -> bool:
        return processes.has_mount(first, self.plan.shared)

    def _side_by_side(self, action: Callable[[HostLayout], None]) -> None:
        with ThreadPoolExecutor(len(self.plan.hosts)) as pool:
            list(pool.map(action, self.plan.hosts))

    def _run_all(self, commands: Iterable[list[str]]) -> None:
        for command in commands:
            self._run(command)

    def _run(self, command: list[str]) -> str:
        result = self._try(command)
        if result.returncode:
            raise LabError(f"`{shlex.join(command)}` failed: {(result.stderr or result.stdout).strip()}")
        return result.stdout

    def _try(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**os.environ, "PATH": search_path(), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            pass_fds=[self._lock],
        )
