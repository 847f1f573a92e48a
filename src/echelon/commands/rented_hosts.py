"""Rented hosts to train on: made ready once they have started, and replaced when they are reclaimed."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from echelon.cloud.aws.aws_cluster import AwsCluster
from echelon.cloud.aws.calls import Clients
from echelon.cloud.inventory import host_name
from echelon.cloud.journal import ClusterRecord, HostRecord, Journal
from echelon.cloud.lifecycle import is_ending, write_inventory
from echelon.cloud.userdata import END_UNIT
from echelon.commands.readiness import format_hosts
from echelon.console import Tell
from echelon.errors import CloudError, EchelonError, HostsError, RemoteError
from echelon.launch.check import check_hosts
from echelon.launch.container import python_with, send_image
from echelon.launch.findings import Needs
from echelon.launch.hosts import Host
from echelon.launch.install import InstallOptions, install_hosts
from echelon.launch.pins import find_unlocked
from echelon.launch.ssh import Remote, on_all, raise_problems
from echelon.launch.sync import sync_hosts

_ANSWER_S = 900.0
_RETRY_S = 3.0
_LOOK_S = 15.0
_ENDS = ["systemctl", "is-active", "--quiet", END_UNIT]
_BOOTED = "! command -v cloud-init > /dev/null || cloud-init status --wait > /dev/null; true"


def rented_hosts(cluster: ClusterRecord) -> list[Host]:
    """The hosts of a cluster, by the names that its ssh configuration knows."""
    return [Host(host_name(cluster.spec.name, host.number)) for host in cluster.hosts]


def make_ready(cluster: ClusterRecord, console: Console) -> None:
    """Wait until all hosts answer, put Echelon there, and check them as `doctor` does; HostsError if one is unfit.

    What fails here leaves the machines as they are: the same command tries again.
    """
    hosts = rented_hosts(cluster)
    with _open(cluster.spec.name, [host.name for host in hosts]) as remotes:
        try:
            console.print("waiting for the machines to answer ...", highlight=False)
            raise_problems(on_all(remotes, wait_for_answer))
            raise_problems(on_all(remotes, require_end))
            console.print(f"installing Echelon on them{_unchecked(cluster)} ...", highlight=False)
            install(cluster, remotes)
            needs = Needs(container=cluster.spec.container)
            reports = check_hosts(hosts, {remote.host: remote for remote in remotes}, needs)
        except EchelonError as error:
            raise HostsError(f"{error}\n{still_costs(cluster)}") from None
    console.print(format_hosts(reports), markup=False, highlight=False, soft_wrap=True)
    if not all(report.is_fit for report in reports):
        raise HostsError(f"not all machines are fit: see the lines marked with ✗\n{still_costs(cluster)}")


def _unchecked(cluster: ClusterRecord) -> str:
    """Return why pip cannot check hashes there; nothing if it can, or if a container brings everything."""
    unlocked = [] if cluster.spec.container else find_unlocked()
    if not unlocked:
        return ""
    more = f" and {len(unlocked) - 1} more" if len(unlocked) > 1 else ""
    return f", without checking packages' hashes (here is {unlocked[0]}{more})"


def still_costs(cluster: ClusterRecord) -> str:
    """What still costs money, and the command that removes it."""
    name = cluster.spec.name
    return (
        f"the machines run, at ${cluster.hourly:.2f} an hour; the same command tries again, and `echelon cloud down "
        f"{name}` ends them"
    )


@contextlib.contextmanager
def _open(name: str, hosts: Sequence[str]) -> Iterator[list[Remote]]:
    config = Journal(name).ssh_config
    with ExitStack() as stack:
        yield [stack.enter_context(Remote(host, config)) for host in hosts]


def wait_for_answer(remote: Remote) -> None:
    """Wait until a machine that has just started accepts logins and is set up; RemoteError if it takes too long."""
    deadline = time.monotonic() + _ANSWER_S
    while True:
        try:
            remote.run(["sh", "-c", _BOOTED], timeout_s=_ANSWER_S)
        except RemoteError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def require_end(remote: Remote) -> None:
    """RemoteError if nothing on a machine would end it: an image of the user's own may carry out half of what it was
    given, and its bill would have no end."""
    if remote.run(_ENDS, timeout_s=60).status:
        raise RemoteError(
            remote.host,
            "failed",
            f"the timer that ends the machine ({END_UNIT}) does not run, so it would cost money until `echelon cloud "
            "down`; its image needs systemd and cloud-init",
        )


def install(cluster: ClusterRecord, remotes: Sequence[Remote]) -> None:
    """Install the same Echelon as here, or send the image that has it."""
    image = cluster.spec.container
    if image:
        raise_problems(on_all(remotes, lambda remote: send_image(remote, image)))
    else:
        raise_problems(install_hosts(remotes, InstallOptions(checks_hashes=True)))


_MAKE = """\
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
make() { [ -w "$1" ] || { as_root mkdir -p "$1" && as_root chown "$(id -u):$(id -g)" "$1"; }; }
"""


def render_own_folder(folder: Path) -> str:
    """A script that makes a folder of the same path on a rented host's own disk."""
    return f"{_MAKE}make {shlex.quote(str(folder))}\n"


