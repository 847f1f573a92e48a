from __future__ import annotations

from echelon.lab import namespaces
from tests.lab.sample_plan import sample_plan


def as_text(commands: list[list[str]]) -> str:
    return "\n".join(" ".join(command) for command in commands)


def test_the_switch_is_a_bridge_in_a_namespace_of_its_own() -> None:
    assert as_text(namespaces.make_switch(sample_plan())) == (
        "ip netns add echelon-lab-switch\n"
        "ip -n echelon-lab-switch link add name switch address 02:00:0a:4d:03:fe type bridge\n"
        "ip -n echelon-lab-switch addr add 10.77.3.254/24 dev switch\n"
        "ip -n echelon-lab-switch link set lo up\n"
        "ip -n echelon-lab-switch link set switch up"
    )


def test_a_host_hangs_on_the_switch_by_a_cable_that_is_limited_at_both_ends() -> None:
    plan = sample_plan()
    assert as_text(namespaces.plug_in(plan, plan.host("host1"))) == (
        "ip netns add echelon-lab-host1\n"
        "ip -n echelon-lab-switch link add name host1 type veth peer name eth0 address 02:00:0a:4d:03:01 "
        "netns echelon-lab-host1\n"
        "ip -n echelon-lab-host1 addr add 10.77.3.1/24 broadcast + dev eth0\n"
        "ip -n echelon-lab-host1 link set lo up\n"
        "ip -n echelon-lab-host1 link set eth0 up\n"
        "ip -n echelon-lab-switch link set host1 master switch\n"
        "tc -n echelon-lab-switch qdisc replace dev host1 root handle f4: "
        "tbf rate 1000000000bit burst 244kb latency 50ms\n"
        "tc -n echelon-lab-host1 qdisc replace dev eth0 root handle f4: "
        "tbf rate 1000000000bit burst 244kb latency 50ms\n"
        "ip -n echelon-lab-switch link set host1 up"
    )


def test_no_command_touches_the_network_of_the_machine_itself() -> None:
    plan = sample_plan()
    host = plan.host("host1")
    commands = [
        *namespaces.make_switch(plan),
        *namespaces.plug_in(plan, host),
        namespaces.disconnect(plan, host),
        namespaces.connect(plan, host),
        namespaces.show_if_connected(plan, host),
        namespaces.unplug(plan, host),
        namespaces.remove_namespace(host.namespace),
    ]
    for command in commands:
        assert command[1:3] in (["netns", "add"], ["netns", "delete"]) or command[1] == "-n", command
