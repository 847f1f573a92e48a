"""Parameter servers in real groups of processes, against the exact exchange."""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.pupils import Pupil, run_workers
from torch import Tensor, nn

from echelon.comm.group import Group
from echelon.monitor.heartbeat import Heart
from echelon.recipe.schema import ExchangeSettings, Sgd
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.mail import Kind, Message
from echelon.train.exchange.parameter_server import ParameterServer
from echelon.train.exchange.roles import Roles, share_parameters, share_roles
from echelon.train.exchange.shard_server import Push, Server
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser

STEPS = range(1, 31)


def learn(
    settings: ExchangeSettings | None, steps: range, slow: int | None, group: Group
) -> dict[str, Tensor]:
    """Train with servers, or with the exact exchange if there are no settings; `slow` begins a step only when the rank
    after it has ended that step."""
    pupil = Pupil(group, ParameterServer(group, settings) if settings else AllReduce(group))
    facts = []
    for step in steps:
        if group.rank == slow:
            group._store.wait([f"{slow + 1} ended {step}"])
        pupil.train(range(step, step + 1))
        group._store.set(f"{group.rank} ended {step}", "")
        facts.append(pupil.exchange.facts())
    pupil.exchange.settle()
    result = pupil.result()
    result["optimiser numbers"] = torch.tensor(sum(t.numel() for t in pupil.optimiser.state().values()))
    if "global_step" in facts[-1]:
        result["staleness"] = torch.tensor([max(fact["staleness_of"].values()) for fact in facts])
        result["dropped"] = torch.tensor(facts[-1]["dropped"])
        result["sent"] = torch.tensor(sum(sum(fact["sent_to"].values()) for fact in facts))
    return result


def trained(
    settings: ExchangeSettings | None, size: int, folder: Path, slow: int | None = None
) -> list[dict[str, Tensor]]:
    results = run_workers(functools.partial(learn, settings, STEPS, slow), size, folder)
    for result in results[1:]:
        assert torch.equal(result["weights"], results[0]["weights"]), (
            "settled: every process has the same bits"
        )
    return results


def evaluated(result: dict[str, Tensor]) -> float:
    """The loss of what was learnt, on slots that all of them have seen."""
    torch.manual_seed(1)
    pupil = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    pupil.flat.weights.copy_(result["weights"])
    with torch.no_grad():
        return float(torch.stack([pupil._loss(step, 0) for step in STEPS]).mean())


@pytest.mark.parametrize(("size", "servers"), [(2, 1), (3, 1), (4, 2), (3, 5)])
def test_synchronous_servers_are_all_reduce(size: int, servers: int, tmp_path: Path) -> None:
    exact = trained(None, 2, tmp_path / "exact")[0]
    served = trained(ExchangeSettings(servers=servers), size, tmp_path / "served")
    torch.testing.assert_close(served[0]["weights"], exact["weights"], rtol=1e-5, atol=1e-6)
    kept = [int(result["optimiser numbers"]) for result in served]
    assert sum(kept) == len(exact["weights"]), "each number's momentum is on one server"
    assert kept[0] == 0, "and none on a worker"
    for result in served:
        if "staleness" in result:
            assert result["staleness"].max() == 0


def test_a_process_alone_serves_itself(tmp_path: Path) -> None:
    exact, alone = (
        trained(each, 1, tmp_path / str(bool(each)))[0] for each in (None, ExchangeSettings(servers=2))
    )
    torch.testing.assert_close(alone["weights"], exact["weights"], rtol=1e-5, atol=1e-6)


def test_asynchronous_updates_are_stale_but_never_more_than_allowed(tmp_path: Path) -> None:
    exact = trained(None, 1, tmp_path / "exact")[0]
    settings = ExchangeSettings(synchronous=False, staleness=2)
    served = trained(settings, 4, tmp_path / "served")
    staleness = served[3]["staleness"]
    assert 1 <= staleness.max() <= 2
    assert evaluated(served[0]) == pytest.approx(evaluated(exact), rel=0.15)


def test_the_slowest_is_not_waited_for_where_there_are_backup_workers(tmp_path: Path) -> None:
    exact = trained(None, 1, tmp_path / "exact")[0]
    served = trained(ExchangeSettings(backup_workers=1), 4, tmp_path / "served", slow=0)
    assert served[3]["dropped"] > 0
    assert evaluated(served[0]) == pytest.approx(evaluated(exact), rel=0.2)


def test_an_update_has_all_but_the_backup_workers_of_those_who_have_slots() -> None:
    for pushed, is_enough in (([1, 0], False), ([1, 1], False), ([1, 1, 0], False), ([1, 1, 1], True)):
        assert enough_of(ExchangeSettings(backup_workers=1), pushed, workers=5) == is_enough
    assert enough_of(ExchangeSettings(backup_workers=9), [0], workers=5) is False
    assert enough_of(ExchangeSettings(), [1, 1, 1, 1], workers=5) is False, (
        "without backup workers all are waited for"
    )
    assert enough_of(ExchangeSettings(), [1, 1, 1, 1, 0], workers=5) is True
    assert enough_of(ExchangeSettings(synchronous=False), [4], workers=5) is True


def enough_of(settings: ExchangeSettings, slots_of_pushes: list[int], workers: int) -> bool:
    """Of a server of so many workers, where a step has four slots."""
    mail: Any = SimpleNamespace(flat=None, group=Group(0, 1), shards={0: slice(0, 1)})
    server = Server(mail, Group(0, 1), Roles(tuple(range(1, workers + 1)), (0,)), settings)
    list(server.updates(1, 4))
    empty = torch.zeros(0)
    return server._is_enough(
        {
            rank: Push(Message(Kind.PUSH, slots=slots), empty, empty)
            for rank, slots in enumerate(slots_of_pushes)
        }
    )


