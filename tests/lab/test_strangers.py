"""Strangers on the network of a real training: nothing that they send to any port changes anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echelon.lab.lab import Lab
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint, list_checkpoints
from tests.integration.runs import Undisturbed, assert_same_checkpoint, write_toy_recipe
from tests.lab import stranger
from tests.lab.conftest import MakeLab
from tests.lab.on_hosts import leave_running, python
from tests.lab.training import SETTINGS, Training, settings_for
from tests.waiting import wait_until

NFT = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
pytestmark = pytest.mark.slow
needs_nft = pytest.mark.skipif(NFT is None, reason="nftables is not installed")
MEMBERS = ("host1", "host2", "host3")
STRANGER = "host4"
SSH_PORT = 22
ROUND = 200
ENDLESS = ("train.steps=100000", f"evaluate.every={ROUND}", f"checkpoint.every={ROUND}")


@pytest.fixture(scope="module")
def four(make_lab: MakeLab) -> Lab:
    return make_lab(hosts=4)


@pytest.fixture(scope="module", autouse=True)
def environment(four: Lab) -> Iterator[None]:
    with settings_for(four):
        yield


@pytest.fixture(scope="module")
def recipe(four: Lab) -> Path:
    return write_toy_recipe(four.shared / "toy")


@pytest.fixture
def training(four: Lab, recipe: Path) -> Iterator[Training]:
    """Three of the four hosts, past their first steps."""
    sets = [word for setting in ENDLESS for word in ("--set", setting)]
    training = Training(four, recipe, four.shared, *sets, hosts=MEMBERS)
    try:
        training.wait_for_step(5)
        yield training
    finally:
        training.stop()


def ask(lab: Lab, host: str, *words: str) -> Any:
    """What tests/lab/stranger.py answers on a host."""
    return json.loads(python(lab, host, Path(stranger.__file__).read_text(), *words))


def listeners(lab: Lab) -> dict[str, list[tuple[str, int]]]:
    """Where each member listens, but for its sshd."""
    found = {host: [tuple(pair) for pair in ask(lab, host, "listeners")] for host in MEMBERS}
    return {host: [pair for pair in pairs if pair[1] != SSH_PORT] for host, pairs in found.items()}


def guarded_ports(lab: Lab, host: str) -> set[int]:
    """The ports in the tables of a host's kernel."""
    listed = json.loads(lab.run(host, [str(NFT), "-j", "list", "ruleset"]).stdout)["nftables"]
    return {port for entry in listed if "set" in entry for port in entry["set"].get("elem", [])}


def tables(lab: Lab, host: str) -> list[str]:
    listed = json.loads(lab.run(host, [str(NFT), "-j", "list", "tables"]).stdout)["nftables"]
    return [entry["table"]["name"] for entry in listed if "table" in entry]


def all_are_guarded(lab: Lab) -> bool:
    return all(
        guarded_ports(lab, host) == {port for _, port in pairs} for host, pairs in listeners(lab).items()
    )


def generations(run: RunFolder) -> int:
    """How many times the hosts began."""
    records = [record for host in range(len(MEMBERS)) for record in read_records(run.agent_records(host))]
    return len({record["generation"] for record in records if "generation" in record})


def assert_undisturbed(training: Training, train_here: Undisturbed) -> None:
    """It has gone on meanwhile, and its next checkpoint is the same as if nobody had been there."""
    step = ROUND * (training.steps()[-1][0] // ROUND + 1)
    training.wait_for_step(step + 1)
    training.stop()
    assert generations(training.run) == 1
    alone = train_here(*SETTINGS, *ENDLESS, f"train.steps={step}", workers=len(MEMBERS))
    (theirs,) = [each for each in list_checkpoints(training.run.checkpoints) if each.step == step]
    assert_same_checkpoint(theirs, choose_checkpoint(alone.checkpoints, "last"))


def test_all_listen_on_the_lab_s_network_only_and_garbage_from_a_member_changes_nothing(
    four: Lab, training: Training, train_here: Undisturbed
) -> None:
    """The firewall lets a member's garbage pass, so that this shows what the listeners themselves make of it."""
    found = listeners(four)
    assert sum(len(pairs) for pairs in found.values()) >= 7, "three agents, a store, three of gloo's"
    for host, pairs in found.items():
        own = {four.run(host, ["hostname", "-I"]).stdout.strip()}
        assert {address for address, _ in pairs} == own, host
    targets = [f"{address}:{port}" for pairs in found.values() for address, port in pairs]
    outcomes = ask(four, MEMBERS[2], "attack", *targets)
    print(f"\n{json.dumps(outcomes)}")
    assert outcomes.keys() == set(targets)
    assert all(outcome.get("open", 0) > 50 for outcome in outcomes.values())
    assert_undisturbed(training, train_here)


@needs_nft
def test_a_stranger_gets_no_answer_from_the_run_and_the_firewall_leaves_everything_else_alone(
    four: Lab, training: Training, train_here: Undisturbed
) -> None:
    wait_until(lambda: all_are_guarded(four))
    found = listeners(four)
    targets = {host: [f"{address}:{port}" for address, port in pairs] for host, pairs in found.items()}
    outcomes = ask(four, STRANGER, "attack", *(target for each in targets.values() for target in each))
    assert all(outcome.keys() == {"silent"} for outcome in outcomes.values()), outcomes
    scanned = ask(four, STRANGER, "scan", *targets["host1"])
    print(f"\n{json.dumps(scanned)}")
    assert scanned["ports"] == []
    assert scanned["silent"] == len(found["host1"]), "the others refuse, as without a firewall"
    leave_running(four, "host1", "import socket; socket.create_server(('', 8080)).accept()[0].send(b'hello')")
    call = "import socket; print(socket.create_connection(('host1', 8080), timeout=5).recv(9).decode())"
    wait_until(lambda: four.run(STRANGER, ["python3", "-c", call], check=False).stdout == "hello\n")
    assert four.run(STRANGER, ["ssh", "host1", "hostname"]).stdout.strip() == "host1"
    assert_undisturbed(training, train_here)
    assert [tables(four, host) for host in four.hosts] == [[], [], [], []], "the firewall goes with the run"


@needs_nft
def test_the_firewall_of_an_agent_that_is_killed_is_gone_and_the_next_agent_has_its_own(
    four: Lab, training: Training
) -> None:
    wait_until(lambda: all_are_guarded(four))
    (before,) = tables(four, "host2")
    agent = training.run.agent_lock(1).read_text().split()[0]
    four.run("host2", ["kill", "-KILL", agent])
    wait_until(lambda: before not in tables(four, "host2"))
    wait_until(lambda: len(tables(four, "host2")) == 1)
    training.stop()
    assert [tables(four, host) for host in four.hosts] == [[], [], [], []]
