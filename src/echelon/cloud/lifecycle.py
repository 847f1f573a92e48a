"""Making and removing a cluster, so that nothing that costs money is forgotten, whatever fails on the way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from echelon.cloud.aws.aws_cluster import AwsCluster
from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.context import MACHINES
from echelon.cloud.aws.image import require_disk
from echelon.cloud.aws.location import Site, find_site
from echelon.cloud.aws.owner import find_caller
from echelon.cloud.aws.resources import find_everything
from echelon.cloud.aws.zones import find_zone
from echelon.cloud.bill import SHORTEST_HOURS, Bill
from echelon.cloud.cluster_spec import ClusterSpec
from echelon.cloud.inventory import Login, render_known_hosts, render_ssh_config
from echelon.cloud.journal import ClusterRecord, Journal, new_cluster
from echelon.cloud.parts import Left, remove_parts
from echelon.cloud.ssh_keys import make_key
from echelon.console import Tell
from echelon.errors import CloudError, EchelonError, UserError
from echelon.runfolder import write_atomically


@dataclass(frozen=True)
class Removed:
    """The result of removing a cluster."""

    name: str
    left: list[Left]
    """What could not be removed."""
    cost: float | None
    """US dollars, by our list; None if its start is unknown."""


def bring_up(spec: ClusterSpec, bill: Bill, ssh_from: str, clients: Clients, tell: Tell) -> ClusterRecord:
    """Make a cluster, or what is missing of it; what a failure left half-made is removed again.

    A cluster that was complete before stays: its files may hold results. If its deadline has passed, it gets a new one.
    """
    journal = Journal(spec.name)
    with journal.lock():
        known = journal.read()
        _begin(journal, spec, bill, ssh_from, clients)
        parts = AwsCluster(clients, journal)
        try:
            parts.make(tell)
            return write_inventory(journal, parts)
        except (EchelonError, KeyboardInterrupt) as error:
            if known and known.hosts:
                _give_back_time(journal, known, parts)
                raise CloudError(f"{str(error) or 'interrupted'}\n{format_kept(journal.require())}") from None
            raise _undo(journal, parts, error, tell) from None


def format_kept(cluster: ClusterRecord) -> str:
    """What remains of a cluster that existed before a command that failed."""
    cost = "" if is_ending(cluster) else f", and costs up to ${cluster.hourly:.2f} an hour"
    return f"{cluster.spec.name} stays{cost}; `echelon cloud down {cluster.spec.name}` removes it"


def undo(name: str, clients: Clients, error: BaseException, tell: Tell) -> EchelonError:
    """Remove a cluster that has just been begun, because of `error`; return the error to raise."""
    journal = Journal(name)
    with journal.lock():
        return _undo(journal, AwsCluster(clients, journal), error, tell)


def _undo(journal: Journal, parts: AwsCluster, error: BaseException, tell: Tell) -> EchelonError:
    said = str(error) or "interrupted"
    cluster = journal.read()
    # A part that is not in the journal was never requested.
    begun = [part for part in parts.parts() if cluster and part.name in cluster.parts]
    left = remove_parts(begun, journal, tell, f"{said}: removing what has been made ...")
    if left:
        return CloudError(f"{said}\n{format_left(journal.name, left, cluster.hourly if cluster else None)}")
    journal.forget()
    kind = UserError if isinstance(error, UserError) else CloudError
    return kind(f"{said}\nnothing is left of {journal.name}; the same command begins again")


def _begin(journal: Journal, spec: ClusterSpec, bill: Bill, ssh_from: str, clients: Clients) -> ClusterRecord:
    """The cluster's record; that of a new one is written before anything of it exists."""
    known = journal.read()
    if known is not None:
        require_same_spec(known, spec)
        known = replace(known, spec=spec, ssh_from=ssh_from)
        journal.write(known)
        return _renew(journal, known, bill, clients) if needs_new_time(known, clients) else known
    site = check_new(clients, spec)
    cluster = replace(
        new_cluster(spec, bill.max_hours, bill.hourly, bill.shared_hour),
        owner=find_caller(clients),
        ssh_from=ssh_from,
        subnet=site.subnet,
        zone=find_zone(clients, site.subnet),
        image=site.image,
        max_price=bill.max_price,
    )
    journal.write(cluster)
    return cluster


def require_same_spec(known: ClusterRecord, spec: ClusterSpec) -> None:
    """UserError if a cluster was made from another spec; only `ssh_from` may change."""
    if known.spec.model_copy(update={"ssh_from": spec.ssh_from}) != spec:
        raise UserError(
            f"{spec.name} was begun with another cluster.toml; `echelon cloud down {spec.name}` first, or use "
            "another name"
        )


