"""The commands that make, cut and remove a lab's network: a switch and hosts, each in a namespace of its own.

Cables are made from namespace to namespace, so the machine's own network never has an interface or address of them.
"""

from __future__ import annotations

from echelon.lab.layout import HostLayout, LabPlan
from echelon.lab.rate import render_limit

Command = list[str]


def make_switch(plan: LabPlan) -> list[Command]:
    """The bridge, with an address that connections from the outer machine come from."""
    return [
        f"ip netns add {plan.switch}".split(),
        f"ip -n {plan.switch} link add name switch address {plan.switch_mac} type bridge".split(),
        f"ip -n {plan.switch} addr add {plan.switch_address}/24 dev switch".split(),
        f"ip -n {plan.switch} link set lo up".split(),
        f"ip -n {plan.switch} link set switch up".split(),
    ]


def plug_in(plan: LabPlan, host: HostLayout) -> list[Command]:
    """A host's namespace, its card `eth0` and the cable to the switch's port, which has the host's name."""
    return [
        f"ip netns add {host.namespace}".split(),
        f"ip -n {plan.switch} link add name {host.name} type veth "
        f"peer name eth0 address {host.mac} netns {host.namespace}".split(),
        f"ip -n {host.namespace} addr add {host.address}/24 broadcast + dev eth0".split(),
        f"ip -n {host.namespace} link set lo up".split(),
        f"ip -n {host.namespace} link set eth0 up".split(),
        f"ip -n {plan.switch} link set {host.name} master switch".split(),
        *limit(plan, host),
        connect(plan, host),
    ]


def limit(plan: LabPlan, host: HostLayout) -> list[Command]:
    """The host's line rate, in both directions."""
    return [
        render_limit(plan.switch, host.name, host.rate),
        render_limit(host.namespace, "eth0", host.rate),
    ]


def connect(plan: LabPlan, host: HostLayout) -> Command:
    return f"ip -n {plan.switch} link set {host.name} up".split()


def disconnect(plan: LabPlan, host: HostLayout) -> Command:
    """Like pulling the cable out: the host sees no carrier, keeps its address, and its connections get no notice."""
    return f"ip -n {plan.switch} link set {host.name} down".split()


def show_if_connected(plan: LabPlan, host: HostLayout) -> Command:
    """Prints nothing if the cable is out."""
    return f"ip -n {plan.switch} -oneline link show dev {host.name} up".split()


def unplug(plan: LabPlan, host: HostLayout) -> Command:
    return f"ip -n {plan.switch} link delete {host.name}".split()


def remove_namespace(namespace: str) -> Command:
    return f"ip netns delete {namespace}".split()
