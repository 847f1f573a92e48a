"""Clusters as tests want them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from echelon.cloud.aws.calls import Clients, Clock
from echelon.cloud.bill import estimate
from echelon.cloud.cluster_spec import ClusterSpec, parse_spec
from echelon.cloud.journal import ClusterRecord, Journal
from echelon.cloud.lifecycle import Removed, bring_up, take_down


def virtual_clock() -> Clock:
    """A clock that is ahead of the real one by all that was slept: waiting takes no time."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    return Clock(lambda: time.time() + slept[0], sleep)


def sample_spec(**changes: Any) -> ClusterSpec:
    document = {
        "name": "wmt",
        "type": "g4dn.2xlarge",
        "count": 2,
        "ssh_from": "203.0.113.7",
        "bucket": "s3://mine/runs",
        **changes,
    }
    return parse_spec(document, ClusterSpec, "cluster.toml")


def up(clients: Clients, spec: ClusterSpec | None = None) -> ClusterRecord:
    spec = spec or sample_spec()
    return bring_up(spec, estimate(spec), spec.ssh_from, clients, lambda line: None)


def age(hours: float, name: str = "wmt") -> ClusterRecord:
    """The cluster, as if it had been made so much earlier."""
    journal = Journal(name)
    cluster = journal.require()
    journal.write(
        replace(cluster, created=cluster.created - hours * 3600, deadline=cluster.deadline - hours * 3600)
    )
    return journal.require()


def down(clients: Clients, name: str = "wmt") -> Removed:
    return take_down(name, clients, lambda line: None, now=0.0)
