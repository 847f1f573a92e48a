"""Each exchange against its reference, in real groups of processes."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from tests.pupils import Pupil, run_workers
from tests.sample_recipe import sample_recipe
from torch import Tensor

from echelon.comm.group import Group
from echelon.monitor.heartbeat import Heart
from echelon.recipe.workers import level_size, workers_on_each_host
from echelon.train.exchange import Exchange, build_exact, build_exchange
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.exchange.low_rank import LowRank

STEPS = range(1, 31)
BUCKET_BYTES = 8192


def build(kind: str, group: Group) -> Exchange:
    match kind:
        case "all_reduce":
            return AllReduce(group, BUCKET_BYTES)
        case "float32" | "bf16" | "fp16" | "int8":
            return Compressed(group, build_codec(kind), BUCKET_BYTES)
        case _:
            return LowRank(group, int(kind.removeprefix("rank ")), build_codec("bf16"), seed=3)


def learn_on_hosts(kind: str, hierarchical: bool, group: Group) -> dict[str, Tensor]:
    """Two hosts with two workers each, as a launcher would tell them; also what went from host to host."""
    os.environ["LOCAL_RANK"] = str(group.rank % 2)
    sent, swap = [0], Group._swap

    def counted(part: Group, rows: list[Tensor]) -> Tensor:
        ranks = dist.get_process_group_ranks(part._connections)
        sent[0] += sum(
            row.nbytes for rank, row in zip(ranks, rows, strict=True) if rank // 2 != group.rank // 2
        )
        return swap(part, rows)

    recipe = sample_recipe(f"exchange.hierarchical={str(hierarchical).lower()}", *HOSTED[kind])
    with mock.patch.object(Group, "_swap", counted):
        pupil = Pupil(group, build_exchange(recipe, group))
        pupil.train(STEPS)
        pupil.exchange.settle()
    return {**pupil.result(), "sent": torch.tensor(sent[0])}


HOSTED = {
    "all_reduce": ["train.exchange=all_reduce"],
    "bf16": ["train.exchange=compressed", "exchange.wire=bf16"],
    "int8": ["train.exchange=compressed", "exchange.wire=int8"],
    "low_rank": ["train.exchange=low_rank", "exchange.rank=8"],
    "local": ["train.exchange=local", "exchange.every=5", "exchange.overlap=2"],
}


def on_hosts(kind: str, hierarchical: bool, folder: Path) -> list[dict[str, Tensor]]:
    results = run_workers(functools.partial(learn_on_hosts, kind, hierarchical), 4, folder)
    assert all(torch.equal(result["weights"], results[0]["weights"]) for result in results), "the same bits"
    return results


def test_inside_hosts_first_and_then_between_them_is_one_big_batch(tmp_path: Path) -> None:
    alone = trained("all_reduce", 1, tmp_path / "1")
    for result in on_hosts("all_reduce", True, tmp_path / "4"):
        torch.testing.assert_close(result["weights"], alone["weights"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result["losses"], alone["losses"])


@pytest.mark.parametrize(
    ("kind", "within"), [("bf16", 0.01), ("int8", 0.03), ("low_rank", 0.1), ("local", 0.03)]
)
def test_host_by_host_a_card_sends_what_one_worker_would(kind: str, within: float, tmp_path: Path) -> None:
    flat, levels = (
        on_hosts(kind, hierarchical, tmp_path / str(hierarchical)) for hierarchical in (False, True)
    )
    through_card = [sum(int(result["sent"]) for result in each[:2]) for each in (flat, levels)]
    assert through_card[0] == pytest.approx(2 * through_card[1], rel=0.2), (
        "two workers a host, and some padding"
    )
    losses = [each[0]["losses"][-5:].mean().item() for each in (flat, levels)]
    assert losses[1] == pytest.approx(losses[0], rel=within)


class Witness(Heart):
    """Which threads wait where the launcher sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self.threads.append(threading.current_thread().name)
        with super().waiting():
            yield


