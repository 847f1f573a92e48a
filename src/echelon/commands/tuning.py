"""What "auto" means here: a few steps of each candidate are measured, by the recipe's own workers on its own data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from echelon.data.planning import AnyPrepared
from echelon.data.prepared import Prepared
from echelon.errors import FINAL_STATUS, TrainingError, UserError, WorkerError
from echelon.launch.cores import available_cores
from echelon.launch.local import LocalJob
from echelon.launch.memory import available_memory
from echelon.monitor.records import read_records
from echelon.recipe.schema import Recipe, Track, TranslationRecipe
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder

TRIAL_STEPS = 3
SMALLEST_SLOT = 512
LARGEST_SLOT = 32_768
STEPS_OF_AN_EPOCH = 10
"""No slot is tried of which a pass over the data would have fewer steps."""
FAST_ENOUGH = 0.97
"""A larger slot is taken where it is at least this fast, compared with the fastest."""
MEMORY_SHARE = 0.7
"""How much of the machine's free memory all workers together may take, or each of its GPU's."""


def measure(
    recipe: Recipe, prepared: AnyPrepared, workers: int, steps: int, warm_up: int | None = None
) -> dict[str, Any]:
    """Train `steps` steps in a folder that is thrown away; the keys of `benchmark --json`."""
    from echelon.commands.training import write_run

    arguments = ["--benchmark", str(steps)]
    if warm_up is not None:
        arguments += ["--warm-up", str(warm_up)]
    with tempfile.TemporaryDirectory(prefix="echelon-benchmark-") as folder:
        run = RunFolder(Path(folder))
        run.create()
        write_run(run, as_trial(recipe), prepared)
        with run.lock() as lock:
            LocalJob(run, workers, lock, arguments, hang_s=recipe.restart.hang_seconds).wait(lambda: None)
        measured = [record for record in read_records(run.worker_records(0)) if record["kind"] == "benchmark"]
    if not measured:
        raise TrainingError("interrupted before anything was measured")
    return {name: value for name, value in measured[-1].items() if name not in ("kind", "time")}


def as_trial(recipe: Recipe) -> Recipe:
    """The recipe without what reaches beyond the run folder: checkpoints at an address, and trackers."""
    checkpoint = recipe.checkpoint.model_copy(update={"mirror": None})
    return recipe.model_copy(update={"checkpoint": checkpoint, "track": Track(tensorboard=False)})


def find_workers(recipe: Recipe, prepared: AnyPrepared, console: Console) -> WorkerRange:
    """The number of workers on this machine that trains most tokens, or images, a second."""
    rates: dict[int, float] = {}
    said: list[str] = []
    failure = None
    unit = "tokens" if isinstance(recipe, TranslationRecipe) else "images"
    for workers in worker_candidates(available_cores(), recipe.train.slots):
        try:
            result = measure(recipe, prepared, workers, TRIAL_STEPS, warm_up=1)
        except WorkerError as error:  # such as too little memory for so many
            failure = error
            said.append(f"{workers}: failed")
        else:
            rates[workers] = result[f"{unit}_per_second"]
            said.append(f"{workers}: {rates[workers]:,.0f} {unit}/s")
    if failure is not None and not rates:
        raise failure
    best = max(rates, key=lambda workers: rates[workers])
    console.print(f'workers = "auto" is {best} here ({", ".join(said)})', highlight=False)
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        console.print(
            f"note: OMP_NUM_THREADS is set, so a worker had {threads} threads in all of these, "
            "and will have in training; unset it to have workers share the cores out",
            highlight=False,
        )
    return WorkerRange(best, best)


def worker_candidates(cores: int, slots: int) -> list[int]:
    """Numbers of workers that share the cores evenly, none without a slot: 1, 2, 4, ... and one for each core."""
    doubling = [2**power for power in range(cores.bit_length())]
    return [workers for workers in sorted({*doubling, cores}) if workers <= min(cores, slots)]


def resolve_batch(recipe: Recipe, prepared: AnyPrepared, workers: WorkerRange, console: Console) -> Recipe:
    """The recipe with the batch that `batch = "auto"` finds; the recipe itself where the batch is given."""
    if not isinstance(recipe, TranslationRecipe) or recipe.train.batch == "given":
        return recipe
    count = min(workers.at_start(available_cores()), recipe.train.slots)
    replicas = recipe.exchange.replicas if recipe.train.exchange == "local" else 1
    trial = with_slots(recipe, max(count, replicas))
    free = available_memory()

    def rate_and_memory(slot_tokens: int) -> tuple[float, float]:
        try:
            result = measure(with_slot_tokens(trial, slot_tokens), prepared, count, TRIAL_STEPS, warm_up=1)
        except WorkerError:
            console.print(f"slots of {slot_tokens:,} tokens: failed", highlight=False)
            raise
        mean_over_median = result["seconds_per_step"] / result["median_seconds_per_step"]
        rate, memory = result["tokens_per_second"] * mean_over_median, result["memory_bytes"] * count
        console.print(
            f"slots of {slot_tokens:,} tokens: {rate:,.0f} tokens/s, {memory / 1e6:,.0f} MB", highlight=False
        )
        held = result["gpu_memory_bytes"]
        return rate, result["memory_bytes"] / held if held else memory / free

    smallest = max(SMALLEST_SLOT, recipe.data.max_tokens)
    largest = largest_slot(recipe, prepared)
    chosen = find_slot(slot_candidates(smallest, largest), rate_and_memory, MEMORY_SHARE)
    found = with_slot_tokens(recipe, chosen)
    console.print(
        f'batch = "auto" is {recipe.train.slots} slots of {chosen:,} tokens here: {found.train.batch_tokens:,} a step',
        highlight=False,
    )
    return found


def refuse_auto_batch(recipe: Recipe) -> None:
    """UserError where several processes, or other machines, would train with a batch that one alone has measured."""
    if isinstance(recipe, TranslationRecipe) and recipe.train.batch == "auto":
        raise UserError(
            'train.batch = "auto" is measured by one machine for its own workers; run `echelon benchmark RECIPE '
            "--set train.batch=auto --workers N` on one of the hosts, N being the workers of each, and train with what "
            "it finds: --set train.batch=given --set train.batch_tokens=..."
        )


def with_slots(recipe: TranslationRecipe, slots: int) -> TranslationRecipe:
    """The recipe with so many slots a step."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"slots": slots})})


