"""What has been made, or was about to be: written before each call to a provider, so that nothing is ever forgotten.

$ECHELON_STATE/clusters/NAME/       ~/.local/state/echelon where not set; only this user can look into it
  cluster.json                      the spec, when it was made, when it ends, and every part with its identifiers
  key, key.pub                      the user's key, where it was made for this cluster
  host_key, host_key.pub            the hosts' own key, known before they exist
  ssh_config, known_hosts           how to reach NAME-0, NAME-1, ...; `train --cluster NAME` uses them
  lock                              held while the cluster is being made or removed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from echelon.cloud.spec import ClusterSpec
from echelon.errors import UserError
from echelon.runfolder import write_atomically

STATE_VARIABLE = "ECHELON_STATE"


@dataclass(frozen=True)
class PartRecord:
    """One thing that is made at a provider."""

    state: Literal["making", "made"]
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """All that is known of a cluster."""

    spec: ClusterSpec
    token: str
    """Tells this cluster from an earlier one of the same name."""
    created: float
    """When its machines were ordered; seconds since 1970."""
    deadline: float
    """When they end by themselves."""
    hourly: float
    """What it costs an hour while the machines run."""
    shared_hourly: float
    spent: float = 0.0
    """US dollars, before `created`: for machines whose time was over, and for the files."""
    ssh_from: str = ""
    subnet: str = ""
    image: str = ""
    parts: dict[str, PartRecord] = field(default_factory=dict)
    hosts: tuple[HostRecord, ...] = ()


@dataclass(frozen=True)
class HostRecord:
    """A machine of the cluster."""

    number: int
    id: str
    private_address: str
    public_address: str
    state: str = "running"


_CLUSTER = TypeAdapter(Cluster)


class Journal:
    """The folder of one cluster. Every change is on disk before the method returns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = clusters_folder() / name
        self._file = self.folder / "cluster.json"
        self.key = self.folder / "key"
        self.host_key = self.folder / "host_key"
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"

    def read(self) -> Cluster | None:
        """What was written last; None where there is no such cluster here."""
        try:
            return _CLUSTER.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise UserError(
                f"{self._file}: is damaged; move it away, and `echelon cloud down {self.name}` goes by the tags"
            ) from None

    def require(self) -> Cluster:
        """As `read`; UserError where there is no such cluster."""
        cluster = self.read()
        if cluster is None:
            raise UserError(
                f"there is no cluster {self.name!r} here; `echelon cloud list` shows those that there are"
            )
        return cluster

    def write(self, cluster: Cluster) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._file, _CLUSTER.dump_json(cluster, indent=2))

    def note(self, part: str, record: PartRecord | None) -> None:
        """Write down what became of a part; None: it is gone."""
        cluster = self.read()
        if cluster is None:
            return  # removing what only the tags know of
        parts = {name: old for name, old in cluster.parts.items() if name != part}
        self.write(replace(cluster, parts=parts if record is None else {**parts, part: record}))

    def forget(self) -> None:
        """Remove the folder: nothing is left at the provider."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands from making or removing the same cluster meanwhile."""
        clusters_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(
            clusters_folder() / f".{self.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.name}: another command is making or removing it; wait for that"
                ) from None
            yield
        finally:
            os.close(descriptor)


def new_cluster(spec: ClusterSpec, max_hours: float, hourly: float, shared_hourly: float) -> Cluster:
    """A cluster of which nothing has been made yet."""
    now = time.time()
    return Cluster(spec, secrets.token_hex(4), now, now + max_hours * 3600, hourly, shared_hourly)


def clusters_folder() -> Path:
    """Where clusters are written down."""
    named = os.environ.get(STATE_VARIABLE)
    default = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "echelon"
    return (Path(named) if named else default) / "clusters"


def known_clusters() -> list[str]:
    """The names of the clusters that are written down here."""
    folder = clusters_folder()
    return sorted(path.parent.name for path in folder.glob("*/cluster.json")) if folder.is_dir() else []