def wait_on_hosts(group: Group) -> dict[str, Tensor]:
    os.environ["LOCAL_RANK"] = str(group.rank % 2)
    heart = Witness()
    group = Group(group.rank, group.size, heart)
    Pupil(group, build_exact(group, BUCKET_BYTES, hierarchical=True)).train(range(1, 4))
    others = sum(name != threading.main_thread().name for name in heart.threads)
    return {"waits": torch.tensor([len(heart.threads), others])}


def test_only_waits_of_the_main_thread_show_in_the_heartbeat(tmp_path: Path) -> None:
    """It counts them one after the other: two threads at once would make a worker that waits look busy."""
    for result in run_workers(wait_on_hosts, 4, tmp_path):
        assert result["waits"][0] > 0
        assert result["waits"][1] == 0


def test_hosts_of_different_sizes_are_no_levels() -> None:
    assert workers_on_each_host([0, 1, 0, 1]) == 2
    assert workers_on_each_host([0, 1, 0]) is None
    assert workers_on_each_host([0, 0, 0]) == 1
    assert [level_size(ranks) for ranks in ([0, 1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 1, 2])] == [2, 1, 1, 1]


def learn(kind: str, group: Group) -> dict[str, Tensor]:
    pupil = Pupil(group, build(kind, group))
    pupil.train(STEPS)
    return pupil.result()


def trained(kind: str, size: int, folder: Path) -> dict[str, Tensor]:
    results = run_workers(functools.partial(learn, kind), size, folder)
    for result in results[1:]:
        assert torch.equal(result["weights"], results[0]["weights"]), "every worker has the same bits"
    return results[0]


def test_the_sum_over_workers_is_one_big_batch(tmp_path: Path) -> None:
    alone = trained("all_reduce", 1, tmp_path / "1")
    for size in (2, 3):
        together = trained("all_reduce", size, tmp_path / str(size))
        torch.testing.assert_close(together["weights"], alone["weights"], rtol=1e-5, atol=1e-6)


