"""Check that hosts are ready: all are probed in parallel, and every problem is found before anything starts."""

from __future__ import annotations

import contextlib
import operator
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from echelon.errors import RemoteError
from echelon.launch.container import PYTHON, Container, look_at, render_run
from echelon.launch.findings import (
    Finding,
    HostFacts,
    MeasuredLink,
    Needs,
    judge_host,
    judge_link,
    judge_network,
    judge_together,
)
from echelon.launch.hosts import Host
from echelon.launch.machine import Disk, Machine, nearest_existing, own_versions
from echelon.launch.routes import NO_ANSWER, Attempt, Network, Route, candidates, choose_routes
from echelon.launch.session import ProbeSession, find_python
from echelon.launch.ssh import Remote, side_by_side

_ANSWER_S = 60.0
_LINK_S = 150.0
"""Importing torch on a slow, busy host takes much of it."""
Value = TypeVar("Value")
Calls = Mapping[str, Sequence[tuple[str, str]]]
"""Whom each host calls: names and addresses."""


@dataclass(frozen=True)
class HostReport:
    """What is known of a host, and what is wrong with it."""

    host: Host
    python: tuple[str, ...] = ()
    """How to run Python with Echelon there."""
    facts: HostFacts | None = None
    route: Route | None = None
    """The address and interface at which other hosts reach it."""
    link: MeasuredLink | None = None
    """The speed at which all hosts exchange together."""
    findings: tuple[Finding, ...] = ()

    @property
    def is_fit(self) -> bool:
        return not any(finding.is_fatal for finding in self.findings)


@dataclass
class _HostProbe:
    """A host and what its probe has answered so far."""

    host: Host
    session: ProbeSession | None = None
    python: list[str] = field(default_factory=list)
    facts: HostFacts | None = None
    findings: list[Finding] = field(default_factory=list)


def check_hosts(hosts: Sequence[Host], remotes: Mapping[str, Remote], needs: Needs) -> list[HostReport]:
    """Probe all hosts, `remotes` by name, and their network. A host's failure is a finding, never an exception."""
    probes = [_HostProbe(host) for host in hosts]
    try:
        if needs.container and needs.run_folder:
            # A container sees nothing above what is mounted.
            needs.run_folder.mkdir(parents=True, exist_ok=True)
        with _shared_token(needs.run_folder) as token:
            side_by_side(probes, lambda probe: _ask(probe, remotes[probe.host.name], needs, token))
        network = _find_network(probes, needs)
        link = _measure_link(probes, network) if needs.measures_link else None
    finally:
        side_by_side(probes, lambda probe: probe.session.close() if probe.session else None)
    return _report(probes, needs, network, link)


def _report(
    probes: Sequence[_HostProbe], needs: Needs, network: Network, link: MeasuredLink | None
) -> list[HostReport]:
    here = own_versions()
    facts = {probe.host.name: probe.facts for probe in probes if probe.facts}
    together, in_network = judge_together(facts), judge_network(network, list(facts), needs)
    reports = []
    for probe in probes:
        name = probe.host.name
        own = judge_host(probe.host, probe.facts, here, needs) if probe.facts else []
        findings = (
            *probe.findings,
            *own,
            *together.get(name, ()),
            *in_network.get(name, ()),
            *judge_link(link),
        )
        reports.append(
            HostReport(probe.host, tuple(probe.python), probe.facts, network.routes.get(name), link, findings)
        )
    return reports


def _ask(probe: _HostProbe, remote: Remote, needs: Needs, token: tuple[Path, str] | None) -> None:
    """Ask a host for everything that it can tell without the others; a failure becomes a finding."""
    try:
        probe.python = _find_program(remote, needs)
        probe.session = session = ProbeSession(remote, probe.python)
        machine = TypeAdapter(Machine).validate_python(session.ask("machine", _ANSWER_S))
        disk = session.ask("disk", _ANSWER_S, folder=str(needs.run_folder)) if needs.run_folder else None
        data = None
        if needs.data:
            data = session.ask("data", _ANSWER_S, folder=str(needs.data.folder), key=needs.data.key)
        shares = session.ask("sees_file", _ANSWER_S, path=str(token[0]), content=token[1]) if token else None
        probe.facts = HostFacts(
            machine=machine,
            disk=TypeAdapter(Disk | None).validate_python(disk),
            clock=session.clock_offset(),
            data_problem=data,
            shares_run_folder=shares,
        )
    except RemoteError as error:
        probe.findings.append(Finding(error.message, error.remedy))
    except ValidationError:
        probe.findings.append(
            Finding(
                "its Echelon is another version, too different to ask", "--install puts the right one there"
            )
        )


def _find_program(remote: Remote, needs: Needs) -> list[str]:
    """How to run Python with Echelon there."""
    if needs.container is None:
        return [find_python(remote, needs.python)]
    folders = [folder for folder in (needs.run_folder, needs.data and needs.data.folder) if folder]
    if needs.run_folder:
        remote.run(["mkdir", "-p", str(needs.run_folder)], timeout_s=_ANSWER_S)
    host = look_at(remote, folders)
    there = tuple(folder for folder in folders if folder in host.folders)
    container = Container(needs.container, f"echelon-check-{secrets.token_hex(4)}", there)
    return render_run(container, host, [needs.python or PYTHON])


