"""`plan`: what each --on means, and what its options do."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from echelon.cloud.prices import price_list
from echelon.commands import plan
from echelon.commands.plan import PlanOptions, find_cluster, make_plan, price_warnings
from echelon.errors import UserError
from echelon.lab.layout import LabPlan
from echelon.launch.check import HostReport
from echelon.launch.findings import HostFacts, MeasuredLink
from echelon.launch.hosts import Host
from echelon.launch.machine import Gpu, Machine
from echelon.launch.session import ClockOffset
from tests.launch.machines import MACHINE

Echelon = Callable[..., subprocess.CompletedProcess[str]]
OPTIONS = PlanOptions(Path("recipe.toml"), [])
PHASES = {"data": 0.1, "forward": 0.4, "backward": 0.7, "optimiser": 0.05, "other": 0.01, "checkpoint": 0.0}
MEASURED = {"workers": 1, "breakdown": PHASES, "seconds_per_step": 1.26}


def report(name: str, machine: Machine, link: MeasuredLink | None = None) -> HostReport:
    return HostReport(
        Host(name), facts=HostFacts(machine, None, ClockOffset(0.0, 0.001), None, True), link=link
    )


def with_gpus(name: str, count: int) -> Machine:
    return replace(MACHINE, gpus=(Gpu(name, 16 << 30, "550.54"),) * count)


def test_here_is_one_host_with_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "describe_machine", lambda: MACHINE)
    cluster = find_cluster("here", OPTIONS)
    assert (cluster.hosts, cluster.per_host, cluster.cores) == (1, 1, 8)
    assert not cluster.device.is_gpu


def test_here_has_a_worker_for_each_gpu_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "describe_machine", lambda: with_gpus("Tesla T4", 2))
    cluster = find_cluster("here", OPTIONS)
    assert (cluster.per_host, cluster.device.name) == (2, "T4")
    monkeypatch.setattr(plan, "describe_machine", lambda: with_gpus("Abacus 9", 2))
    with pytest.raises(UserError, match="no GPU 'Abacus 9'"):
        find_cluster("here", OPTIONS)


def test_a_labs_slowest_line_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = LabPlan("pair", Path("lab"), 0.5, 1, {"host1": "1gbit", "host2": "100mbit"})
    monkeypatch.setattr(plan, "find_plan", {"pair": lab}.get)
    cluster = find_cluster("lab:pair", OPTIONS)
    assert (cluster.hosts, cluster.cores, cluster.line_bytes_per_s) == (2, 0.5, 12.5e6)
    with pytest.raises(UserError, match="there is no lab 'lab'"):
        find_cluster("lab", OPTIONS)


def test_hosts_of_a_file_are_asked_and_the_slowest_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\nb\n")
    link = MeasuredLink(117e6, 0.0004)
    found = [report("a", MACHINE, link), report("b", replace(MACHINE, cores=4), link)]
    monkeypatch.setattr(plan, "check_hosts", lambda hosts, *_: found[: len(hosts)])
    with mock.patch.object(plan, "Remote") as remote:
        cluster = find_cluster(str(file), OPTIONS)
    assert remote.return_value.close.call_count == 2, "whatever they answer, they are left"
    assert (cluster.hosts, cluster.cores, cluster.line_bytes_per_s) == (2, 4, 117e6)
    assert cluster.device.float32_flops < find_cluster("1x(8xcpu, 1gbit)", OPTIONS).device.float32_flops


def test_a_host_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\nb\n")
    monkeypatch.setattr(plan, "check_hosts", lambda *_: [report("a", MACHINE), HostReport(Host("b"))])
    with mock.patch.object(plan, "Remote"), pytest.raises(UserError, match="b did not answer"):
        find_cluster(str(file), OPTIONS)


def test_a_price_of_ones_own_counts(toy_recipe: Path) -> None:
    options = PlanOptions(toy_recipe, ["2xg4dn.2xlarge"], hourly=10.0)
    (cluster,) = make_plan(options, Console(quiet=True)).clusters
    assert cluster.cost == pytest.approx(cluster.hours * 2 * 10.0)  # type: ignore[operator]


def test_a_profile_is_measured_here_with_one_worker(
    toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def benchmark(options: object, steps: int, _console: Console) -> dict[str, object]:
        asked.append((options.workers.at_start(8), steps))  # type: ignore[attr-defined]
        return MEASURED

    monkeypatch.setattr("echelon.commands.benchmark.benchmark", benchmark)
    made = make_plan(PlanOptions(toy_recipe, ["1x(1xcpu, 1gbit)"], profile="here"), Console(quiet=True))
    assert asked == [(1, 20)]
    assert made.profile is not None
    assert made.profile.slot_seconds == pytest.approx(1.2 / 5)
    assert made.clusters[0].seconds_per_step == pytest.approx(1.26)


def test_with_weak_every_worker_does_a_whole_step(toy_recipe: Path) -> None:
    strong, weak = (
        make_plan(PlanOptions(toy_recipe, ["16x(1xT4, 100gbit)"], weak=is_weak), Console(quiet=True))
        for is_weak in (False, True)
    )
    assert strong.clusters[0].idle_workers == 11, "5 slots"
    assert weak.clusters[0].idle_workers == 0
    assert weak.clusters[0].efficiency > strong.clusters[0].efficiency


def test_the_verb_counts_with_a_profile_that_was_written_elsewhere(
    toy_recipe: Path, tmp_path: Path, echelon: Echelon
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(MEASURED))
    spec = ("plan", toy_recipe, "--on", "2x(1xcpu, 10gbit)", "--use-profile", profile)
    assert "a profile measured on real hardware" in echelon(*spec).stdout
    assert "use one of them" in echelon(*spec, "--profile", status=2).stderr
    profile.write_text("[]")
    assert "this is no profile" in echelon(*spec, status=2).stderr


def test_the_verb_draws_a_sweep(toy_recipe: Path, tmp_path: Path, echelon: Echelon) -> None:
    picture = tmp_path / "sweep.svg"
    spec = ("plan", toy_recipe, "--on", "1x(1xT4, 1gbit)", "--weak")
    document = json.loads(echelon(*spec, "--sweep", "hosts=1..4", "--chart", picture, "--json").stdout)
    points = document["sweeps"]["1x(1xT4, 1gbit)"]
    assert [point["hosts"] for point in points] == [1, 2, 4]
    assert picture.read_text().startswith("<svg")
    assert "--chart draws a sweep" in echelon(*spec, "--chart", picture, status=2).stderr


def test_a_plan_says_when_the_prices_that_it_counts_with_are_old() -> None:
    rented = [find_cluster(spec, OPTIONS) for spec in ("4xg4dn.2xlarge", "2xp3.2xlarge", "1xn1-standard-4")]
    aws, gcp = price_warnings(rented, datetime.date(2099, 1, 1))
    assert "prices of aws are of 20" in aws
    assert "prices of gcp are of 20" in gcp
    assert price_warnings(rented, price_list("aws").date) == []
    no_list = [
        find_cluster("2x(2xV100, 1gbit, $3)", OPTIONS),
        find_cluster("4xg4dn.2xlarge", replace(OPTIONS, hourly=0.5)),
    ]
    assert price_warnings(no_list, datetime.date(2099, 1, 1)) == []
