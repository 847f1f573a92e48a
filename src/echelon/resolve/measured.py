"""`train.workers` and `train.batch = "auto"`: a few steps of each candidate are measured, on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from echelon.data.batch_plan import AnyPrepared
from echelon.data.prepared import Prepared
from echelon.errors import FINAL_STATUS, UserError, WorkerError
from echelon.recipe.schema import Recipe, TranslationRecipe
from echelon.recipe.tasks import StepSize, find_task
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.resolve.earlier import with_workers

TRIAL_STEPS = 3
SMALLEST_SLOT = 512
LARGEST_SLOT = 32_768
STEPS_OF_AN_EPOCH = 10
"""No slot is tried that is so large that a pass over the data would have fewer steps."""
FAST_ENOUGH = 0.97
"""A larger slot is taken if it is at least this fast, compared with the fastest."""
MEMORY_SHARE = 0.7
"""How much of the machine's free memory all workers together may take, or each of its GPU's."""


@dataclass(frozen=True)
class TrialMachine:
    """A machine on which candidates are measured."""

    cores: int
    free_bytes: int
    """Free memory."""
    measure: Callable[[Recipe, int, int], dict[str, Any]]
    """Train a recipe with a number of workers for a number of steps; the keys of `benchmark --json`."""


def must_measure(recipe: Recipe, *, on_hosts: bool) -> bool:
    """Whether a few steps have to tell what "auto" is; on hosts, each has as many workers as it is given."""
    return recipe.train.is_batch_auto or (parse_workers(recipe.train.workers).is_auto and not on_hosts)


def with_measured(
    recipe: Recipe, prepared: AnyPrepared, machine: TrialMachine, console: Console, *, on_hosts: bool
) -> Recipe:
    """The recipe with what a few steps on this machine tell about "auto"."""
    workers = parse_workers(recipe.train.workers)
    recipe = resolve_batch(recipe, prepared, workers, machine, console)
    if not workers.is_auto or on_hosts:
        return recipe
    return with_workers(recipe, find_workers(recipe, machine, console).most)


def find_workers(recipe: Recipe, machine: TrialMachine, console: Console) -> WorkerRange:
    """The number of workers on this machine that trains most tokens, or images, a second."""
    rates: dict[int, float] = {}
    said: list[str] = []
    failure = None
    task: BatchDeclaration = find_task(recipe.task)
    unit = task.batch(recipe).unit
    for workers in worker_candidates(machine.cores, recipe.train.slots):
        try:
            result = machine.measure(recipe, workers, TRIAL_STEPS)
        except WorkerError as error:  # such as too little memory for this many workers
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


class BatchDeclaration(Protocol):
    """What a task says about the size of its steps, and the sizes to try for `batch = "auto"`."""

    def batch(self, recipe: Recipe) -> StepSize: ...

    def slot_sizes(self, recipe: Recipe, prepared: AnyPrepared) -> tuple[int, int]:
        """The smallest and the largest slot to try."""
        ...

    def with_slot_size(self, recipe: Recipe, size: int) -> Recipe:
        """The recipe with slots of that size."""
        ...


def resolve_batch(
    recipe: Recipe, prepared: AnyPrepared, workers: WorkerRange, machine: TrialMachine, console: Console
) -> Recipe:
    """The recipe with the batch that `batch = "auto"` finds; the recipe itself if the batch is given."""
    if not recipe.train.is_batch_auto:
        return recipe
    task: BatchDeclaration = find_task(recipe.task)
    unit = task.batch(recipe).unit
    count = min(workers.at_start(machine.cores), recipe.train.slots)
    replicas = recipe.exchange.replicas if recipe.train.exchange == "local" else 1
    trial = with_slots(recipe, max(count, replicas))

    def rate_and_memory(size: int) -> tuple[float, float]:
        try:
            result = machine.measure(task.with_slot_size(trial, size), count, TRIAL_STEPS)
        except WorkerError:
            console.print(f"slots of {size:,} {unit}: failed", highlight=False)
            raise
        mean_over_median = result["seconds_per_step"] / result["median_seconds_per_step"]
        rate, memory = result[f"{unit}_per_second"] * mean_over_median, result["memory_bytes"] * count
        console.print(
            f"slots of {size:,} {unit}: {rate:,.0f} {unit}/s, {memory / 1e6:,.0f} MB", highlight=False
        )
        held = result["gpu_memory_bytes"]
        return rate, result["memory_bytes"] / held if held else memory / machine.free_bytes

    smallest, largest = task.slot_sizes(recipe, prepared)
    chosen = find_slot(slot_candidates(smallest, largest), rate_and_memory, MEMORY_SHARE)
    found = task.with_slot_size(recipe, chosen)
    console.print(
        f'batch = "auto" is {recipe.train.slots} slots of {chosen:,} {unit} here: {task.batch(found).size:,} a step',
        highlight=False,
    )
    return found


def refuse_auto_batch(recipe: Recipe) -> None:
    """UserError if several processes, or other machines, would train with a batch that one alone has measured."""
    if recipe.train.is_batch_auto:
        raise UserError(
            'train.batch = "auto" is measured by one machine for its own workers; run `echelon benchmark RECIPE '
            "--set train.batch=auto --workers N` on one of the hosts, N being the workers of each, and train with what "
            "it finds: --set train.batch=given --set train.batch_tokens=..."
        )


def with_slots(recipe: Recipe, slots: int) -> Recipe:
    """The recipe with this many slots a step."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"slots": slots})})


def with_slot_tokens(recipe: TranslationRecipe, slot_tokens: int) -> TranslationRecipe:
    """The recipe with slots of this many tokens each."""
    update = {"batch": "given", "batch_tokens": slot_tokens * recipe.train.slots}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=update)})


def largest_slot(recipe: TranslationRecipe, prepared: Prepared) -> int:
    """Above this, a step is no longer a small part of the data."""
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
    not fit, judging by how memory grew, when larger ones have become slower, and at one that fails; its WorkerError is
    raised if none has worked, or if size is not the reason.
    """
    rates: dict[int, float] = {}
    before = 0.0
    for slot in candidates:
        try:
            rate, memory = measure_slot(slot)
        except WorkerError as error:  # such as too little memory for a slot of this size
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
