"""The hosts that `echelon.train` trains on over SSH."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from echelon.commands.cluster_options import ClusterOptions
from echelon.launch.hosts import parse_hosts
from echelon.launch.ssh import find_config
from echelon.recipe.workers import WorkerRange


@dataclass(frozen=True)
class Hosts:
    """Machines to train on, and what is done there first: the options of `echelon train --hosts`."""

    names: Sequence[str]
    """What `ssh` takes, with the number of workers or without: "alpha", "user@beta:4"."""
    install: bool = False
    """Install Echelon on them."""
    sync: bool = False
    """Copy the prepared data to those that do not see them."""
    num_hosts: str | None = None
    """"MIN:MAX": train as long as at least MIN of them are up, and with at most MAX."""
    ssh_config: str | Path | None = None
    python: str | None = None
    """That they run Echelon with."""
    interface: str | None = None
    port: int | None = None
    tls: bool = False
    container: str | None = None

    def to_options(self, workers: WorkerRange | None) -> ClusterOptions:
        """As the command has them; HostsError if a name is none."""
        config = find_config(None if self.ssh_config is None else Path(self.ssh_config))
        others = {name: value for name, value in asdict(self).items() if name not in ("names", "ssh_config")}
        hosts = parse_hosts(",".join(self.names))
        return ClusterOptions(hosts, ssh_config=config, **others).with_workers(workers)


def as_hosts(hosts: Hosts | Sequence[str] | str) -> Hosts:
    """Hosts from their names alone, or as they are."""
    if isinstance(hosts, Hosts):
        return hosts
    return Hosts(hosts.split(",") if isinstance(hosts, str) else hosts)
