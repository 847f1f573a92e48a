"""From nothing to a cluster and back: whatever happens on the way, nothing that costs money is forgotten."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.cluster import AwsCluster
from echelon.cloud.aws.context import MACHINES
from echelon.cloud.aws.image import require_disk
from echelon.cloud.aws.listing import find_everything
from echelon.cloud.aws.owner import find_caller
from echelon.cloud.aws.site import Site, find_site
from echelon.cloud.aws.zones import find_zone
from echelon.cloud.cost import SHORTEST_HOURS, Bill
from echelon.cloud.inventory import Login, render_known_hosts, render_ssh_config
from echelon.cloud.journal import Cluster, Journal, new_cluster
from echelon.cloud.keys import make_key
from echelon.cloud.parts import Left, Tell, remove_parts
from echelon.cloud.spec import ClusterSpec
from echelon.errors import CloudError, EchelonError, UserError
from echelon.runfolder import write_atomically


@dataclass(frozen=True)
class Removed:
    """What became of a cluster."""

    name: str
    left: list[Left]
    """What could not be removed."""
    cost: float | None
    """US dollars, by our list; None where nobody knows when it began."""


def bring_up(spec: ClusterSpec, bill: Bill, ssh_from: str, clients: Clients, tell: Tell) -> Cluster:
    """Make a cluster, or what is missing of it; what a failure left half-made is removed again.

    A cluster that was whole before stays: its files may hold results. Where its time is over, it gets a new one.
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
                raise CloudError(
                    f"{str(error) or 'interrupted'}\nthe rest of {spec.name} stays; `echelon cloud down` removes it"
                ) from None
            raise _undo(journal, parts, error, tell) from None


def undo(name: str, clients: Clients, error: BaseException, tell: Tell) -> EchelonError:
    """Remove a cluster that has just been made, because of `error`; the error that says what became of it."""
    journal = Journal(name)
    with journal.lock():
        return _undo(journal, AwsCluster(clients, journal), error, tell)


def _undo(journal: Journal, parts: AwsCluster, error: BaseException, tell: Tell) -> EchelonError:
    said = str(error) or "interrupted"
    cluster = journal.require()
    # Of a part that is not written down, nothing was ever asked for.
    begun = [part for part in parts.parts() if part.name in cluster.parts]
    left = remove_parts(begun, journal, tell, f"{said}: removing what has been made ...")
    if left:
        return CloudError(f"{said}\n{left_words(journal.name, left, cluster.hourly)}")
    journal.forget()
    kind = UserError if isinstance(error, UserError) else CloudError
    return kind(f"{said}\nnothing is left of {journal.name}; the same command begins again")


def _begin(journal: Journal, spec: ClusterSpec, bill: Bill, ssh_from: str, clients: Clients) -> Cluster:
    """The cluster as it is written down; a new one is, before anything of it exists."""
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


def require_same_spec(known: Cluster, spec: ClusterSpec) -> None:
    """UserError if a cluster was begun as another; only who may log in can change."""
    if known.spec.model_copy(update={"ssh_from": spec.ssh_from}) != spec:
        raise UserError(
            f"{spec.name} was begun with another cluster.toml; `echelon cloud down {spec.name}` first, or use "
            "another name"
        )


def check_new(clients: Clients, spec: ClusterSpec) -> Site:
    """Where a cluster can go that does not exist yet; UserError if it cannot, or if its name is taken."""
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


def is_ending(cluster: Cluster) -> bool:
    """Whether the time of its machines is over, or too short for any training."""
    return cluster.deadline - time.time() < SHORTEST_HOURS * 3600


def needs_new_time(cluster: Cluster, clients: Clients) -> bool:
    """Whether machines that are made now need a later end than is written down.

    UserError where others are about to end: nothing can put that off.
    """
    if not is_ending(cluster):
        return False
    name, left_s = cluster.spec.name, cluster.deadline - time.time()
    if left_s > 0 and AwsCluster(clients, Journal(name)).machines.find():
        raise UserError(
            f"the machines of {name} end by themselves in {left_s / 60:.0f} minutes; the same command rents others then"
        )
    return True


def _renew(journal: Journal, known: Cluster, bill: Bill, clients: Clients) -> Cluster:
    """Begin a new time; machines that have outlived the one before end first."""
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


def _give_back_time(journal: Journal, known: Cluster, parts: AwsCluster) -> None:
    """A time for which no machine could be had has not begun."""
    with contextlib.suppress(EchelonError):
        if not parts.machines.find():
            now = journal.require()
            before = replace(known, parts=now.parts, subnet=now.subnet, zone=now.zone)
            journal.write(replace(before, spec=now.spec, ssh_from=now.ssh_from))  # who may log in has changed


def write_inventory(journal: Journal, parts: AwsCluster) -> Cluster:
    """Note the hosts down, and how to reach them; one whose machine is gone is noted as it was, to be replaced."""
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
    """Remove all there is of a cluster, by what is written down and by the tags; may be repeated."""
    journal = Journal(name, clients.region)
    with journal.lock():
        cluster = journal.read()
        left = remove_parts(AwsCluster(clients, journal).parts(), journal, tell)
        if not left:
            journal.forget()
        return Removed(name, left, cost_so_far(cluster, now) if cluster else None)


def cost_so_far(cluster: Cluster, now: float) -> float:
    """What a cluster has cost, by our list: the machines until they ended by themselves, the files until now."""
    machines_s = max(0.0, min(now, cluster.deadline) - cluster.created)
    files_s = max(0.0, now - cluster.created)
    machines_hourly = cluster.hourly - cluster.shared_hourly
    return cluster.spent + (machines_hourly * machines_s + cluster.shared_hourly * files_s) / 3600


def left_words(name: str, left: Sequence[Left], hourly: float | None = None) -> str:
    """What could not be removed, what it may cost, and what to do."""
    lines = "".join(f"\n  {each.part} {each.id}: {each.why}" for each in left)
    again = f"`echelon cloud down {name}` tries again"
    runs = hourly and any(each.part == MACHINES for each in left)
    cost = f"may cost ${hourly:.2f} an hour" if runs else "may cost"
    return f"not everything of {name} could be removed, and it {cost}; {again}:{lines}"
