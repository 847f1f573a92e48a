"""Hosts of different speed in one run: slots are dealt by speed, and the model does not depend on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from echelon.lab.cgroup import find_cpu_controller, render_quota
from echelon.lab.lab import Lab
from echelon.lab.registry import find_plan
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.runs import Undisturbed, assert_same_end
from tests.lab.conftest import MakeLab
from tests.lab.training import SETTINGS, Training

pytestmark = pytest.mark.slow

SLOTS = ("train.slots=7", "train.batch_tokens=1400")
CPUS = {"host1": 0.2, "host2": 0.4, "host3": 0.8}


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Three hosts of which each is twice as fast as the one before."""
    lab = make_lab(cpus=0.8)
    controller = find_cpu_controller()
    plan = find_plan(lab.name)
    assert plan is not None
    for host in plan.hosts:
        for name, value in render_quota(controller.version, CPUS[host.name]).items():
            (controller.folder(host.namespace) / name).write_text(value)
    return lab


def dealt(run: RunFolder, worker: int) -> list[int]:
    records = read_records(run.worker_records(worker))
    return [record["slots"] for record in records if record["kind"] == "step"]


def test_slots_are_dealt_by_the_speed_of_hosts_with_no_effect_on_the_bits(
    train: Callable[..., Training], train_here: Undisturbed, lab: Lab
) -> None:
    training = train(lab.shared, *(word for setting in SLOTS for word in ("--set", setting)))
    training.finish()
    shares = [dealt(training.run, worker) for worker in range(3)]
    assert [share[0] for share in shares] == [2, 2, 3]
    assert all(sum(step) == 7 for step in zip(*shares, strict=True))
    slowest, _, fastest = (sum(share[10:]) for share in shares)
    assert fastest > slowest, "by how much is a matter of what else the machine does"
    assert_same_end(training.run, train_here(*SETTINGS, *SLOTS, workers=1))
