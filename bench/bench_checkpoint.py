"""What a checkpoint costs training: added wall time of a save for Transformer-base with Adam (about 730 MB).

Blocks of training steps alternate: without a save, and with one save in the block by Echelon, by torch.save and by
torch.distributed.checkpoint.async_save. A save's cost is the block's time minus that of the blocks without, so what
the disk and the hashing take from the processors behind training's back counts as well. Usage:
    python bench/bench_checkpoint.py [--rounds 9] [--steps 6] [--threads 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from echelon.data.tokeniser import BOS
from echelon.models.loss import summed_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Dropouts, Transformer
from echelon.recipe.schema import Adam
from echelon.shapes.transformer import PRESETS, TransformerShape
from echelon.train.checkpoint import TrainingState, checkpoint_folder, clear_for_saving
from echelon.train.flat import FlatParameters
from echelon.train.interval import young_daly_seconds
from echelon.train.optimiser import FlatOptimiser
from echelon.train.saver import SaveJob, Saver, plan_files

VOCABULARY, PAIRS, LENGTH = 32768, 24, 24


class Trainee:
    """Transformer-base with Adam on batches that all cost the same."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        shape = TransformerShape(vocabulary=VOCABULARY, **PRESETS["base"])
        self.model = Transformer(shape, Dropouts(0.1, 0.1, 0.1))
        self.flat = FlatParameters(self.model)
        self.optimiser = FlatOptimiser(Adam(), self.flat)
        sentences = torch.randint(4, VOCABULARY, (2, PAIRS, LENGTH)).tolist()
        self.source, self.target = Sequences.of(sentences[0]), Sequences.of(sentences[1])
        self.saver = Saver()

    def step(self) -> None:
        self.flat.zero()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden_MD = self.model(self.source, shift_right(self.target, BOS))
            loss = summed_loss(hidden_MD, self.model.embeddings.output_VD, self.target.tokens, 0.1)
        (loss.smoothed / len(self.target.tokens)).backward()  # type: ignore[no-untyped-call]
        self.saver.wait_copied()
        self.optimiser.step(1e-5)

    def tensors(self) -> dict[str, Any]:
        return {"model": dict(self.model.state_dict()), "optimiser": self.optimiser.state()}


def echelon_save(trainee: Trainee, folder: Path) -> Callable[[], None]:
    number = 0

    def save() -> None:
        nonlocal number
        number += 1
        target = checkpoint_folder(folder / "echelon", number)
        if number > 1:
            shutil.rmtree(checkpoint_folder(folder / "echelon", number - 1))
        clear_for_saving(target)
        files, names = plan_files(trainee.model.state_dict(), trainee.optimiser.state(), 0, 1)
        trainee.saver.start(SaveJob(target, files, TrainingState(step=number), names))

    return save


def torch_save(trainee: Trainee, folder: Path) -> Callable[[], None]:
    return lambda: torch.save(trainee.tensors(), folder / "torch.pt")


def dcp_save(trainee: Trainee, folder: Path, futures: list[Any]) -> Callable[[], None]:
    def save() -> None:
        if futures:
            futures.pop().result()
        shutil.rmtree(folder / "dcp", ignore_errors=True)
        futures.append(dcp.async_save(trainee.tensors(), checkpoint_id=str(folder / "dcp")))  # type: ignore[attr-defined]

    return save


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = Path(tempfile.mkdtemp(prefix="echelon-bench-", dir=options.folder))
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        measure(options.rounds, options.steps, folder)
    finally:
        shutil.rmtree(folder)


def measure(rounds: int, steps: int, folder: Path) -> None:
    trainee = Trainee()
    futures: list[Any] = []
    contenders: dict[str, Callable[[], None]] = {
        "no save": lambda: None,
        "Echelon": echelon_save(trainee, folder),
        "torch.save": torch_save(trainee, folder),
        "DCP async_save": dcp_save(trainee, folder, futures),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for name, save in contenders.items():
            trainee.step()
            started = time.perf_counter()
            save()
            for _ in range(steps):
                trainee.step()
            if round_number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
            trainee.saver.wait_written()
            if futures:
                futures.pop().result()
    show(seconds, steps, trainee.flat.weights)


def show(seconds: dict[str, list[float]], steps: int, weights: Tensor) -> None:
    quiet = statistics.median(seconds["no save"])
    costs = {name: statistics.median(values) - quiet for name, values in seconds.items()}
    spread = statistics.median(abs(value - quiet) for value in seconds["no save"])
    print(
        f"{12 * len(weights) / 1e6:,.0f} MB, step {quiet / steps:.3f} s, spread of a quiet block {spread:.3f} s"
    )
    for name, cost in costs.items():
        if name != "no save":
            print(f"{name:<16}{cost:>8.3f} s added{cost / costs['torch.save']:>8.2f} x torch.save")
    interval = young_daly_seconds(max(costs["Echelon"], 1e-3), 24 * 3600.0)
    print(f"automatic interval {interval:.0f} s: {max(costs['Echelon'], 0) / interval:.3%} of training time")


if __name__ == "__main__":
    main()
