"""The choice of each host's network interface, from what hosts on various networks would report."""

from __future__ import annotations

import dataclasses

from echelon.launch.machine import Machine, NetworkInterface
from echelon.launch.routes import Attempt, Network, Route, Unreached, candidates, choose_routes
from tests.launch.machines import MACHINE


def interface(name: str, address: str, speed_mbit: int = 0) -> NetworkInterface:
    network = address.rpartition(".")[0] + ".0/24"
    return NetworkInterface(name, (address,), (network,), speed_mbit, address.startswith("127."))


LO = interface("lo", "127.0.0.1")
DOCKER = interface("docker0", "172.17.0.1", 10_000)


def machine(identity: str, *interfaces: NetworkInterface, ssh_address: str | None = None) -> Machine:
    return dataclasses.replace(
        MACHINE, identity=identity, interfaces=(LO, *interfaces), ssh_address=ssh_address
    )


def ethernet(address: str, speed_mbit: int = 0) -> NetworkInterface:
    return interface("eth0", address, speed_mbit)


def infiniband(address: str) -> NetworkInterface:
    return interface("ib0", address, 100_000)


def route(name: str, address: str) -> Route:
    return Route(name, address, interface(name, address).networks[0], 0)


def attempts_of(machines: dict[str, Machine], *failures: tuple[str, str]) -> list[Attempt]:
    """Every host trying every address of the others; it leaves from its own address on the same network, if any."""
    found = []
    for source, own in machines.items():
        for target, routes in candidates(machines).items():
            for route in routes if target != source else []:
                mine = [a for interface in own.interfaces for a in interface.addresses]
                near = [a for a in mine if a.rpartition(".")[0] == route.address.rpartition(".")[0]]
                error = "timed out" if (source, route.address) in failures else None
                is_other = own.identity != machines[target].identity
                error = "another machine answers" if is_other and route.address in mine else error
                found.append(Attempt(source, target, route.address, error, (near or mine[-1:])[0]))
    return found


def choose(machines: dict[str, Machine], *failures: tuple[str, str]) -> Network:
    return choose_routes(machines, candidates(machines), attempts_of(machines, *failures))


def test_the_one_interface_that_leads_to_the_others_is_chosen() -> None:
    machines = {"a": machine("a", ethernet("10.0.0.1")), "b": machine("b", ethernet("10.0.0.2"))}
    assert choose(machines) == Network({"a": route("eth0", "10.0.0.1"), "b": route("eth0", "10.0.0.2")}, ())


def test_interfaces_may_have_other_names_on_other_hosts() -> None:
    other = interface("enp3s0", "10.0.0.2")
    network = choose({"a": machine("a", ethernet("10.0.0.1")), "b": machine("b", other)})
    assert network.routes == {"a": route("eth0", "10.0.0.1"), "b": route("enp3s0", "10.0.0.2")}


def test_a_bridge_with_the_same_address_everywhere_is_not_taken() -> None:
    machines = {
        "a": machine("a", DOCKER, ethernet("10.0.0.1", 1000)),
        "b": machine("b", DOCKER, ethernet("10.0.0.2", 1000)),
    }
    assert {found.interface for found in choose(machines).routes.values()} == {"eth0"}


def test_the_faster_of_two_networks_is_taken_where_all_are_on_it() -> None:
    machines = {
        name: machine(name, ethernet(f"10.0.0.{number}", 1000), infiniband(f"10.1.0.{number}"))
        for number, name in enumerate("abc")
    }
    assert {found.interface for found in choose(machines).routes.values()} == {"ib0"}


def test_a_fast_network_that_one_host_lacks_is_not_taken_by_the_others() -> None:
    machines = {
        "a": machine("a", ethernet("10.0.0.1", 1000), infiniband("10.1.0.1")),
        "b": machine("b", ethernet("10.0.0.2", 1000), infiniband("10.1.0.2")),
        "c": machine("c", ethernet("10.0.0.3", 1000)),
    }
    network = choose(machines, ("c", "10.1.0.1"), ("c", "10.1.0.2"))
    assert {found.interface for found in network.routes.values()} == {"eth0"}
    assert network.unreached == ()


def test_of_equal_networks_the_one_that_ssh_came_by_is_taken() -> None:
    second = interface("eth1", "10.1.0.1")
    machines = {
        "a": machine("a", ethernet("10.0.0.1"), second, ssh_address="10.1.0.1"),
        "b": machine("b", ethernet("10.0.0.2"), interface("eth1", "10.1.0.2"), ssh_address="10.1.0.2"),
    }
    assert {found.interface for found in choose(machines).routes.values()} == {"eth1"}


def test_hosts_that_cannot_meet_are_named_with_the_reason() -> None:
    machines = {"a": machine("a", ethernet("10.0.0.1")), "b": machine("b", ethernet("10.0.0.2"))}
    assert choose(machines, ("b", "10.0.0.1")).unreached == (
        Unreached("b", "a", route("eth0", "10.0.0.1"), "timed out"),
    )


def test_loopback_serves_one_machine_only() -> None:
    alone = {"a": machine("a"), "b": machine("a")}
    assert choose(alone) == Network(dict.fromkeys("ab", route("lo", "127.0.0.1")), ())
    assert candidates({"a": machine("a"), "b": machine("b")}) == {"a": [], "b": []}
    assert choose({"a": machine("a")}).routes == {"a": route("lo", "127.0.0.1")}


def test_an_interface_that_was_named_is_the_only_one() -> None:
    machines = {
        "a": machine("a", ethernet("10.0.0.1"), infiniband("10.1.0.1")),
        "b": machine("b", ethernet("10.0.0.2")),
    }
    possible = candidates(machines, "ib0")
    assert [found.interface for found in possible["a"]] == ["ib0"]
    assert possible["b"] == []


def test_hosts_on_different_networks_meet_where_each_can_be_reached() -> None:
    machines = {
        "a": machine("a", ethernet("10.0.0.1"), interface("eth1", "10.5.0.1")),
        "b": machine("b", interface("eth1", "10.6.0.2"), ethernet("10.7.0.2")),
    }
    network = choose(machines, ("b", "10.5.0.1"), ("a", "10.6.0.2"))
    assert network.routes == {"a": route("eth0", "10.0.0.1"), "b": route("eth0", "10.7.0.2")}
    assert network.unreached == ()


def test_all_hosts_take_the_same_of_two_networks() -> None:
    machines = {
        name: machine(name, ethernet(f"10.0.0.{number}", 1000), interface("eth1", f"10.1.0.{number}", speed))
        for name, number, speed in (("a", 1, 100), ("b", 2, 10_000))
    }
    assert {found.network for found in choose(machines).routes.values()} == {"10.0.0.0/24"}
