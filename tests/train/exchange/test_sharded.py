"""An optimiser that is shared out over the workers: the bits, the checkpoints and the memory."""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path

import pytest
import torch
from tests.pupils import Pupil, run_workers
from torch import Tensor

from echelon.comm.group import Group, Sharers
from echelon.recipe import schema
from echelon.train.exchange import Exchange
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.ownership import share_out, spans_of
from echelon.train.exchange.sharded import Sharded
from echelon.train.gradient_norm import BLOCK_NUMBERS, block_norms, cut_blocks, total_norm

STEPS = 12
WIDTH = 500
"""Of a network with about ten blocks of numbers, whose parameters end anywhere in them."""
BUCKET_BYTES = 3 * 4 * BLOCK_NUMBERS
OPTIMISERS: dict[str, schema.Optimiser] = {
    "adam": schema.Adam(weight_decay=0.01),
    "sgd": schema.Sgd(kind="sgd", momentum=0.9, vector_rate=2.0),
}
RATES = {"adam": 0.003, "sgd": 0.02}


def pupil_of(group: Group, exchange: Exchange, kind: str) -> Pupil:
    return Pupil(group, exchange, WIDTH, optimiser=OPTIMISERS[kind], clip_norm=2.0)


def exchange_of(group: Group, way: str) -> Exchange:
    if way == "memory":
        os.environ["LOCAL_WORLD_SIZE"] = str(group.size)
    if group.size == 1:
        return AllReduce(group)
    return Sharded(group, BUCKET_BYTES, is_one_host=way == "memory")


def saved_by(pupil: Pupil) -> dict[str, Tensor]:
    """What this worker writes of the optimiser."""
    part = pupil.exchange.optimiser_part()
    tensors = pupil.optimiser.state() if part is None else part
    return {name: tensor.clone() for name, tensor in tensors.items()}