def test_compression_that_loses_nothing_is_all_reduce(tmp_path: Path) -> None:
    for size in (2, 3):
        exact = trained("all_reduce", size, tmp_path / f"exact-{size}")
        compressed = trained("float32", size, tmp_path / f"compressed-{size}")
        torch.testing.assert_close(compressed["weights"], exact["weights"], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(compressed["losses"], exact["losses"])


@pytest.mark.parametrize(
    ("kind", "within"), [("bf16", 0.01), ("fp16", 0.002), ("int8", 0.03), ("rank 8", 0.1)]
)
def test_a_lossy_exchange_learns_nearly_the_same(kind: str, within: float, tmp_path: Path) -> None:
    exact = trained("all_reduce", 2, tmp_path / "exact")
    lossy = trained(kind, 2, tmp_path / "lossy")
    assert not torch.equal(lossy["weights"], exact["weights"])
    assert lossy["losses"][-1] == pytest.approx(exact["losses"][-1].item(), rel=within)
    assert lossy["losses"][-1] < 0.8 * lossy["losses"][0]


def test_factors_of_full_rank_lose_nothing(tmp_path: Path) -> None:
    """A rank so high that no matrix gains by it: everything is summed as it is."""
    exact = trained("all_reduce", 2, tmp_path / "exact")
    plain = trained("rank 64", 2, tmp_path / "plain")
    torch.testing.assert_close(plain["weights"], exact["weights"], rtol=1e-6, atol=1e-7)


def learn_a_table(group: Group) -> dict[str, Tensor]:
    """With its first layer in the place of a table of embeddings; the largest that is owed of each layer."""
    pupil = Pupil(group, build("rank 2", group), first="embeddings")
    pupil.train(STEPS)
    (owed,) = pupil.exchange.state().own.values()
    largest = {s.name: s.view(owed).abs().max() for s in pupil.flat.slices if s.parameter.ndim == 2}
    return {**pupil.result(), **{f"largest/{name}": value for name, value in largest.items()}}


def test_of_a_table_only_roundings_are_owed(tmp_path: Path) -> None:
    results = run_workers(learn_a_table, 2, tmp_path)
    assert torch.equal(results[0]["weights"], results[1]["weights"])
    for result in results:
        assert 0 < result["largest/embeddings.weight"] < 0.1 * result["largest/2.weight"]
        assert sum(name.startswith("shared/q/") for name in result) == 1, "factors of the other layer alone"


def go_on(kind: str, folder: Path, group: Group) -> dict[str, Tensor]:
    """The second half of a training whose first half other workers have done."""
    pupil = Pupil(group, build(kind, group))
    pupil.go_on_from(folder)
    pupil.train(range(16, 31))
    return pupil.result()


def learn_half(kind: str, group: Group) -> dict[str, Tensor]:
    pupil = Pupil(group, build(kind, group))
    pupil.train(range(1, 16))
    return pupil.result()


@pytest.mark.parametrize("kind", ["int8", "rank 4"])
def test_what_is_owed_is_kept_in_checkpoints_and_summed_for_another_number_of_workers(
    kind: str, tmp_path: Path
) -> None:
    whole = trained(kind, 2, tmp_path / "whole")
    run_workers(functools.partial(learn_half, kind), 2, tmp_path / "half")
    again = run_workers(functools.partial(go_on, kind, tmp_path / "half"), 2, tmp_path / "again")
    assert torch.equal(again[0]["weights"], whole["weights"]), "bit for bit"
    for size in (1, 3):
        other = run_workers(functools.partial(go_on, kind, tmp_path / "half"), size, tmp_path / f"to-{size}")
        assert other[0]["losses"][-1] == pytest.approx(whole["losses"][-1].item(), rel=0.25)


def owe(kind: str, folder: Path, group: Group) -> dict[str, Tensor]:
    """What is owed by a group that has taken over others' state."""
    pupil = Pupil(group, build(kind, group))
    pupil.go_on_from(folder)
    return pupil.result()


def total_owed(results: list[dict[str, Tensor]]) -> Tensor:
    return torch.stack(
        [tensor for result in results for name, tensor in result.items() if name.startswith("own/error")]
    ).sum(dim=0)


@pytest.mark.parametrize("kind", ["int8", "rank 4"])
def test_all_workers_together_owe_the_same_whatever_their_number(kind: str, tmp_path: Path) -> None:
    half = run_workers(functools.partial(learn_half, kind), 2, tmp_path / "half")
    assert total_owed(half).abs().max() > 0
    for size in (1, 3):
        results = run_workers(functools.partial(owe, kind, tmp_path / "half"), size, tmp_path / str(size))
        torch.testing.assert_close(total_owed(results), total_owed(half))


def spoil(kind: str, group: Group) -> dict[str, Tensor]:
    """One worker's gradient is not finite in one step, which all of them skip."""
    pupil = Pupil(group, build(kind, group))
    pupil.train(range(1, 4))
    loss, pupil._loss = pupil._loss, lambda *_: pupil.model(torch.full((1, 32), float("nan"))).sum()  # type: ignore[method-assign]
    if group.rank != 1:
        pupil._loss = loss  # type: ignore[method-assign]
    pupil.train(range(4, 5), rate=0.0)
    seen = pupil.result()["reduced"]
    pupil._loss = loss  # type: ignore[method-assign]
    pupil.train(range(5, 30))
    return {**pupil.result(), "seen": seen}


@pytest.mark.parametrize("kind", ["bf16", "int8", "rank 4"])
def test_a_gradient_that_is_not_finite_is_seen_by_all_and_forgotten(kind: str, tmp_path: Path) -> None:
    for result in run_workers(functools.partial(spoil, kind), 2, tmp_path):
        assert not result["seen"].isfinite().all()
        assert result["losses"][-5:].isfinite().all()


def send_rows(group: Group) -> dict[str, Tensor]:
    rows = torch.arange(group.size * 5).view(group.size, 5) + 100 * group.rank
    return {"to": group.all_to_all(rows), "all": group.all_gather(rows[:1])}


def test_rows_go_where_they_should(tmp_path: Path) -> None:
    for rank, result in enumerate(run_workers(send_rows, 3, tmp_path)):
        own = torch.arange(rank * 5, rank * 5 + 5)
        assert torch.equal(result["to"], torch.stack([own, own + 100, own + 200]))
        assert torch.equal(result["all"], torch.arange(5) + torch.tensor([[0], [100], [200]]))
