"""`train --launcher ray`: hold nodes of a Ray cluster, and train on them as on hosts.

The agents decide who trains, as everywhere: if a node is lost, the others continue by themselves. The loop here does
what only Ray can: it takes nodes that come. A new node has an address of its own, and agents know each other by the
addresses that they were started with, so the run saves and begins again with agents on all nodes
(docs/decisions/0102).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from echelon.agent.outcome import RunOutcome
from echelon.cluster.roster import read_roster
from echelon.commands.cluster_options import ClusterOptions
from echelon.commands.remote_training import (
    describe_launch,
    render_needs,
    train_on_hosts,
)
from echelon.commands.training import (
    Begun,
    TrainOptions,
    begin,
    find_or_prepare,
    open_run,
    say_what_begins,
    summarise,
)
from echelon.console import Tell, tell
from echelon.errors import EchelonError, HostsError
from echelon.launch.check import check_hosts
from echelon.launch.findings import Finding
from echelon.launch.hosts import Host
from echelon.launch.ray_actor import NODE_PYTHON
from echelon.launch.ray_cluster import (
    NodeDemand,
    RayCluster,
    RayNode,
    RayNodes,
    connected,
    count_at_start,
    reserved,
)
from echelon.launch.stop_requests import StopRequests
from echelon.recipe.workers import WorkerRange, parse_workers

_LOOK_S, _LEAVE_S = 3.0, 5.0


@dataclass(frozen=True)
class RayRequest:
    """Which cluster to train on, and what each node gives."""

    address: str | None = None
    gpus_per_node: int | None = None


@dataclass(frozen=True)
class NodeCount:
    """How many nodes there must be, and how many may take part; None: what there is, and what there is at the start."""

    fewest: int | None = None
    most: int | None = None


def parse_count(text: str | None) -> NodeCount:
    """Parse MIN:MAX or MIN of --num-hosts."""
    if text is None:
        return NodeCount()
    fewest, colon, most = text.partition(":")
    try:
        count = NodeCount(int(fewest), int(most) if colon else None)
    except ValueError:
        raise HostsError(
            f"--num-hosts {text}: write how many nodes there must be and may be, as in 2:4"
        ) from None
    if count.fewest is None or count.fewest < 1 or (count.most is not None and count.most < count.fewest):
        raise HostsError(f"--num-hosts {text}: at least 1, and at most no fewer than that")
    return count


def find_demand(workers: WorkerRange, nodes: list[RayNode], gpus_per_node: int | None) -> NodeDemand:
    """What to ask of each node: one worker for each GPU, or as many as the recipe says; a core for each."""
    if not workers.is_auto and not workers.is_fixed:
        raise HostsError(f"--workers {workers}: a node has a fixed number of workers; give one number")
    gpus = gpus_per_node or 0
    with_gpus = [int(node.gpus) for node in nodes if node.gpus >= 1]
    if gpus_per_node is None and with_gpus:
        gpus = min(with_gpus) if workers.is_auto else workers.most
    if not workers.is_auto:
        return NodeDemand(workers.most, gpus)
    cores = [int(node.cpus) for node in nodes if node.cpus >= 1]
    return NodeDemand(gpus or workers.at_start(min(cores, default=1)), gpus)


def train_on_ray(options: TrainOptions, request: RayRequest, console: Console) -> dict[str, Any]:
    """As `train`, on nodes of a Ray cluster."""
    with connected(request.address) as cluster:
        with begin(options, console) as begun:
            say_what_begins(begun, parse_workers(begun.recipe.train.workers), console)
        with _reserve(cluster, options, begun.recipe.train.workers, request, console) as nodes:
            ended = _train_on_nodes(options, begun, nodes, console)
    return summarise(begun.run, begun.recipe, ended)


def describe_ray_launch(options: TrainOptions, request: RayRequest, console: Console) -> dict[str, list[str]]:
    """What would be run on every node, by name. Nodes are held and probed meanwhile; nothing else is started."""
    recipe, run = open_run(options)
    with connected(request.address) as cluster:
        prepared = find_or_prepare(options, recipe, run, console)
        with _reserve(cluster, options, recipe.train.workers, request, console) as nodes:
            return describe_launch(_as_hosts(options, nodes), run, recipe, prepared, console)


@contextlib.contextmanager
def _reserve(
    cluster: RayCluster, options: TrainOptions, workers: object, request: RayRequest, console: Console
) -> Iterator[RayNodes]:
    assert options.cluster is not None
    wanted, there = parse_count(options.cluster.num_hosts), cluster.nodes()
    demand = find_demand(options.workers or parse_workers(workers), there, request.gpus_per_node)
    count = count_at_start(there, demand, wanted.fewest or 1, wanted.most)
    with reserved(cluster, demand, count, partial(tell, console)) as nodes:
        yield nodes


def _as_hosts(options: TrainOptions, nodes: RayNodes) -> ClusterOptions:
    """The options for the nodes that are alive."""
    assert options.cluster is not None
    hosts = [Host(name, nodes.demand.cpus) for name in nodes.names]
    fewest = parse_count(options.cluster.num_hosts).fewest
    if len(hosts) < (fewest or 1):
        raise HostsError(f"{len(hosts)} nodes of Ray are left; --num-hosts asks for at least {fewest or 1}")
    size = f"{fewest}:{len(hosts)}" if fewest else None
    return replace(options.cluster, hosts=hosts, num_hosts=size, python=NODE_PYTHON, ray=nodes)


def _train_on_nodes(options: TrainOptions, begun: Begun, nodes: RayNodes, console: Console) -> RunOutcome:
    """Train to the end; again from the last step, on all nodes, each time that there are more of them."""
    assert options.cluster is not None
    most = parse_count(options.cluster.num_hosts).most or len(nodes.names)
    while True:
        hosts, stops = _as_hosts(options, nodes), StopRequests()
        is_fit = partial(_is_fit, hosts, nodes, begun, console)
        with _taking_in(nodes, most, is_fit, stops, partial(tell, console)):
            ended = train_on_hosts(hosts, begun, console, stops)
        if not stops.is_pause or stops.is_set or ended.outcome != "interrupted":
            return ended
        tell(console, f"continuing on {', '.join(nodes.names)}")


@contextlib.contextmanager
def _taking_in(
    nodes: RayNodes, most: int, is_fit: Callable[[str], bool], stops: StopRequests, say: Tell
) -> Iterator[None]:
    """Look for nodes meanwhile; if there are more that can be used, have the run save and leave."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_S):
            found = 0
            while len(nodes.names) < most and not is_over.is_set() and (name := nodes.add_node(say)):
                if is_fit(name):
                    found += 1
                else:
                    nodes.refuse(name)
            if found:
                stops.is_pause = True
                return

    thread = threading.Thread(target=look, name="nodes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_LEAVE_S)  # what it is about to hold goes with our connection to Ray


def _is_fit(options: ClusterOptions, nodes: RayNodes, begun: Begun, console: Console, name: str) -> bool:
    """Whether a node that has come can take part; the user is told why not."""
    needs = replace(render_needs(options, begun.run, begun.prepared), measures_link=False)
    [report] = check_hosts([Host(name, nodes.demand.cpus)], {name: nodes.remote(name)}, needs)
    wrong = [
        finding
        for finding in report.findings
        if finding.is_fatal and not (options.sync and finding.remedy.startswith("--sync"))
    ]
    roster = None
    with contextlib.suppress(EchelonError):
        roster = read_roster(begun.run)
    if roster and report.facts and report.facts.shares_run_folder != roster.entries[0].sees_our_folder:
        wrong.append(Finding(f"{begun.run.path} is another folder there than for the others", "share it"))
    for finding in wrong:
        tell(console, f"{name} ({nodes.address(name)}) is left out: {finding.what}; {finding.remedy}")
    if not wrong:
        tell(console, f"{name} ({nodes.address(name)}) has come: the run saves, and continues with it")
    return not wrong