def with_slot_tokens(recipe: TranslationRecipe, slot_tokens: int) -> TranslationRecipe:
    """The recipe with slots of so many tokens each."""
    update = {"batch": "given", "batch_tokens": slot_tokens * recipe.train.slots}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=update)})


def largest_slot(recipe: TranslationRecipe, prepared: AnyPrepared) -> int:
    """Above this, a step is no small part of the data any more."""
    assert isinstance(prepared, Prepared), "a recipe's data are of its own task"
    longer = (np.maximum(store.source_lengths, store.target_lengths) for store in prepared.train)
    tokens = sum(int(lengths.sum(dtype=np.int64)) for lengths in longer)
    return min(LARGEST_SLOT, tokens // (recipe.train.slots * STEPS_OF_AN_EPOCH))


def slot_candidates(smallest: int, largest: int) -> Iterator[int]:
    """Slots to try: each twice the one before."""
    slot = smallest
    while slot <= max(smallest, largest):
        yield slot
        slot *= 2


def find_slot(
    candidates: Iterator[int], measure_slot: Callable[[int], tuple[float, float]], most_memory: float
) -> int:
    """The largest candidate that fits and is nearly as fast as the fastest.

    `measure_slot` says tokens a second and the memory, in the unit of `most_memory`. Stops before a candidate that will
    not fit, judging by how memory grew, where larger ones have become slower, and at one that fails; its WorkerError is
    raised where none has worked, or where size is not the reason.
    """
    rates: dict[int, float] = {}
    before = 0.0
    for slot in candidates:
        try:
            rate, memory = measure_slot(slot)
        except WorkerError as error:  # such as too little memory for so large a slot
            if not rates or error.exit_code == FINAL_STATUS:
                raise
            break
        if rates and memory > most_memory:
            break
        rates[slot] = rate
        growth = memory - before if before else 0.0
        if memory + 2 * growth > most_memory or rates[slot] < 0.9 * max(rates.values()):
            break
        before = memory
    fast = [slot for slot, rate in rates.items() if rate >= FAST_ENOUGH * max(rates.values())]
    return max(fast)
