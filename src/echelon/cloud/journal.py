"""The journal of a cluster's resources, written before each call to a provider, so that nothing is ever forgotten.

$ECHELON_STATE/clusters/NAME/       ~/.local/state/echelon if not set; readable by this user only
  cluster.json                      the spec, when it was made, when it ends, and every part with its identifiers
  key, key.pub                      the user's key, if it was made for this cluster
  host_key, host_key.pub            the hosts' own key, known before they exist
  runs.json                         run folders of this machine whose checkpoints have not come home
  ssh_config, known_hosts           how to reach NAME-0, NAME-1, ...; `train --cluster NAME` uses them
  lock                              held while the cluster is being made or removed
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from echelon.cloud.cluster_spec import ClusterSpec
from echelon.errors import UserError
from echelon.runfolder import read_json, write_atomically
from echelon.untrusted import is_cluster, require_cluster

STATE_VARIABLE = "ECHELON_STATE"


@dataclass(frozen=True)
class PartRecord:
    """One resource at a provider; without identifiers, it is unknown whether it was made."""

    ids: tuple[str, ...] = ()
    """Of machines, by their numbers; an empty one has not been had yet."""
    since: float = 0.0
    """When the provider was last told to make it; seconds since 1970."""
    order: str = ""
    """The token of an order of machines whose answer has not come yet."""
    numbers: tuple[int, ...] = ()
    """Which hosts that order is for."""
    address: str = ""
    """The private address that this order asks for."""

    @property
    def is_unsure(self) -> bool:
        """Whether a resource may exist whose identifier is unknown here."""
        return bool(self.order) or not self.ids


@dataclass(frozen=True)
class ClusterRecord:
    """All that is known about a cluster."""

    spec: ClusterSpec
    token: str
    """Distinguishes this cluster from an earlier one of the same name."""
    created: float
    """When its machines were ordered; seconds since 1970."""
    deadline: float
    """When they end by themselves."""
    hourly: float
    """What it costs an hour while the machines run."""
    shared_hourly: float
    owner: str = ""
    """The ARN of its creator."""
    spent: float = 0.0
    """US dollars, before `created`: for machines whose time was over, and for the files."""
    ssh_from: str = ""
    subnet: str = ""
    zone: str = ""
    image: str = ""
    max_price: float | None = None
    """US dollars that one spot machine may cost an hour."""
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


_CLUSTER = TypeAdapter(ClusterRecord)


class Journal:
    """The folder of one cluster. Every change is on disk before the method returns."""

    def __init__(self, name: str, region: str | None = None) -> None:
        """UserError if no cluster can have this name. With `region`, one of that name elsewhere does not count."""
        try:
            self.name = require_cluster(name)
        except ValueError as error:
            raise UserError(f"no cluster has such a name: {error}") from None
        self._region = region
        self.folder = clusters_folder() / name
        self._file = self.folder / "cluster.json"
        self._runs = self.folder / "runs.json"
        self.key = self.folder / "key"
        self.host_key = self.folder / "host_key"
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"

    def read(self) -> ClusterRecord | None:
        """The newest record; None if there is no such cluster here."""
        cluster = self._read_file()
        is_elsewhere = cluster is not None and self._region not in (None, cluster.spec.region)
        return None if is_elsewhere else cluster

    def _read_file(self) -> ClusterRecord | None:
        try:
            cluster = _CLUSTER.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            cluster = None
        if cluster is None or cluster.spec.name != self.name:
            raise UserError(
                f"{self._file}: is damaged; move it away, and `echelon cloud down {self.name}` goes by the tags"
            )
        return cluster

    def require(self) -> ClusterRecord:
        """As `read`; UserError if there is no such cluster."""
        cluster = self.read()
        if cluster is None:
            raise UserError(
                f"there is no cluster {self.name!r} here; {suggest_name(self.name, known_clusters())}`echelon cloud "
                "list` shows all"
            )
        return cluster

    def write(self, cluster: ClusterRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._file, _CLUSTER.dump_json(cluster, indent=2))

    def record(self, part: str) -> PartRecord | None:
        """Return the record of a part."""
        cluster = self.read()
        return cluster.parts.get(part) if cluster else None

    def note(self, part: str, record: PartRecord | None) -> None:
        """Record the state of a part; None: it is gone."""
        cluster = self.read()
        if cluster is None:
            return  # removing what only the tags know of
        parts = {name: old for name, old in cluster.parts.items() if name != part}
        self.write(replace(cluster, parts=parts if record is None else {**parts, part: record}))

    @property
    def runs(self) -> list[str]:
        """Run folders of this machine whose checkpoints are on the cluster and have not been fetched."""
        return [str(run) for run in read_json(self._runs)] if self._runs.exists() else []

    def note_run(self, run: Path, *, is_home: bool) -> None:
        """Record whether the checkpoints of a run that was trained on the cluster are here."""
        others = [each for each in self.runs if each != str(run)]
        write_atomically(self._runs, json.dumps(others if is_home else [*others, str(run)]))

    def forget(self) -> None:
        """Remove the folder: nothing is left at the provider."""
        if self._region is None or self.read() is not None:
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


def new_cluster(spec: ClusterSpec, max_hours: float, hourly: float, shared_hourly: float) -> ClusterRecord:
    """A cluster before anything of it has been made."""
    now = time.time()
    return ClusterRecord(spec, secrets.token_hex(4), now, now + max_hours * 3600, hourly, shared_hourly)


def clusters_folder() -> Path:
    """The folder of all journals."""
    named = os.environ.get(STATE_VARIABLE)
    default = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "echelon"
    return (Path(named) if named else default) / "clusters"


def known_clusters() -> list[str]:
    """The names of the clusters with a journal here."""
    names = (path.parent.name for path in clusters_folder().glob("*/cluster.json"))
    return sorted(name for name in names if is_cluster(name))


def suggest_name(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME? `; empty if no known name is similar."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]}? " if near else ""