def render_shared_folder(folder: Path, mount: str) -> str:
    """The same on the file system that all hosts mount."""
    there, here = shlex.quote(f"{mount}{folder}"), shlex.quote(str(folder))
    bind = f"mountpoint -q {here} || {{ make {there} && as_root mount --bind {there} {here}; }}"
    return f"{render_own_folder(folder)}! mountpoint -q {shlex.quote(mount)} || {bind}\n"


class Rented:
    """The hosts of a cluster during a run: spot machines that are reclaimed are replaced."""

    def __init__(self, name: str, run: Path, data: Path, tell: Tell) -> None:
        self._journal = Journal(name)
        self._cluster = self._journal.require()
        self._machines = AwsCluster(Clients(self._cluster.spec.region), self._journal)
        self._run = run
        self._data = data
        self._tell = tell
        self._unready: set[str] = set()
        """Hosts that have been replaced and are not set up yet."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="rented", daemon=True)

    def make_folders(self) -> None:
        """Make the folders that the run uses, on all hosts."""
        hosts = [host.name for host in rented_hosts(self._cluster)]
        with _open(self._cluster.spec.name, hosts) as remotes:
            self._make_data_folder(remotes)
            self._make_run_folder(remotes)

    def _make_data_folder(self, remotes: Sequence[Remote]) -> None:
        script = render_own_folder(self._data.parent)
        raise_problems(on_all(remotes, lambda remote: _run_script(remote, script)))

    def _make_run_folder(self, remotes: Sequence[Remote]) -> None:
        spec, folder = self._cluster.spec, self._run.parent
        script = render_shared_folder(folder, spec.mount) if spec.shared else render_own_folder(folder)
        raise_problems(on_all(remotes, lambda remote: _run_script(remote, script)))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Replace reclaimed machines inside the `with` block."""
        if self._cluster.spec.spot:
            self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()

    def is_ready(self, host: str) -> bool:
        """Whether an agent may be started there."""
        return host not in self._unready

    def _keep(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self._manage(self._look)

    def _look(self) -> None:
        """Replace lost machines and set up new ones, one by one, because one of them may not be available."""
        lost = {host_name(self._cluster.spec.name, host.number): host for host in self._find_lost()}
        self._unready |= lost.keys()
        there = {name for name, host in lost.items() if self._manage(partial(self._replace, host))}
        new = sorted(self._unready - (lost.keys() - there))
        if new:
            with self._journal.lock():
                self._cluster = write_inventory(self._journal, self._machines)
        for name in new:
            self._manage(partial(self._set_up, name))

    def _manage(self, action: Callable[[], None]) -> bool:
        """Whether `action` succeeds now; if it does not, the next look tries again."""
        try:
            action()
        except EchelonError as error:
            self._tell(f"a machine that was taken away could not be replaced yet: {error}")
            return False
        return True

    def _find_lost(self) -> list[HostRecord]:
        """Machines that are gone or going; none if the cluster's time is (nearly) over."""
        cluster = self._journal.require()
        if is_ending(cluster):
            return []
        hosts = self._machines.machines.hosts()
        alive = {host.number for host in hosts if host.state in ("pending", "running")}
        return [host for host in cluster.hosts if host.number not in alive]

    def _replace(self, lost: HostRecord) -> None:
        host = host_name(self._cluster.spec.name, lost.number)
        self._tell(f"{host} was taken away; starting another ...")
        with self._journal.lock():
            self._machines.machines.replace(lost)

    def _set_up(self, host: str) -> None:
        with _open(self._cluster.spec.name, [host]) as remotes:
            raise_problems(on_all(remotes, wait_for_answer))
            raise_problems(on_all(remotes, require_end))
            self._make_data_folder(remotes)
            self._make_run_folder(remotes)
            install(self._cluster, remotes)
            image = self._cluster.spec.container
            pythons = {host: python_with(remotes[0], image, self._data.parent)} if image else None
            raise_problems(sync_hosts(remotes, self._data, self._data, pythons=pythons))
        self._unready.discard(host)
        self._tell(f"{host} is back")


def _run_script(remote: Remote, script: str) -> None:
    completed = remote.run(["sh", "-c", script], timeout_s=60)
    if completed.status:
        said = completed.stderr.decode(errors="replace").strip()
        raise RemoteError(remote.host, "failed", f"its folders could not be made: {said}")


def require_running(cluster: ClusterRecord) -> None:
    """CloudError if the machines have ended by themselves."""
    if time.time() > cluster.deadline:
        raise CloudError(
            f"the machines of {cluster.spec.name} have ended by themselves, as their time was over; "
            f"the same `echelon cloud up` rents others, `echelon cloud down {cluster.spec.name}` removes the rest"
        )
