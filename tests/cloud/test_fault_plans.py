"""The whole life of a cluster on an AWS of bad days: in the end all is right or nothing is left, and the user knows."""

from __future__ import annotations

import base64
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from moto.backends import get_backend

from echelon.cloud.aws.calls import Clients
from echelon.cloud.bill import estimate
from echelon.cloud.journal import ClusterRecord, Journal, known_clusters
from echelon.cloud.lifecycle import bring_up, format_left, take_down
from echelon.cloud.ssh_keys import make_key
from echelon.commands import cloud
from echelon.errors import EchelonError
from tests.cloud.clusters import sample_spec
from tests.cloud.faults import (
    INCIDENTS,
    LONGEST_LAG_S,
    CrashError,
    FaultPlan,
    FaultyClients,
    backends,
    forget_ended_machines,
    make_plan,
)
from tests.cloud.server import ACCOUNT, PLACEMENT, REGION, everything_left

FEW, MANY = 40, 500


@dataclass
class Account:
    """An account within this process; keys for its clusters, as making them takes longer than a plan."""

    folder: Path
    clients: Clients


@pytest.fixture
def account(aws: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name in ("key", "host_key"):
        make_key(tmp_path / "keys" / name, "wmt")
    return Account(tmp_path, aws)


@dataclass
class Life:
    """One cluster from `up` to `down`, and what the user was told."""

    clients: FaultyClients
    told: list[str]
    cluster: ClusterRecord | None = None
    ended: str = ""


def live(plan: FaultPlan, account: Account) -> Life:
    """Make, list and remove a cluster while `plan` happens; what is wrong is an AssertionError."""
    random.seed(plan.seed)
    shutil.rmtree(account.folder / "state", ignore_errors=True)
    shutil.copytree(account.folder / "keys", Journal("wmt").folder)
    life = Life(FaultyClients(account.clients, plan), [])
    try:
        _bring_up(life)
        if life.cluster:
            check_right(life.cluster, plan)
            account.clients.clock.sleep(300)  # until the machines have booted; no moment of the plan
            _list(life)
        _take_down(life)
        assert everything_left() == []
        assert known_clusters() == []
    finally:
        forget_ended_machines()
    return life


def _bring_up(life: Life) -> None:
    spec = sample_spec()
    while not life.ended:
        try:
            life.cluster = bring_up(spec, estimate(spec), spec.ssh_from, life.clients, life.told.append)
            life.ended = "ready"
        except CrashError:
            life.told.append("CRASH")
        except (EchelonError, KeyboardInterrupt) as error:
            life.ended = str(error) or "interrupted"
            check_truth(life.ended)


def _list(life: Life) -> None:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cloud, "Clients", lambda region: life.clients)
            (listed,) = cloud.list_clusters(REGION)
    except (CrashError, KeyboardInterrupt, EchelonError):
        return
    assert (listed.name, listed.state, listed.machines) == ("wmt", "running", 2)


def _take_down(life: Life) -> None:
    """Remove it, as often as it takes; the last time, on a good day."""
    for attempt in range(6):
        if attempt == 4:
            life.clients.follow(replace(life.clients._plan, incidents={}, lost=0.0, throttled=0.0))
        try:
            removed = take_down("wmt", life.clients, life.told.append, now=0.0)
        except CrashError:
            continue
        if not removed.left:
            return
        check_truth(format_left("wmt", removed.left))
        life.clients.follow(life.clients._plan)  # the user has logged in again
    raise AssertionError("could not be removed on a good day")


def check_truth(said: str) -> None:
    """What an error says is left, is; and nothing else."""
    if "not everything of wmt could be removed" in said:
        machines = [each.id for each in backends()[0].all_instances() if each.state != "terminated"]
        is_unknown = "machines :" in said
        assert [id_ for id_ in machines if id_ not in said and not is_unknown] == [], said
        assert "`echelon cloud down wmt` tries again" in said
    else:
        assert everything_left() == [], said
        assert known_clusters() == [], said


