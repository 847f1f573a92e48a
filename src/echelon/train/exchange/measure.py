"""What `choice` needs to know of a line, a model and the exchanges, in a few seconds."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import torch

from echelon.comm.echo import Echo
from echelon.comm.group import Group
from echelon.comm.linktest import LinkSpeed, measure_link, traffic_share
from echelon.recipe.checks import find_exchange_problems
from echelon.recipe.compatibility import with_found
from echelon.recipe.schema import Recipe
from echelon.recipe.workers import level_size
from echelon.resolve.exchange_choice import CANDIDATES, SETTINGS, Candidate, Measured, compute_seconds
from echelon.runfolder import RunFolder
from echelon.tasks import build_task
from echelon.tasks.task import Task
from echelon.train.exchange import Exchange, build_exchange
from echelon.train.model_state import ModelState, build_model_state
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import slot_seed

_SLOTS = 3
"""Slots that are computed; the fastest counts."""
_CPU_TEST_S = 0.2
"""Seconds of the line's time in which the processor's is measured."""


def measure(recipe: Recipe, run: RunFolder, group: Group, device: torch.device) -> Measured:
    """The line, a slot, the optimiser, and what each exchange computes. Collective."""
    link, local_ranks = measure_link(group), group.local_ranks()
    cpu_s_per_byte = _cpu_seconds_per_byte(group, link)
    task = build_task(recipe, run, device)
    model = build_model_state(recipe, task, device)
    slot_s = _time_slot(recipe, task, model, group, device)
    optimiser_s = min(_time_update(model.optimiser, device) for _ in range(2))
    own_s: dict[Candidate, float] = {}
    num_bytes: dict[Candidate, float] = {}
    for name in candidates(recipe):
        echo = Echo(group)
        exchange = build_exchange(_for_timing(recipe, name, group.size), echo)
        exchange.attach(model.flat, model.optimiser, lambda: None)
        for step in (1, 2):  # the second time all memory is there
            echo.num_bytes = 0
            own_s[name] = _time_agreement(exchange, step, recipe.train.slots, device)
        num_bytes[name] = card_share(name, local_ranks) * echo.num_bytes
    seen = group.gather_json([slot_s, optimiser_s, cpu_s_per_byte, *own_s.values()])
    slowest: list[float] = [max(values) for values in zip(*seen, strict=True)]
    return Measured(
        slots=recipe.train.slots,
        workers=group.size,
        hosts=local_ranks.count(0),
        slot_s=slowest[0],
        optimiser_s=slowest[1],
        cpu_s_per_byte=slowest[2],
        line_bytes_per_s=link.bytes_per_s,
        latency_s=link.latency_s,
        num_bytes=num_bytes,
        own_s=dict(zip(own_s, slowest[3:], strict=True)),
        alone=_alone(recipe.train.slots, group.gather_json(socket.gethostname()), seen),
        steps_between=recipe.exchange.every,
        steps_behind=recipe.exchange.overlap,
    )


def _alone(slots: int, names: Sequence[str], seen: Sequence[Sequence[float]]) -> dict[str, float]:
    """Seconds of a step on each host alone, from the seconds of a slot and an update of each worker."""
    workers: dict[str, list[Sequence[float]]] = {}
    for name, seconds in zip(names, seen, strict=True):
        workers.setdefault(name, []).append(seconds)
    return {
        name: compute_seconds(slots, len(own), max(s[0] for s in own), max(s[1] for s in own))
        for name, own in workers.items()
    }


def candidates(recipe: Recipe) -> list[Candidate]:
    """The exchanges that this recipe can be trained with, allowed or not."""
    found = {name: {**SETTINGS[name], "replicas": 1} for name in CANDIDATES}
    return [name for name in CANDIDATES if not find_exchange_problems(with_found(recipe, found[name]))]


def card_share(name: Candidate, local_ranks: list[int]) -> float:
    """Bytes that a host's card sends per byte that is added up, "auto" having set `exchange.hierarchical`."""
    size, hosts = len(local_ranks), local_ranks.count(0)
    if size == hosts or level_size(local_ranks) > 1:
        return traffic_share(hosts)
    if name == "all_reduce":
        return traffic_share(size)
    num_local = max(local_ranks) + 1  # on the host that sends most: each of its workers to each elsewhere
    return 2 * num_local * (size - num_local) / size


def _for_timing(recipe: Recipe, name: Candidate, workers: int) -> Recipe:
    """Without overlap, so that one update is one whole agreement, and without levels, which an echo has not: encoding
    all numbers stands for encoding a part of them and adding up inside the host."""
    settings = {"every": 1, "overlap": 0, "replicas": min(2, workers), "hierarchical": False}
    return with_found(recipe, SETTINGS[name] | settings)


def _cpu_seconds_per_byte(group: Group, link: LinkSpeed) -> float:
    """Processor time of adding up, for each byte that this worker sends."""
    size = max(2**18, int(_CPU_TEST_S * link.bytes_per_s))
    buffer = torch.zeros(size // 4)
    started = time.process_time()
    group.all_reduce(buffer)
    return (time.process_time() - started) / (traffic_share(group.size) * size)


def _time_slot(recipe: Recipe, task: Task, model: ModelState, group: Group, device: torch.device) -> float:
    """Seconds of a slot, on a model that is thrown away; all workers at once. Collective."""
    slots = task.slots(1)
    model.module.train()
    group.barrier()
    seconds = []
    for number in range(_SLOTS):
        group.heart.beat()
        slot = slots[number % len(slots)]
        started = time.perf_counter()
        torch.manual_seed(slot_seed(recipe.seed, 1, number))
        with model.precision.autocast():
            loss = task.loss(model.module, task.load(slot))
        (loss.smoothed / slot.targets).backward()  # type: ignore[no-untyped-call]
        _wait_for(device)
        seconds.append((time.perf_counter() - started) / slot.targets)
    mean_targets = sum(slot.targets for slot in slots) / len(slots)
    return min(seconds) * mean_targets


def _time_update(optimiser: FlatOptimiser, device: torch.device) -> float:
    started = time.perf_counter()
    optimiser.step(0.0)
    _wait_for(device)
    return time.perf_counter() - started


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time_agreement(exchange: Exchange, step: int, num_slots: int, device: torch.device) -> float:
    """What one agreement computes, with nobody at the other end of the line."""
    started = time.perf_counter()
    for _ in exchange.updates(step, num_slots):
        exchange.reduce()
        exchange.after_update()
    _wait_for(device)
    return time.perf_counter() - started
