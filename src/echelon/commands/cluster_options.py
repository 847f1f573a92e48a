"""Which hosts `train` was asked for, over SSH or rented, and how to reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from echelon.cloud.journal import Journal
from echelon.commands.rented_hosts import rented_hosts, require_running
from echelon.errors import UserError
from echelon.launch.hosts import Host
from echelon.launch.ray_cluster import RayNodes
from echelon.recipe.workers import WorkerRange


@dataclass(frozen=True)
class ClusterOptions:
    """Options for the hosts of a run, and how to reach them."""

    hosts: Sequence[Host]
    num_hosts: str | None = None
    ssh_config: Path | None = None
    python: str | None = None
    interface: str | None = None
    port: int | None = None
    tls: bool = False
    install: bool = False
    sync: bool = False
    container: str | None = None
    rented: str | None = None
    """The cluster of `cloud up` that the hosts belong to."""
    ray: RayNodes | None = None
    """The nodes of a Ray cluster that are the hosts, by the same names."""

    def refuse_idle_options(self) -> None:
        """UserError if something is asked for that needs hosts; an ssh configuration may be set for all commands."""
        given = {
            "--num-hosts": self.num_hosts,
            "--python": self.python,
            "--interface": self.interface,
            "--port": self.port,
            "--tls": self.tls,
            "--install": self.install,
            "--sync": self.sync,
            "--container": self.container,
        }
        idle = [name for name, value in given.items() if value]
        if idle:
            raise UserError(
                f"{', '.join(idle)}: only for training on hosts; name them with --hosts, --hostfile or --cluster"
            )

    def with_workers(self, workers: WorkerRange | None) -> ClusterOptions:
        """With `--workers` for each host that has no number of its own; UserError if that cannot be."""
        if workers is None or workers.is_auto:
            return self
        if all(host.workers for host in self.hosts):
            raise UserError(
                f"--workers {workers}: all hosts have their numbers; leave it out, or the numbers"
            )
        if workers.fewest != workers.most:
            raise UserError(f"--workers {workers}: a host has a fixed number of workers; give one number")
        return replace(
            self, hosts=[replace(host, workers=host.workers or workers.most) for host in self.hosts]
        )


def on_rented(name: str, options: ClusterOptions) -> ClusterOptions:
    """The options for the hosts of a cluster that `cloud up` has made."""
    if options.hosts:
        raise UserError("--cluster and --hosts both name hosts; use one of them")
    cluster = Journal(name).require()
    if not cluster.hosts:
        raise UserError(f"{name} is only half made; give its `echelon cloud up` again")
    require_running(cluster)
    return replace(
        options,
        hosts=rented_hosts(cluster),
        ssh_config=Journal(name).ssh_config,
        install=cluster.spec.container is None,
        sync=True,
        container=options.container or cluster.spec.container,
        rented=name,
    )