def check_right(cluster: ClusterRecord, plan: FaultPlan) -> None:
    """The account holds what the spec says, once, and each part refers to the others."""
    ec2, efs = backends()
    groups = {group.name: group for group in ec2.describe_security_groups() if group.name != "default"}
    hosts, files = groups.pop("echelon-wmt-hosts"), groups.pop("echelon-wmt-files")
    assert groups == {}
    rules = sorted((str(rule.from_port), str(rule.ip_range)) for rule in hosts.ingress_rules)
    assert [port for port, _ in rules] == ["22", "None"]
    assert "203.0.113.7/32" in rules[0][1]
    (nfs,) = files.ingress_rules
    assert nfs.source_group["GroupId"] == hosts.id
    assert files.egress_rules == []
    (system,) = efs.file_systems_by_id.values()
    (mount,) = efs.mount_targets_by_id.values()
    assert (mount.file_system_id, mount.subnet_id) == (system.file_system_id, cluster.subnet)
    assert mount.security_groups == [files.id]
    machines = {each.id: each for each in ec2.all_instances() if each.state != "terminated"}
    assert [host.id for host in cluster.hosts] == list(dict.fromkeys(host.id for host in cluster.hosts))
    assert {host.id for host in cluster.hosts} == set(machines)
    assert [host.number for host in cluster.hosts] == [0, 1]
    for host in cluster.hosts:
        check_machine(cluster, host.number, machines[host.id], hosts.id, mount.ip_address)
    assert cluster.zone not in plan.full_zones
    assert ec2.get_subnet(cluster.subnet).availability_zone == cluster.zone
    iam: Any = get_backend("iam")[ACCOUNT]["aws"]
    (profile,), (role,) = iam.instance_profiles.values(), iam.roles.values()
    assert [each.name for each in profile.roles] == [role.name]
    assert list(PLACEMENT) == [(REGION, "echelon-wmt")]


def check_machine(cluster: ClusterRecord, number: int, machine: Any, group: str, files: str) -> None:
    assert {each.id for each in machine.security_groups} | {
        each.id for nic in machine.nics.values() for each in nic.group_set
    } == {group}
    assert machine.subnet_id == cluster.subnet
    assert machine.key_name == "echelon-wmt"
    tags = {tag["key"]: tag["value"] for tag in machine.get_tags()}
    assert tags["echelon:cluster"] == "wmt"
    assert (tags["echelon:host"], tags["Name"]) == (str(number), f"wmt-{number}")
    text = machine.user_data.decode()
    text = text if text.startswith("#cloud-config") else base64.b64decode(text).decode()
    assert f"DEADLINE={int(cluster.deadline)} " in text
    assert f"{files}:/" in text
    assert machine.instance_initiated_shutdown_behavior == "terminate"


def live_all(seeds: range, account: Account) -> Counter[str]:
    """Run a plan for each seed; how they ended."""
    ends = Counter[str]()
    for seed in seeds:
        try:
            life = live(make_plan(seed), account)
        except BaseException as error:
            error.add_note(str(make_plan(seed)))
            raise
        ends["ready" if life.cluster else "nothing" if "nothing is left" in life.ended else "told"] += 1
    return ends


def test_a_cluster_lives_through_bad_days(account: Account) -> None:
    ends = live_all(range(FEW), account)
    assert min(ends["ready"], ends["nothing"]) > FEW / 10, ends


MAKING = (
    "import_key_pair",
    "create_security_group",
    "create_placement_group",
    "create_file_system",
    "create_mount_target",
    "create_role",
    "create_instance_profile",
    "run_instances",
)


@pytest.mark.parametrize("what", ["crash", "interrupt", "outage"])
def test_what_was_made_without_an_answer_is_not_forgotten(account: Account, what: str) -> None:
    for call in MAKING:
        plan = FaultPlan(0, lag_s=LONGEST_LAG_S, throttled=0.0, lost=0.0, incidents={call: what})
        life = live(plan, account)
        assert plan.incidents == {}, call
        assert bool(life.cluster) == (what == "crash"), call


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("incident", INCIDENTS)
def test_a_cluster_lives_through_an_incident_at_every_call(account: Account, incident: str) -> None:
    calm = FaultPlan(0, lag_s=0.0, throttled=0.0, lost=0.0, ready_s=0.0)
    moments = live(calm, account).clients.moments
    assert moments > 80
    for moment in range(1, moments + 1):
        plan = replace(calm, incidents={moment: incident})
        live(plan, account)
        assert plan.incidents == {}, moment


@pytest.mark.slow
@pytest.mark.long
def test_a_cluster_lives_through_many_bad_days(account: Account) -> None:
    ends = live_all(range(FEW, FEW + MANY), account)
    assert min(ends["ready"], ends["nothing"]) > MANY / 10, ends
