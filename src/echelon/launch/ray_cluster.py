"""A Ray cluster as a place to train: connect to it, reserve nodes, and hold an actor on each.

Ray finds nodes, holds their cores and GPUs for the run, and notices lost ones. Training is up to the agents of the
nodes, as on hosts (docs/decisions/0101).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.console import Tell
from echelon.errors import RemoteError, UserError
from echelon.extras import require_extra
from echelon.launch.interfaces import is_loopback
from echelon.launch.ray_actor import NodeActor, NodeFacts
from echelon.launch.ray_remote import RayRemote, as_remote_error, ask
from echelon.launch.ssh import side_by_side

NAMESPACE = "echelon"
_CALLS_AT_ONCE = 64
_CONNECT_S = 5.0
_PLACE_S = 300.0
"""How long a node may take to start an actor."""
_TAKE_S, _TRY_AGAIN_S = 30.0, 60.0
"""How long one more node may take, which others may be using, and when it is tried again."""
_WAIT_S = 1800.0
"""How long to wait for nodes, which an autoscaler may have to start."""
_POLL_S = 1.0


@dataclass(frozen=True)
class RayNode:
    """A node that is alive."""

    identity: str
    address: str
    cpus: float
    gpus: float

    def fits(self, demand: NodeDemand) -> bool:
        return self.cpus >= demand.cpus and self.gpus >= demand.gpus


@dataclass(frozen=True)
class NodeDemand:
    """What a run asks of each node: a core for each worker, and a GPU if the nodes have some."""

    cpus: int
    gpus: int = 0

    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, "GPU": self.gpus} if self.gpus else {"CPU": self.cpus}

    def __str__(self) -> str:
        return " and ".join(f"{count:g} {name}s" for name, count in self.bundle().items())


@dataclass(frozen=True)
class RayPlace:
    """Where to find the actors of a run: for `status` and others (cluster/roster.py)."""

    address: str
    """Of the cluster's head, with the port."""
    name: str
    """What the actors' names begin with."""

    def actor_name(self, node: str) -> str:
        return f"{self.name}-{node}"


@dataclass(frozen=True)
class RayCluster:
    """A cluster that this process is connected to."""

    address: str

    def nodes(self) -> list[RayNode]:
        """The nodes that are alive."""
        ray = _import_ray()
        return [_as_node(each) for each in ray.nodes() if each["Alive"]]


def _as_node(found: Mapping[str, Any]) -> RayNode:
    resources = found["Resources"]
    return RayNode(
        found["NodeID"], found["NodeManagerAddress"], resources.get("CPU", 0), resources.get("GPU", 0)
    )


def _import_ray() -> Any:
    # Read when ray is imported. Nothing of ours reports to anybody.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    return require_extra("ray", "ray")


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[RayCluster]:
    """A connection to a cluster that is running; `None` or "auto" finds the one that this machine belongs to.

    UserError if there is none, or if others could connect to it without a token.
    """
    ray = _import_ray()
    if ray.is_initialized():  # by a program of the user's, which ends it
        yield _require_token(ray)
        return
    if address not in (None, "auto"):
        assert address is not None
        _require_listener(address)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(_explain(address, str(error))) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)  # Ray puts its own there
    try:
        yield _require_token(ray)
    finally:
        ray.shutdown()