def check_new(clients: Clients, spec: ClusterSpec) -> Site:
    """The location for a new cluster; UserError if there is none, or the name is taken."""
    owners = {found.owner for found in find_everything(clients) if found.cluster == spec.name}
    if owners:
        whose = " and ".join(sorted(owners - {""})) or "somebody"
        raise UserError(
            f"there is a cluster {spec.name!r} in {spec.region} that is not written down here, made by {whose}; use "
            f"another name. `echelon cloud down {spec.name} --region {spec.region}` would remove it"
        )
    site = find_site(clients, spec)
    require_disk(clients, site.image, spec.disk_gb)
    return site


def is_ending(cluster: ClusterRecord) -> bool:
    """Whether its deadline has passed, or is too near for any training."""
    return cluster.deadline - time.time() < SHORTEST_HOURS * 3600


def needs_new_time(cluster: ClusterRecord, clients: Clients) -> bool:
    """Whether machines made now need a later deadline than the recorded one.

    UserError if others are about to end: nothing can put that off.
    """
    if not is_ending(cluster):
        return False
    name, left_s = cluster.spec.name, cluster.deadline - time.time()
    if left_s > 0 and AwsCluster(clients, Journal(name)).machines.find():
        raise UserError(
            f"the machines of {name} terminate by themselves in {left_s / 60:.0f} minutes; "
            "the same command rents others then"
        )
    return True


def _renew(journal: Journal, known: ClusterRecord, bill: Bill, clients: Clients) -> ClusterRecord:
    """Set a new deadline; machines that have outlived the old one end first."""
    AwsCluster(clients, journal).machines.remove_all()
    now = time.time()
    cluster = replace(
        journal.require(),
        created=now,
        deadline=now + bill.max_hours * 3600,
        hourly=bill.hourly,
        shared_hourly=bill.shared_hour,
        max_price=bill.max_price,
        spent=cost_so_far(known, now),
    )
    journal.write(cluster)
    return cluster


def _give_back_time(journal: Journal, known: ClusterRecord, parts: AwsCluster) -> None:
    """Restore the deadline if no machine could be started."""
    with contextlib.suppress(EchelonError):
        if not parts.machines.find():
            now = journal.require()
            before = replace(known, parts=now.parts, subnet=now.subnet, zone=now.zone)
            journal.write(replace(before, spec=now.spec, ssh_from=now.ssh_from))  # who may log in has changed


def write_inventory(journal: Journal, parts: AwsCluster) -> ClusterRecord:
    """Record the hosts and how to reach them; a host whose machine is gone keeps its record, to be replaced."""
    cluster = journal.require()
    hosts = {host.number: host for host in (*cluster.hosts, *parts.machines.hosts())}
    cluster = replace(cluster, hosts=tuple(hosts[number] for number in sorted(hosts)))
    journal.write(cluster)
    spec = cluster.spec
    key = spec.key_file or str(journal.key)
    write_atomically(
        journal.known_hosts, render_known_hosts(spec.name, make_key(journal.host_key, spec.name))
    )
    login = Login(
        cluster=spec.name,
        user=spec.user,
        key=key,
        known_hosts=journal.known_hosts,
        proxy_jump=spec.proxy_jump or "",
        ssm_region=spec.region if spec.ssm else "",
    )
    write_atomically(journal.ssh_config, render_ssh_config(login, cluster.hosts))
    return cluster


def take_down(name: str, clients: Clients, tell: Tell, now: float) -> Removed:
    """Remove everything of a cluster, by journal and by tags; may be repeated."""
    journal = Journal(name, clients.region)
    with journal.lock():
        cluster = journal.read()
        left = remove_parts(AwsCluster(clients, journal).parts(), journal, tell)
        if not left:
            journal.forget()
        return Removed(name, left, cost_so_far(cluster, now) if cluster else None)


def cost_so_far(cluster: ClusterRecord, now: float) -> float:
    """The cost of a cluster so far, by our list: machines until their deadline, files until now."""
    machines_s = max(0.0, min(now, cluster.deadline) - cluster.created)
    files_s = max(0.0, now - cluster.created)
    machines_hourly = cluster.hourly - cluster.shared_hourly
    return cluster.spent + (machines_hourly * machines_s + cluster.shared_hourly * files_s) / 3600


def format_left(name: str, left: Sequence[Left], hourly: float | None = None) -> str:
    """A message about what could not be removed, its cost, and what to do."""
    lines = "".join(f"\n  {each.part} {each.id}: {each.why}" for each in left)
    again = f"`echelon cloud down {name}` tries again"
    runs = hourly and any(each.part == MACHINES for each in left)
    cost = f"may cost ${hourly:.2f} an hour" if runs else "may cost"
    return f"not everything of {name} could be removed, and it {cost}; {again}:{lines}"
