"""A cluster in a box: hosts on this machine that can be cut off, killed, frozen, slowed down and removed."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from echelon.errors import LabError, UserError
from echelon.lab import registry
from echelon.lab.cgroup import find_cpu_controller
from echelon.lab.change import Change, HostStatus
from echelon.lab.layout import LEAST_CPUS, HostLayout, LabPlan, LabSpec, check_name
from echelon.lab.rate import parse_rate
from echelon.lab.requirements import check_machine


@dataclass(frozen=True)
class LabStatus:
    """A lab's status."""

    name: str
    folder: str
    ssh_config: str
    shared: str
    disk: str
    hosts: list[HostStatus]


class Lab:
    """A lab that is up. Its plan on disk is the truth; every change holds the lab's lock."""

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
        """Make a lab; nothing is left of it if that fails."""
        check_machine()
        spec.check()
        cpus = spec.cpus or max(LEAST_CPUS, len(os.sched_getaffinity(0)) / spec.hosts)
        lab = Lab(registry.register(spec, cpus, find_cpu_controller()))
        try:
            with lab._change() as change:
                change.make()
        except BaseException as error:
            lab.down()
            if isinstance(error, OSError):
                raise LabError(f"{error.filename or lab.name}: {error.strerror or error}") from None
            raise
        return lab

    @staticmethod
    def find(name: str = "lab") -> Lab:
        """The lab of that name; UserError if it is not up."""
        check_machine()
        check_name(name)
        plan = registry.find_plan(name)
        if plan is None:
            raise _no_lab(name)
        return Lab(plan)

    def down(self) -> None:
        """Remove everything that `up` made, also if it was interrupted; what lies in the shared folder stays."""
        with registry.registered(self.name) as (plan, lock):
            if plan is not None:
                Change(plan, self._controller, lock).remove()
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
        """Pull a host's cable and take the shared folder away; files that are open stay open."""
        return self._act(host, Change.cut)

    def heal(self, host: str) -> HostStatus:
        """Put the cable in again and give the shared folder back."""
        return self._act(host, Change.heal)

    def kill(self, host: str) -> HostStatus:
        """A power cut: all processes end at once, and the network gets no notice."""
        return self._act(host, Change.kill)

    def boot(self, host: str) -> HostStatus:
        """Switch a host on again, connected; its disk is as it was."""
        return self._act(host, Change.boot)

    def freeze(self, host: str) -> HostStatus:
        """Stop all processes of a host; its kernel still answers on the network."""
        return self._act(host, Change.freeze)

    def thaw(self, host: str) -> HostStatus:
        """Let the processes continue."""
        return self._act(host, Change.thaw)

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
        """Run a command on a host, over SSH; LabError if it fails, unless `check` is off."""
        words = ["ssh", "-F", str(self.ssh_config), host, shlex.join(command)]
        result = subprocess.run(
            words, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if check and result.returncode:
            raise LabError(
                f"{host}: `{shlex.join(command)}` failed with status {result.returncode}:\n{result.stderr}"
            )
        return result

    def _act(self, name: str, action: Callable[[Change, HostLayout], None]) -> HostStatus:
        with self._change() as change:
            action(change, change.plan.host(name))
            return change.status(change.plan.host(name))

    @contextlib.contextmanager
    def _change(self) -> Iterator[Change]:
        with registry.registered(self.name) as (plan, lock):
            if plan is None:
                raise _no_lab(self.name)
            yield Change(plan, self._controller, lock)


def _no_lab(name: str) -> UserError:
    return UserError(f"no lab {name!r} is up; `echelon lab up --name {name}` makes it")