def _explain(address: str | None, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if "token" in said.lower() or "auth" in said.lower():
        return (
            f"the Ray cluster does not let us in: {lines[0]}; set RAY_AUTH_MODE=token and put the "
            "token into ~/.ray/auth_token"
        )
    if address in (None, "auto"):
        return (
            "this machine belongs to no Ray cluster; `ray start --head` begins one, `ray start --address=HEAD:6379` "
            f"joins one, --address names another ({lines[0] if lines else 'no reason given'})"
        )
    return (
        f"--address {address}: {lines[0] if lines else 'Ray gives no reason'}; if the cluster asks for a token, set "
        "RAY_AUTH_MODE=token and put the token into ~/.ray/auth_token"
    )


def _require_listener(address: str) -> None:
    """UserError if nothing listens there: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UserError(f"--address {address}: give HOST:PORT of the cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--address {address}: no Ray cluster answers there: {error}") from None


def _require_token(ray: Any) -> RayCluster:
    cluster = RayCluster(ray.get_runtime_context().gcs_address)
    others = [node.address for node in cluster.nodes() if not is_loopback(node.address)]
    if others and os.environ.get("RAY_AUTH_MODE") != "token":
        raise UserError(
            f"{cluster.address}: whoever reaches this Ray cluster can run anything on its nodes; start it with "
            "token authentication (RAY_AUTH_MODE=token on every node, docs/security.md), and set it here too"
        )
    return cluster


def render_group(demand: NodeDemand, count: int) -> tuple[list[dict[str, float]], str]:
    """The bundles of a placement group, and its strategy: each bundle on a node of its own."""
    return [demand.bundle()] * count, "STRICT_SPREAD"


def count_at_start(nodes: Sequence[RayNode], demand: NodeDemand, fewest: int, most: int | None) -> int:
    """How many nodes to begin with: all that fit, but not fewer or more than asked for."""
    fitting = sum(node.fits(demand) for node in nodes)
    return max(fewest, fitting if most is None else min(most, fitting))


@dataclass(frozen=True)
class _Held:
    """A node of ours."""

    actor: Any
    identity: str
    address: str
    loss: Any
    """The result of a call that ends only if the actor or its node is lost."""


class RayNodes:
    """The nodes of one run, each with its actor. They are called ray-0, ray-1, ...; no name is used twice.

    `count` nodes are asked for together; others are taken by `hold` and `add_node`.
    """

    def __init__(self, cluster: RayCluster, demand: NodeDemand, count: int) -> None:
        self.place = RayPlace(cluster.address, f"echelon-{secrets.token_hex(8)}")
        self.demand = demand
        self._cluster, self._ray = cluster, _import_ray()
        self._group = None
        if count:
            bundles, strategy = render_group(demand, count)
            self._group = self._ray.util.placement_group(bundles, strategy=strategy)
        self._held: dict[str, _Held] = {}
        self._num_started = 0
        self._unfit: set[str] = set()
        self._try_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, tell: Tell) -> None:
        """Return when there is an actor on each node; UserError if there are too few nodes."""
        assert self._group is not None
        count = self._group.bundle_count
        deadline, has_told = time.monotonic() + _WAIT_S, False
        while not self._group.wait(_POLL_S):
            if not has_told:
                has_told = True
                found = sum(node.fits(self.demand) for node in self._cluster.nodes())
                tell(f"waiting for {count} nodes of Ray with {self.demand} each; {found} are there")
            if time.monotonic() > deadline:
                raise UserError(
                    f"Ray has not found {count} nodes with {self.demand} each; --num-hosts and --workers ask for less"
                )
        nodes = {node.identity: node for node in self._cluster.nodes()}
        side_by_side(
            [(nodes[identity], bundle) for bundle, identity in self._bundles().items()],
            lambda found: self.hold(*found),
        )

    @property
    def names(self) -> list[str]:
        """Those of the nodes that are alive."""
        living = [
            name for name, held in list(self._held.items()) if not self._ray.wait([held.loss], timeout=0)[0]
        ]
        return sorted(living, key=lambda name: int(name.removeprefix("ray-")))

    def address(self, name: str) -> str:
        """Of a node, as the other nodes of the cluster reach it."""
        return self._held[name].address

    def is_on_loopback(self) -> bool:
        """Whether all nodes are this machine."""
        return all(is_loopback(held.address) for held in self._held.values())

    def remote(self, name: str) -> RayRemote:
        return RayRemote(name, lambda: self._held[name].actor)

    def add_node(self, tell: Tell) -> str | None:
        """Take one more node if there is one, or the one that Ray has found for a lost one; its name."""
        used = {self._held[name].identity for name in self.names}
        free = {
            node.identity: node
            for node in self._cluster.nodes()
            if node.identity not in used | self._unfit
            and node.fits(self.demand)
            and time.monotonic() > self._try_at.get(node.identity, 0.0)
        }
        bundles = {identity: bundle for bundle, identity in self._bundles().items()}
        for identity in sorted(free, key=lambda identity: identity not in bundles):
            try:
                return self.hold(free[identity], bundles.get(identity), timeout_s=_TAKE_S)
            except RemoteError:  # somebody else uses its cores; or it has been lost again
                self._try_at[identity] = time.monotonic() + _TRY_AGAIN_S
            except UserError as error:  # it is open to everybody
                self._unfit.add(identity)
                tell(str(error))
        return None

    def refuse(self, name: str) -> None:
        """Give a node back that cannot be used, and leave it alone from now on."""
        held = self._held.pop(name)
        self._unfit.add(held.identity)
        self._ray.kill(held.actor)

    def close(self) -> None:
        """End the actors, with all that is left of what they have started, and give the nodes back."""
        for held in self._held.values():
            self._ray.kill(held.actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def _bundles(self) -> dict[int, str]:
        """The nodes that hold our bundles. Ray itself looks for another one if one is lost."""
        if self._group is None:
            return {}
        table = self._ray.util.placement_group_table(self._group)
        return {int(bundle): str(node) for bundle, node in table["bundles_to_node_id"].items()}

    def hold(self, node: RayNode, bundle: int | None = None, *, timeout_s: float = _PLACE_S) -> str:
        """Put an actor on a node and return the node's name; RemoteError if it does not start, UserError without token
        authentication."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        with self._lock:
            name = f"ray-{self._num_started}"
            self._num_started += 1
        if bundle is None:
            strategy = strategies.NodeAffinitySchedulingStrategy(node.identity, soft=False)
        else:
            strategy = strategies.PlacementGroupSchedulingStrategy(self._group, bundle)
        options = {
            "name": self.place.actor_name(name),
            "namespace": NAMESPACE,
            "num_cpus": self.demand.cpus,
            "num_gpus": self.demand.gpus,
            "max_restarts": 0,
            "max_concurrency": _CALLS_AT_ONCE,
            "scheduling_strategy": strategy,
        }
        actor = self._ray.remote(NodeActor).options(**options).remote()
        try:
            facts: NodeFacts = ask(name, actor.describe, timeout_s=timeout_s)
        except RemoteError:
            self._ray.kill(actor)
            raise
        if not is_loopback(node.address) and not facts.wants_token:
            self._ray.kill(actor)
            raise UserError(
                f"{name} ({facts.hostname}): its Ray was started without RAY_AUTH_MODE=token, so whoever reaches it "
                "can run anything there; start it again with it (docs/security.md)"
            )
        self._held[name] = _Held(actor, node.identity, node.address, actor.stay.remote())
        return name


@contextlib.contextmanager
def reserved(cluster: RayCluster, demand: NodeDemand, count: int, tell: Tell) -> Iterator[RayNodes]:
    """Nodes of the cluster, for as long as this lasts."""
    nodes = RayNodes(cluster, demand, count)
    try:
        nodes.wait(tell)
        yield nodes
    finally:
        nodes.close()


class NodesElsewhere:
    """The nodes of a run that another process has begun. Ray is asked for them when they are needed."""

    def __init__(self, place: RayPlace) -> None:
        self._place = place
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._is_connected = False
        self._problem = ""

    def remote(self, name: str) -> RayRemote:
        return RayRemote(name, lambda: self._find(name))

    def close(self) -> None:
        self._stack.close()

    def _find(self, name: str) -> Any:
        self._connect()
        if self._problem:
            raise RemoteError(name, "unreachable", self._problem)
        try:
            with as_remote_error(name):
                return _import_ray().get_actor(self._place.actor_name(name), NAMESPACE)
        except ValueError:
            raise RemoteError(name, "refused", "Ray has ended the run's actor there") from None

    def _connect(self) -> None:
        with self._lock:
            if self._is_connected or self._problem:
                return
            try:
                self._stack.enter_context(connected(self._place.address))
                self._is_connected = True
            except UserError as error:
                self._problem = str(error)
