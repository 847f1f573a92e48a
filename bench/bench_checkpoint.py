"""What a checkpoint costs training: added wall time of a save for Transformer-base with Adam (about 730 MB).

Blocks of training steps alternate: one without a save, one with a save by Echelon, one without, one with torch.save,
one without, one with torch.distributed.checkpoint.async_save, and so on. A block with a save lasts until the save is
over, whatever runs behind. Its cost is its time less that of as many steps of the two quiet blocks beside it: so what
disk and checksums take from the processors behind training's back counts as well. Between blocks, untimed, the disk is
synchronised: what torch.save leaves to the operating system is not held against anyone. With several workers torch.save
is called by the first while the others wait; the other two split the checkpoint. A block during which other programs
used the processors does not count. Usage:
    python bench/bench_checkpoint.py [--minutes 3] [--steps 4] [--workers 1] [--threads 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from echelon.comm.group import Group
from echelon.data.tokeniser import BOS
from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, clear_for_saving
from echelon.launch.library_settings import ALLOCATOR
from echelon.models.loss import summed_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Dropouts, Transformer
from echelon.recipe.schema import Adam
from echelon.resolve.interval import young_daly_seconds
from echelon.shapes.transformer import PRESETS, TransformerShape
from echelon.train.checkpoint import prune_checkpoints
from echelon.train.checkpoint_writer import CheckpointWriter, SaveJob, plan_files
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser

VOCABULARY, PAIRS, LENGTH = 32768, 8, 24
BETWEEN_FAILURES_S = 24 * 3600.0
MOST_BY_OTHERS = 0.1
"""Cores that other programs may use during a block that counts."""


class Trainee:
    """Transformer-base with Adam on batches that all cost the same."""

    def __init__(self, group: Group) -> None:
        torch.manual_seed(1)
        shape = TransformerShape(vocabulary=VOCABULARY, **PRESETS["base"])
        self.group = group
        self.model = Transformer(shape, Dropouts(0.1, 0.1, 0.1))
        self.flat = FlatParameters(self.model, group.size)
        self.optimiser = FlatOptimiser(Adam(), self.flat)
        self.exchange = AllReduce(group)
        self.exchange.attach(self.flat, None, lambda: None)
        sentences = torch.randint(4, VOCABULARY, (2, PAIRS // group.size, LENGTH)).tolist()
        self.source, self.target = Sequences.of(sentences[0]), Sequences.of(sentences[1])
        self.before_update: Callable[[], None] = lambda: None

    def step(self) -> None:
        self._backward()
        while self.exchange.reduce().must_repeat:
            self._backward()
        self.before_update()
        self.optimiser.step(1e-5)

    def _backward(self) -> None:
        self.flat.zero()
        with self.exchange.slot(last=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden_MD = self.model(self.source, shift_right(self.target, BOS))
                loss = summed_loss(hidden_MD, self.model.embeddings.output_VD, self.target.tokens, 0.1)
            (loss.smoothed / len(self.target.tokens)).backward()  # type: ignore[no-untyped-call]

    def tensors(self) -> dict[str, Any]:
        return {"model": dict(self.model.state_dict()), "optimiser": self.optimiser.state()}


class Contender(Protocol):
    """A way to save, used by all workers together."""

    def begin(self) -> None: ...

    @property
    def is_done(self) -> bool: ...

    def finish(self) -> None:
        """What is left to do once it is done, such as removing the save before."""
        ...


class Nothing:
    """No save."""

    is_done = True

    def begin(self) -> None: ...

    def finish(self) -> None: ...


class Echelon:
    """What training does: a new checkpoint, then the old one is removed."""

    def __init__(self, trainee: Trainee, folder: Path) -> None:
        self.trainee, self.folder, self.number = trainee, folder, 0
        self.writer, self.is_tidy = CheckpointWriter(), False
        trainee.before_update = self.writer.wait_copied

    def begin(self) -> None:
        self.number, self.is_tidy = self.number + 1, False
        trainee, group = self.trainee, self.trainee.group
        target = checkpoint_folder(self.folder, self.number)
        if group.is_first:
            clear_for_saving(target)
        group.barrier()
        state = TrainingState(step=self.number) if group.is_first else None
        model, optimiser = trainee.model.state_dict(), trainee.optimiser.state()
        files, names = plan_files(model, optimiser, group.rank, group.size)
        self.writer.start(SaveJob(target, files, state, names))

    @property
    def is_done(self) -> bool:
        if self.writer.is_writing:
            return False
        self._raise_error()
        if self.is_tidy or not self.trainee.group.is_first:
            return True
        self.is_tidy = True
        self.writer.tidy(lambda: prune_checkpoints(self.folder, keep=1, best=None))
        return False

    def finish(self) -> None:
        self.writer.wait_written()
        self._raise_error()

    def _raise_error(self) -> None:
        error = self.writer.take_error()
        if error is not None:
            raise error


class TorchSave:
    """One worker writes over the file of the last time, and all wait."""

    is_done = True

    def __init__(self, trainee: Trainee, file: Path) -> None:
        self.trainee, self.file = trainee, file

    def begin(self) -> None:
        if self.trainee.group.is_first:
            torch.save(self.trainee.tensors(), self.file)
        self.trainee.group.barrier()

    def finish(self) -> None: ...


class DcpAsyncSave:
    """torch's own save in the background, over the files of the last time."""

    def __init__(self, trainee: Trainee, folder: Path) -> None:
        self.trainee, self.folder = trainee, folder
        self.future: Any = None

    def begin(self) -> None:
        self.future = dcp.async_save(self.trainee.tensors(), checkpoint_id=str(self.folder))  # type: ignore[attr-defined]

    @property
    def is_done(self) -> bool:
        return bool(self.future.done())

    def finish(self) -> None:
        self.future.result()


