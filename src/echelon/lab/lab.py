"""A cluster in a box: makes the hosts that a plan describes, does things to them, and removes them."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from echelon.errors import LabError, UserError
from echelon.lab import machine, network, processes, registry
from echelon.lab.cgroup import CpuController, find_cpu_controller, send
from echelon.lab.plan import Host, LabPlan, LabSpec
from echelon.lab.rate import parse_rate
from echelon.lab.requirements import check_machine, find_program, search_path
from echelon.lab.surroundings import Surroundings, find_surroundings

_BOOT_S = 60.0
_SSH_PORT = 22
_LAST_LINES = 5


@dataclass(frozen=True)
class HostStatus:
    """How a host is."""

    name: str
    address: str
    running: bool
    connected: bool
    """Its cable is in and it sees the shared folder."""
    frozen: bool
    rate: str
    cpus: float
    processes: int


@dataclass(frozen=True)
class LabStatus:
    """How a lab is."""

    name: str
    folder: str
    ssh_config: str
    shared: str
    disk: str
    hosts: list[HostStatus]


class Lab:
    """A lab that is up. Every change holds the lab's lock; the plan on disk is the truth."""

    def __init__(self, plan: LabPlan) -> None:
        self.name = plan.name
        self.ssh_config = plan.ssh_config
        self.shared = plan.shared
        """The same folder, under the same path, here and on every host."""
        self.disk = plan.disk
        """On every host a folder of its own."""
        self.hosts = list(plan.rates)
        self._controller = find_cpu_controller()

    @staticmethod
    def up(spec: LabSpec) -> Lab:
        """Make a lab; where that fails, nothing of it is left."""
        check_machine()
        spec.check()
        cpus = spec.cpus or round((os.cpu_count() or 1) / spec.hosts, 3)
        find_cpu_controller()
        lab = Lab(registry.register(spec, max(cpus, 0.05)))
        try:
            with lab._change() as change:
                change.make()
        except BaseException:
            lab.down()
            raise
        return lab

    @staticmethod
    def find(name: str = "lab") -> Lab:
        """The lab of that name; UserError where it is not up."""
        check_machine()
        plan = registry.find_plan(name)
        if plan is None:
            raise _no_lab(name)
        return Lab(plan)

    def down(self) -> None:
        """Remove everything that `up` made, also if it was interrupted; what lies in the shared folder stays."""
        with registry.registered(self.name) as (plan, lock):
            if plan is not None:
                _Change(plan, self._controller, lock).remove()
                registry.unregister(plan)

    def status(self) -> LabStatus:
        with self._change() as change:
            plan = change.plan
            return LabStatus(
                name=plan.name,
                folder=str(plan.folder),
                ssh_config=str(plan.ssh_config),
                shared=str(plan.shared),
                disk=str(plan.disk),
                hosts=[change.status(host) for host in plan.hosts],
            )

    def cut(self, host: str) -> HostStatus:
        """Pull a host's cable and take the shared folder away."""
        return self._act(host, _Change.cut)

    def heal(self, host: str) -> HostStatus:
        """Put the cable in again and give the shared folder back."""
        return self._act(host, _Change.heal)

    def kill(self, host: str) -> HostStatus:
        """A power cut: all processes end at once, and nobody on the network is told."""
        return self._act(host, _Change.switch_off)

    def boot(self, host: str) -> HostStatus:
        """Switch a host on again, connected; its disk is as it was."""
        return self._act(host, _Change.boot)

    def freeze(self, host: str) -> HostStatus:
        """Stop all processes of a host; its kernel still answers on the network."""
        return self._act(host, _Change.freeze)

    def thaw(self, host: str) -> HostStatus:
        """Let the processes go on."""
        return self._act(host, _Change.thaw)

    def rate(self, host: str, rate: str) -> HostStatus:
        """Change a host's line rate, in both directions, for good."""
        parse_rate(rate)
        return self._act(host, lambda change, host: change.set_rate(host, rate))

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        check: bool = True,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, over SSH."""
        words = ["ssh", "-F", str(self.ssh_config), host, shlex.join(command)]
        return subprocess.run(
            words, input=stdin, capture_output=True, text=True, check=check, timeout=timeout_s
        )

    def _act(self, name: str, action: Callable[[_Change, Host], None]) -> HostStatus:
        with self._change() as change:
            action(change, change.plan.host(name))
            return change.status(change.plan.host(name))

    @contextlib.contextmanager
    def _change(self) -> Iterator[_Change]:
        with registry.registered(self.name) as (plan, lock):
            if plan is None:
                raise _no_lab(self.name)
            yield _Change(plan, self._controller, lock)


def _no_lab(name: str) -> UserError:
    return UserError(f"no lab {name!r} is up; `echelon lab up --name {name}` makes it")


class _Change:
    """What is done to a lab while its lock is held."""

    def __init__(self, plan: LabPlan, controller: CpuController, lock: int) -> None:
        self.plan = plan
        self._controller = controller
        self._lock = lock

    def make(self) -> None:
        self._write_files(find_surroundings())
        self._run_all(network.make_switch(self.plan))
        self._side_by_side(self._switch_on)

    def _side_by_side(self, action: Callable[[Host], None]) -> None:
        with ThreadPoolExecutor(len(self.plan.hosts)) as pool:
            list(pool.map(action, self.plan.hosts))

    def _write_files(self, surroundings: Surroundings) -> None:
        plan, sshd = self.plan, find_program("sshd")
        for folder in (plan.shared, plan.disk, plan.stage):
            folder.mkdir(parents=True, exist_ok=True)
        self._make_key(plan.user_key)
        for host in plan.hosts:
            for folder in (host.machine, host.disk, host.log.parent):
                folder.mkdir(parents=True, exist_ok=True)
        self._side_by_side(lambda host: self._make_key(host.machine / "ssh_host_ed25519_key"))
        public = {h.name: (h.machine / "ssh_host_ed25519_key.pub").read_text().strip() for h in plan.hosts}
        known_hosts = machine.render_known_hosts(plan, public)
        plan.known_hosts.write_text(known_hosts)
        plan.ssh_config.write_text(machine.render_ssh_config(plan))
        for host in plan.hosts:
            texts = {
                "boot.sh": machine.render_boot(plan, host, sshd, surroundings.visible),
                "sshd_config": machine.render_sshd_config(surroundings.environment),
                "profile": machine.render_profile(surroundings.environment),
                "hosts": machine.render_hosts(plan),
                "ssh_config": machine.render_inner_ssh_config(),
                "ssh_known_hosts": known_hosts,
                "authorized_keys": plan.user_key.with_suffix(".pub").read_text(),
            }
            for name, text in texts.items():
                (host.machine / name).write_text(text)
            shutil.copy(plan.user_key, host.machine / "user_key")

    def _make_key(self, file: Path) -> None:
        self._run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab {self.plan.name}", "-f", str(file)]
        )

    def _switch_on(self, host: Host) -> None:
        self._controller.make(host.namespace, self.plan.cpus)
        self._run_all(network.plug_in(self.plan, host))
        with open(host.log, "ab") as log:
            start = machine.start_command(host, self._controller.process_file(host.namespace))
            environment = {"PATH": search_path()}
            # Without the lock, which the host would hold as long as it runs.
            subprocess.run(
                start, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True
            )
        self._wait_for_sshd(host)

    def _wait_for_sshd(self, host: Host) -> None:
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
        raise LabError(f"{host.name} did not start:\n{last}")

    def status(self, host: Host) -> HostStatus:
        running = self._processes(host)
        first = processes.find_first(running)
        return HostStatus(
            name=host.name,
            address=host.address,
            running=first is not None,
            connected=first is not None
            and self._has_cable(host)
            and processes.has_mount(first, self.plan.shared),
            frozen=first is not None and processes.is_stopped(first),
            rate=host.rate,
            cpus=self.plan.cpus,
            processes=len(running),
        )

    def _has_cable(self, host: Host) -> bool:
        shown = self._run(["ip", "-n", self.plan.switch, "-o", "link", "show", "dev", host.name, "up"])
        return bool(shown.strip())

    def cut(self, host: Host) -> None:
        first = self._first_process(host)
        self._run(network.disconnect(self.plan, host))
        if processes.has_mount(first, self.plan.shared):
            self._run(machine.in_mounts_of(first, machine.unmount_shared(self.plan)))

    def heal(self, host: Host) -> None:
        first = self._first_process(host)
        if not processes.has_mount(first, self.plan.shared):
            self._run(machine.in_mounts_of(first, machine.mount_shared(self.plan)))
        self._run(network.connect(self.plan, host))

    def freeze(self, host: Host) -> None:
        self._first_process(host)
        processes.stop_all(lambda: self._processes(host))

    def thaw(self, host: Host) -> None:
        self._first_process(host)
        send(signal.SIGCONT, self._processes(host))

    def boot(self, host: Host) -> None:
        if processes.find_first(self._processes(host)) is None:
            self.switch_off(host)  # what a crash may have left of it
            self._switch_on(host)

    def set_rate(self, host: Host, rate: str) -> None:
        self.plan = replace(self.plan, rates={**self.plan.rates, host.name: rate})
        registry.save(self.plan)
        if registry.namespace_exists(host.namespace):
            self._run_all(network.limit(self.plan, self.plan.host(host.name)))

    def switch_off(self, host: Host) -> None:
        """End a host, whatever there is of it. The cable goes first, so that no farewell reaches anybody."""
        self._try(network.disconnect(self.plan, host))
        first = processes.find_first(self._processes(host))
        if first is not None:
            send(signal.SIGKILL, [processes.parent_of(first)])
        self._controller.remove(host.namespace)
        self._try(network.unplug(self.plan, host))
        self._remove_namespace(host.namespace)

    def remove(self) -> None:
        self._side_by_side(self.switch_off)
        self._remove_namespace(self.plan.switch)
        for path in self.plan.own_files:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in reversed(self.plan.made_folders):
            with contextlib.suppress(OSError):  # not empty: somebody's work
                folder.rmdir()

    def _remove_namespace(self, namespace: str) -> None:
        if registry.namespace_exists(namespace):
            self._run(network.remove_namespace(namespace))

    def _processes(self, host: Host) -> list[int]:
        return self._controller.processes(host.namespace)

    def _first_process(self, host: Host) -> int:
        first = processes.find_first(self._processes(host))
        if first is None:
            raise UserError(f"{host.name} is off; `echelon lab boot {host.name}` switches it on")
        return first

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