def held_bytes(pupil: Pupil) -> int:
    """Of the optimiser's vectors that this worker keeps."""
    vectors = [vector for span in pupil.optimiser.spans for vector in pupil.optimiser.vectors(span).values()]
    storages = [vector.untyped_storage() for vector in vectors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def state_of(pupil: Pupil) -> dict[str, Tensor]:
    return {
        "weights": pupil.flat.weights.clone(),
        "losses": torch.tensor(pupil.losses),
        "norms": torch.tensor(pupil.norms),
        "scales": pupil.exchange.state().shared["largest_gradients"].clone(),
        "held": torch.tensor(held_bytes(pupil)),
        **{f"saved/{name}": tensor for name, tensor in saved_by(pupil).items()},
    }


def learn(way: str, kind: str, group: Group) -> dict[str, Tensor]:
    pupil = pupil_of(group, exchange_of(group, way), kind)
    pupil.train(range(1, STEPS + 1), RATES[kind])
    if group.size > 1:
        assert pupil.exchange.traits.name == {"memory": "host_sum", "network": "sharded"}[way]
    return state_of(pupil)


@functools.cache
def alone(kind: str) -> dict[str, Tensor]:
    return learn("memory", kind, Group(0, 1))


def saved(results: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A checkpoint of workers with one folder."""
    names = [name for result in results for name in result if name.startswith("saved/")]
    assert len(names) == len(set(names)), "each tensor is written once"
    return {name: result[name] for result in results for name in result if name.startswith("saved/")}


def assert_same(results: list[dict[str, Tensor]], expected: dict[str, Tensor]) -> None:
    for result in results:
        for name in ("weights", "losses", "norms", "scales"):
            assert torch.equal(result[name], expected[name]), name
    checkpoint, whole = saved(results), saved([expected])
    assert checkpoint.keys() == whole.keys()
    for name, tensor in whole.items():
        assert torch.equal(checkpoint[name], tensor), name


@pytest.mark.parametrize(
    ("way", "size", "kind"),
    [
        ("memory", 2, "adam"),
        ("memory", 3, "sgd"),
        ("network", 2, "adam"),
        ("network", 3, "adam"),
    ],
)
def test_any_number_of_workers_has_the_bits_of_one_with_the_whole_optimiser(
    way: str, size: int, kind: str, tmp_path: Path
) -> None:
    expected = alone(kind)
    assert expected["losses"][-1] < 0.9 * expected["losses"][0], (
        "weights that never moved would prove nothing"
    )
    assert (expected["norms"] > 2.0).any(), "nor would gradients that are not clipped"
    assert_same(run_workers(functools.partial(learn, way, kind), size, tmp_path), expected)


def hold(way: str, group: Group) -> dict[str, Tensor]:
    """After two steps of a larger network, of 40 blocks."""
    pupil = Pupil(group, exchange_of(group, way), 2000, optimiser=OPTIMISERS["adam"], clip_norm=2.0)
    pupil.train(range(1, 3), RATES["adam"])
    return state_of(pupil)


@pytest.mark.parametrize("way", ["memory", "network"])
def test_four_workers_hold_at_most_30_percent_of_adams_bytes_each(way: str, tmp_path: Path) -> None:
    alone = hold(way, Group(0, 1))
    assert alone["held"] == 2 * 4 * (32 * 2000 + 2000 + 48 * 2000 + 48)
    results = run_workers(functools.partial(hold, way), 4, tmp_path)
    held = [int(result["held"]) for result in results]
    assert sum(held) == alone["held"], "nothing is kept twice, and nothing is forgotten"
    assert max(held) <= 0.3 * alone["held"]
    assert_same(results, alone)


def on_disks_of_their_own(group: Group) -> dict[str, Tensor]:
    """Three workers, of which the last two are on a host that does not see the folder of the first."""
    sharers = Sharers(0, 1) if group.rank == 0 else Sharers(group.rank - 1, 2)
    group = Group(group.rank, group.size, sharers=sharers)
    pupil = pupil_of(group, exchange_of(group, "network"), "adam")
    pupil.train(range(1, STEPS + 1), RATES["adam"])
    return state_of(pupil)


def test_every_host_saves_the_whole_optimiser_if_hosts_share_no_folder(tmp_path: Path) -> None:
    first, *others = run_workers(on_disks_of_their_own, 3, tmp_path)
    assert_same([first], alone("adam"))
    assert_same(others, alone("adam"))


def resume(way: str, folder: Path, group: Group) -> dict[str, Tensor]:
    """Take over what the workers of another run have saved after half of the steps."""
    pupil = pupil_of(group, exchange_of(group, way), "adam")
    half = STEPS // 2
    results = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))]
    if not results:
        pupil.train(range(1, half + 1), RATES["adam"])
        return state_of(pupil)
    pupil.flat.weights.copy_(results[0]["weights"])
    pupil.optimiser.load_state(
        {name.removeprefix("saved/"): tensor for name, tensor in saved(results).items()}
    )
    pupil.exchange.load_state({"largest_gradients": results[0]["scales"]})
    pupil.losses, pupil.norms = results[0]["losses"].tolist(), results[0]["norms"].tolist()
    pupil.train(range(half + 1, STEPS + 1), RATES["adam"])
    return state_of(pupil)


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, "memory"), (3, "network")), ((2, "memory"), (1, "memory")), ((3, "network"), (2, "memory"))],
)
def test_a_run_resumes_with_another_number_of_workers_shared_out_or_not(
    before: tuple[int, str], after: tuple[int, str], tmp_path: Path
) -> None:
    run_workers(functools.partial(resume, before[1], tmp_path / "none"), before[0], tmp_path / "half")
    resumed = run_workers(
        functools.partial(resume, after[1], tmp_path / "half"), after[0], tmp_path / "whole"
    )
    assert_same(resumed, alone("adam"))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_number_belongs_to_one_worker(size: int) -> None:
    stretches = [slice(0, 100_000), slice(100_000, 100_007), slice(100_007, 130_001)]
    blocks = cut_blocks(stretches)
    portions = share_out(blocks, size, 30_000)
    owned = sorted((s.start, s.stop) for rank in range(size) for s in spans_of(portions, rank))
    assert owned[0][0] == 0
    assert owned[-1][1] == 130_001
    assert all(before[1] == after[0] for before, after in itertools.pairwise(owned))
    starts = {block.start for block in blocks}
    assert all(start in starts for start, _ in owned), "blocks are not divided"


def test_norms_of_blocks_do_not_depend_on_which_others_are_computed_with_them() -> None:
    gradients = torch.randn(10 * BLOCK_NUMBERS + 77, generator=torch.Generator().manual_seed(0))
    whole = [slice(0, 9 * BLOCK_NUMBERS + 5), slice(9 * BLOCK_NUMBERS + 5, len(gradients))]
    blocks = cut_blocks(whole)
    together = block_norms(gradients, whole)
    assert len(together) == len(blocks)
    for number, block in enumerate(blocks):
        assert block_norms(gradients, [block]).item() == together[number].item()
    assert total_norm(together) == pytest.approx(gradients.double().norm().item(), rel=1e-6)
