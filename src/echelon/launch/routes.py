"""The right network interface of each host, decided from what the hosts say about themselves and each other.

Every host listens for a moment on each of its addresses and tries those of all others. An address is good when every
other host gets through to it, and to the host itself: a bridge of Docker's has the same address everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from echelon.launch.machine import Machine

NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Route:
    """Where a host meets the others: for GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and what stores bind to."""

    interface: str
    address: str
    network: str = ""
    """E.g. 10.0.0.0/24."""
    speed_mbit: int = 0
    """The interface's; 0 if it is not known."""


@dataclass(frozen=True)
class Attempt:
    """One host trying one address of another."""

    source: str
    """The host that tried."""
    target: str
    address: str
    error: str | None
    """None if it got through."""
    own_address: str | None
    """The address from which it would send."""


@dataclass(frozen=True)
class Unreached:
    """A pair of hosts that cannot connect, at the address that works best for the others."""

    source: str
    target: str
    route: Route
    error: str


@dataclass(frozen=True)
class Network:
    """The routes of all hosts that have one, and which pairs cannot meet."""

    routes: dict[str, Route]
    unreached: tuple[Unreached, ...]


def candidates(machines: Mapping[str, Machine], interface: str | None = None) -> dict[str, list[Route]]:
    """Where each host could meet the others; only on `interface` if one is named.

    Loopback serves hosts that are all the same machine, and a host on its own; nothing else is as safe there.
    """
    is_one = len({machine.identity for machine in machines.values()}) == 1
    return {
        host: [
            Route(found.name, address, network, found.speed_mbit)
            for found in machine.interfaces
            if (found.name == interface if interface else found.is_loopback == is_one)
            for address, network in zip(found.addresses, found.networks, strict=True)
        ]
        for host, machine in machines.items()
    }


def choose_routes(
    machines: Mapping[str, Machine], possible: Mapping[str, Sequence[Route]], attempts: Sequence[Attempt]
) -> Network:
    """The best of each host's possible routes: on one network that serves all, or each host for itself."""
    ways_of_ssh = {(host, machine.ssh_address) for host, machine in machines.items()}
    common = [routes for routes in _common_networks(possible) if not _find_unreached(routes, attempts)]
    if common:
        # The slowest host sets the pace; of equally fast networks, the one that ssh came by is the likeliest.
        routes = max(
            common,
            key=lambda routes: (
                min(route.speed_mbit for route in routes.values()),
                sum((host, route.address) in ways_of_ssh for host, route in routes.items()),
            ),
        )
    else:
        routes = {
            host: _best_of(host, choices, attempts, ways_of_ssh)
            for host, choices in possible.items()
            if choices
        }
    return Network(routes, tuple(_find_unreached(routes, attempts)))


def _common_networks(possible: Mapping[str, Sequence[Route]]) -> Iterator[dict[str, Route]]:
    """For each network that all hosts are on, the route of each host."""
    networks = dict.fromkeys(route.network for choices in possible.values() for route in choices)
    for network in networks:
        routes = {
            host: route
            for host, choices in possible.items()
            for route in reversed(choices)
            if route.network == network
        }
        if len(routes) == len(possible):
            yield routes


def _best_of(
    host: str, choices: Sequence[Route], attempts: Sequence[Attempt], ways_of_ssh: set[tuple[str, str | None]]
) -> Route:
    """Prefer the route that reaches most hosts, then the faster one."""

    def preference(route: Route) -> tuple[int, int, int, bool]:
        successes = [attempt for attempt in attempts if not attempt.error]
        reached = sum((attempt.target, attempt.address) == (host, route.address) for attempt in successes)
        # The host's own connections leave where its kernel sends them.
        leaving = sum((attempt.source, attempt.own_address) == (host, route.address) for attempt in successes)
        return reached, leaving, route.speed_mbit, (host, route.address) in ways_of_ssh

    return max(choices, key=preference)


def _find_unreached(routes: Mapping[str, Route], attempts: Sequence[Attempt]) -> list[Unreached]:
    return [
        Unreached(attempt.source, attempt.target, routes[attempt.target], attempt.error)
        for attempt in attempts
        if attempt.target in routes and attempt.address == routes[attempt.target].address and attempt.error
    ]