def count_waits(group: Group) -> dict[str, Tensor]:
    group = Group(group.rank, group.size, Heart())
    pupil = Pupil(group, ParameterServer(group, ExchangeSettings()))
    before = group.heart._turns
    pupil.train(range(1, 4))
    waits = group.heart._turns - before
    pupil.exchange.settle()
    return {"waits": torch.tensor(waits)}


def test_the_launcher_sees_that_a_server_waits_for_its_workers(tmp_path: Path) -> None:
    for result in run_workers(count_waits, 3, tmp_path):
        assert result["waits"] >= 3 * 2, "at least once a step, in and out"


def go_on(settings: ExchangeSettings, folder: Path, group: Group) -> dict[str, Tensor]:
    pupil = Pupil(group, ParameterServer(group, settings))
    results = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))]
    pupil.flat.weights.copy_(results[0]["weights"])
    state = {
        name: tensor for result in results for name, tensor in result.items() if name[:10] == "optimiser/"
    }
    pupil.optimiser.load_state({name.removeprefix("optimiser/"): tensor for name, tensor in state.items()})
    pupil.exchange.load_state({})
    pupil.train(range(16, 31))
    pupil.exchange.settle()
    return pupil.result()


@pytest.mark.parametrize(("size", "servers"), [(4, 2), (3, 1)])
def test_a_run_goes_on_with_other_numbers_of_workers_and_servers(
    size: int, servers: int, tmp_path: Path
) -> None:
    whole = trained(None, 1, tmp_path / "whole")[0]
    half = functools.partial(learn, ExchangeSettings(servers=2), range(1, 16), None)
    run_workers(half, 4, tmp_path / "half")
    work = functools.partial(go_on, ExchangeSettings(servers=servers), tmp_path / "half")
    again = run_workers(work, size, tmp_path / "again")
    torch.testing.assert_close(again[0]["weights"], whole["weights"], rtol=1e-4, atol=1e-6)


def vote(settings: ExchangeSettings, group: Group) -> dict[str, Tensor]:
    """One worker votes in step 5; in which step everybody sees it."""
    pupil = Pupil(group, ParameterServer(group, settings))
    seen: list[int] = []
    zero = pupil.flat.zero

    def zero_and_vote() -> None:
        zero()
        if group.rank == 0 and not seen and step >= 5:
            pupil.flat.votes[0] = 1.0

    pupil.flat.zero = zero_and_vote  # type: ignore[method-assign]
    for step in range(1, 20):
        pupil.train(range(step, step + 1))
        if pupil.flat.votes[0] > 0:
            seen.append(step)
            break
    pupil.exchange.settle()
    return {"seen": torch.tensor(seen), "weights": pupil.flat.weights.clone()}


@pytest.mark.parametrize(
    "settings",
    [
        ExchangeSettings(servers=2),
        ExchangeSettings(servers=2, synchronous=False),
        ExchangeSettings(backup_workers=1),
    ],
)
def test_all_see_a_vote_after_the_same_step(settings: ExchangeSettings, tmp_path: Path) -> None:
    results = run_workers(functools.partial(vote, settings), 5, tmp_path)
    assert all(torch.equal(result["seen"], results[0]["seen"]) for result in results)
    assert results[0]["seen"].tolist()[0] >= 6
    assert all(torch.equal(result["weights"], results[0]["weights"]) for result in results)


def test_servers_are_spread_over_hosts_and_one_process_is_left_to_train() -> None:
    assert share_roles([0, 1, 0, 1], 2) == Roles((0, 2), (1, 3))
    assert share_roles([0, 0, 0], 1) == Roles((0, 1), (2,))
    assert share_roles([0, 1], 4) == Roles((0,), (1,))
    assert share_roles([0], 1).of(0) == "chief"
    assert [share_roles([0, 1, 0, 1], 2).of(rank) for rank in range(4)] == [
        "chief",
        "server",
        "worker",
        "server",
    ]


def test_parameters_are_shared_out_whole() -> None:
    flat = FlatParameters(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 30), nn.Linear(30, 20)))
    shards = share_parameters(flat.slices, 3)
    assert [shards[0].start, shards[-1].stop] == [0, flat.size]
    assert all(one.stop == two.start for one, two in pairwise(shards))
    assert {shard.stop for shard in shards} <= {s.end for s in flat.slices}
    assert max(shard.stop - shard.start for shard in shards) <= 0.4 * flat.size


def measure_slots(group: Group) -> dict[str, Tensor]:
    """Every slot measures one more than its number, which a server makes the running statistics."""
    flat = FlatParameters(nn.Linear(6, 4), num_statistics=4)
    flat.running = torch.zeros(4)
    exchange = ParameterServer(group, ExchangeSettings(servers=2))
    exchange.attach(flat, FlatOptimiser(Sgd(kind="sgd"), flat), lambda: None)
    for update in exchange.updates(1, 4):
        flat.zero()
        for slot in update.mine:
            flat.statistics[slot] = slot + 1
        exchange.reduce()
        if update.is_applied_here:
            flat.running.copy_(flat.statistics)
        exchange.after_update()
    exchange.settle()
    return {"running": flat.running}


def test_what_slots_have_measured_reaches_the_servers_and_then_everybody(tmp_path: Path) -> None:
    for result in run_workers(measure_slots, 4, tmp_path):
        assert result["running"].tolist() == [1, 2, 3, 4]