@dataclass(frozen=True)
class Block:
    """So many steps took so long."""

    steps: int
    seconds: float
    by_others: float
    """Cores that other programs used meanwhile."""

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True)
class Cost:
    """What one save added, and how many steps it took to its end."""

    seconds: float
    steps: int


def run_block(trainee: Trainee, contender: Contender, steps: int) -> Block:
    """At least `steps` steps, from the beginning of a save to its end. Collective."""
    group, taken = trainee.group, 0
    mine = set(group.gather_json(os.getpid()))
    group.barrier()
    others, started = others_cpu_s(mine), time.perf_counter()
    contender.begin()
    while taken < steps or group.agree(not contender.is_done):
        trainee.step()
        taken += 1
    contender.finish()
    group.barrier()
    seconds = time.perf_counter() - started
    by_others = group.broadcast_json((others_cpu_s(mine) - others) / seconds)
    os.sync()
    group.barrier()
    return Block(taken, seconds, by_others)


def others_cpu_s(mine: set[int]) -> float:
    """What other programs have used of the processors so far; not the system's own threads, which work for us."""
    total = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in mine and process.cmdline():
                total += sum(process.cpu_times()[:4])
    return total


def measure(group: Group, minutes: float, steps: int, folder: Path) -> None:
    """Rounds of alternating blocks until time is up; the first round warms up. Collective."""
    trainee = Trainee(group)
    contenders: dict[str, Contender] = {
        "Echelon": Echelon(trainee, folder / "echelon"),
        "torch.save": TorchSave(trainee, folder / "torch.pt"),
        "DCP async_save": DcpAsyncSave(trainee, folder / "dcp"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    quiet = [run_block(trainee, Nothing(), steps)]
    number, deadline = 0, time.monotonic() + 60 * minutes
    while group.agree(time.monotonic() < deadline):
        number += 1
        for name, contender in contenders.items():
            block = run_block(trainee, contender, steps)
            quiet.append(run_block(trainee, Nothing(), steps))
            is_undisturbed = all(b.by_others < MOST_BY_OTHERS for b in (*quiet[-2:], block))
            if number > 1 and is_undisturbed:
                usual = block.steps * (quiet[-2].step_s + quiet[-1].step_s) / 2
                costs[name].append(Cost(block.seconds - usual, block.steps))
    if group.is_first:
        print(
            f"{12 * trainee.flat.size / 1e6:,.0f} MB, {group.size} x {torch.get_num_threads()} threads, "
            f"step {statistics.median(block.step_s for block in quiet):.3f} s"
        )
        show(costs, number - 1)


def show(costs: dict[str, list[Cost]], rounds: int) -> None:
    """Medians with quartiles, and what the automatic interval makes of them."""
    if min(map(len, costs.values())) < 2:
        print(f"other programs disturbed all but a few of {rounds} rounds; try again on a quiet machine")
        return
    medians = {name: statistics.median(cost.seconds for cost in values) for name, values in costs.items()}
    for name, values in costs.items():
        low, _, high = statistics.quantiles((cost.seconds for cost in values), n=4)
        print(
            f"{name:<16}{medians[name]:>7.3f} s added (quartiles {low:.3f} to {high:.3f}; {len(values)} of {rounds}), "
            f"{medians[name] / medians['torch.save']:.2f} x torch.save, "
            f"over within {max(cost.steps for cost in values)} steps"
        )
    cost = max(medians["Echelon"], 1e-3)
    interval = young_daly_seconds(cost, BETWEEN_FAILURES_S)
    print(f"automatic interval {interval:.0f} s: {cost / interval:.3%} of training time")


def work(rank: int, options: argparse.Namespace, folder: Path) -> None:
    """One worker, from its start to its end."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    store = dist.FileStore(str(folder / "store"), options.workers)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.workers)
    measure(Group(rank, options.workers), options.minutes, options.steps, folder)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    os.environ.update(ALLOCATOR, GLOO_SOCKET_IFNAME="lo")
    with tempfile.TemporaryDirectory(prefix="echelon-bench-", dir=options.folder) as folder:
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=work, args=(rank, options, Path(folder)))
            for rank in range(options.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