@contextlib.contextmanager
def _shared_token(run_folder: Path | None) -> Iterator[tuple[Path, str] | None]:
    """A file in the run folder, or where it will be, that shows which hosts share the folder."""
    if run_folder is None:
        yield None
        return
    path, content = nearest_existing(run_folder) / f".echelon-{secrets.token_hex(8)}", secrets.token_hex(8)
    try:
        path.write_text(content)
    except OSError:
        yield None  # `disk` reports it if this machine is one of the hosts
        return
    try:
        yield path, content
    finally:
        path.unlink(missing_ok=True)


def _find_network(probes: Sequence[_HostProbe], needs: Needs) -> Network:
    """Have every host try to reach every other, and choose where each meets them.

    Whoever has no answer there tries once more: on a busy machine a handshake of WireGuard's may take longer than a
    caller waits, and is continued meanwhile.
    """
    present = {probe.host.name: probe for probe in probes if probe.facts}
    machines = {name: probe.facts.machine for name, probe in present.items() if probe.facts}
    possible = candidates(machines, needs.interface)
    names = {name: f"{secrets.token_hex(8)} {name}" for name in present}
    ports = dict[str, dict[str, int]]()

    def listen(probe: _HostProbe) -> None:
        own = probe.host.name
        addresses = [route.address for route in possible[own]]
        ports[own] = _ask_or_note(probe, "listen", {}, addresses=addresses, name=names[own])

    def reach(calls: Calls, probe: _HostProbe) -> list[Attempt]:
        own = probe.host.name
        asked = [(names[name], address, ports[name].get(address, 0)) for name, address in calls[own]]
        nothing: list[list[str | None]] = []
        answers = _ask_or_note(probe, "reach", nothing, targets=asked)
        return [
            Attempt(own, name, address, error, own_address)
            for (name, address), (error, own_address) in zip(calls[own], answers, strict=bool(answers))
        ]

    def reach_all(calls: Calls) -> list[Attempt]:
        rounds = (side_by_side(present.values(), partial(reach, turn)) for turn in _in_turn(calls))
        return list(chain.from_iterable(chain.from_iterable(rounds)))

    side_by_side(present.values(), listen)
    attempts = reach_all(
        {
            own: [(name, route.address) for name in present if name != own for route in possible[name]]
            for own in present
        }
    )
    network = choose_routes(machines, possible, attempts)
    silent = [each for each in network.unreached if each.error == NO_ANSWER]
    if silent:
        again = {
            own: [(each.target, each.route.address) for each in silent if each.source == own]
            for own in present
        }
        latest = {(each.source, each.target, each.address): each for each in attempts + reach_all(again)}
        network = choose_routes(machines, possible, list(latest.values()))
    side_by_side(present.values(), lambda probe: _ask_or_note(probe, "stop_listening", None))
    return network


def _in_turn(calls: Calls) -> Iterator[Calls]:
    """Hosts call those after them first, then those before them.

    If two called each other at once, WireGuard would drop both handshakes, and again whenever it repeats them at the
    same moment.
    """
    place = {name: number for number, name in enumerate(calls)}
    for is_turn in (operator.gt, operator.lt):
        yield {
            own: [call for call in targets if is_turn(place[call[0]], place[own])]
            for own, targets in calls.items()
        }


def _measure_link(probes: Sequence[_HostProbe], network: Network) -> MeasuredLink | None:
    """A short all-reduce over all hosts; None if they cannot form a group, or it failed on one of them."""
    versions = {probe.facts.machine.versions.torch for probe in probes if probe.facts}
    if (
        len(network.routes) < max(2, len(probes))
        or network.unreached
        or len(versions) != 1
        or None in versions
    ):
        return None
    store = network.routes[probes[0].host.name].address
    port = _ask_or_note(probes[0], "open_store", 0, address=store)
    if not port:
        return None
    group = {
        "WORLD_SIZE": str(len(probes)),
        "MASTER_ADDR": store,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    ranks = {probe.host.name: str(rank) for rank, probe in enumerate(probes)}

    def take_part(probe: _HostProbe) -> MeasuredLink | None:
        name = probe.host.name
        own = {"RANK": ranks[name], "GLOO_SOCKET_IFNAME": network.routes[name].interface}
        answer = _ask_or_note(probe, "link", {"error": ""}, environment=group | own, seconds=_LINK_S)
        if "error" not in answer:
            return TypeAdapter(MeasuredLink).validate_python(answer)
        if answer["error"]:
            what = f"a test all-reduce over all hosts failed: {answer['error']}"
            probe.findings.append(Finding(what, "open all ports between the hosts, and only between them"))
        return None

    links = side_by_side(probes, take_part)
    return links[0] if all(links) else None


def _ask_or_note(probe: _HostProbe, question: str, otherwise: Value, **values: object) -> Value:
    """A host's answer; a failure becomes a finding, and `otherwise` is returned."""
    assert probe.session is not None
    try:
        answer: Value = probe.session.ask(question, _LINK_S + _ANSWER_S, **values)
    except RemoteError as error:
        probe.findings.append(Finding(error.message, error.remedy))
        return otherwise
    return answer
