"""What `train.exchange = "auto"` means here: measured where several hosts begin a run, and kept from then on."""

from __future__ import annotations

import time
from typing import Any, get_args

import torch
from torch import Tensor

from echelon.comm.group import Group, Pending
from echelon.comm.linktest import Link, measure_link, traffic_share
from echelon.monitor.heartbeat import Heart
from echelon.monitor.records import RecordWriter
from echelon.recipe.exchanges import Name
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, read_json, write_atomically, write_json
from echelon.tasks import build_task
from echelon.tasks.task import Task
from echelon.train.exchange import Exchange, build_exchange
from echelon.train.exchange.choice import Measured, choose
from echelon.train.learner import Learner, build_learner
from echelon.train.optimiser import FlatOptimiser
from echelon.train.precision import Precision
from echelon.train.slots import slot_seed

_SLOTS = 3
"""That are computed, of which the fastest counts."""
_CPU_TEST_S = 0.2
"""Seconds of the line's time in which the processor's is measured."""


def resolve_exchange(run: RunFolder, group: Group, records: RecordWriter, device: torch.device) -> Recipe:
    """The run's recipe with an exchange; where it says "auto" and there are several hosts, found and written down.

    What was found once holds for the whole run, also where hosts keep folders of their own. Collective.
    """
    recipe = load_recipe(run.recipe)
    hosts = count_hosts(group)
    if recipe.train.exchange != "auto" or hosts == 1:
        return recipe
    kept = group.gather_json(_read_found(run) if group.keeps_folder else None)
    found = next((each for each in kept if each is not None), None)
    if found is None:
        measured = measure(recipe, run, group, hosts, device)
        choice = choose(measured, recipe.train.exchange_may)
        found = {
            "exchange": choice.exchange,
            "hosts": choice.hosts,
            "replicas": min(hosts, recipe.train.slots),
            "bucket_bytes": measured.bucket_bytes,
            "hierarchical": group.size > hosts,
        }
        if group.is_first:
            records.write("event", message=choice.reason)
    recipe = with_found(recipe, found)
    if group.keeps_folder:
        write_json(run.exchange, found)
        write_atomically(run.recipe, dump_recipe(recipe))
    group.barrier()
    return recipe


def _read_found(run: RunFolder) -> Any:
    return read_json(run.exchange) if run.exchange.exists() else None


def with_found(recipe: Recipe, found: dict[str, Any]) -> Recipe:
    """The recipe with what was found in place of "auto"."""
    settings = {key: found[key] for key in ("hosts", "bucket_bytes", "hierarchical")}
    if found["exchange"] == "local":
        settings["replicas"] = found["replicas"]
    return recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update={"exchange": found["exchange"]}),
            "exchange": recipe.exchange.model_copy(update=settings),
        }
    )


def count_hosts(group: Group) -> int:
    """Hosts of the group, from what launchers tell every worker. Collective."""
    return group.local_ranks().count(0)


def measure(recipe: Recipe, run: RunFolder, group: Group, hosts: int, device: torch.device) -> Measured:
    """The line, a slot, the optimiser, and what each exchange computes, in a few seconds. Collective."""
    link = measure_link(group)
    cpu_s_per_byte = _cpu_seconds_per_byte(group, link)
    task = build_task(recipe, run, device)
    learner = build_learner(recipe, task, device)
    slot_s = _time_slot(recipe, task, learner, group, device)
    optimiser_s = min(_time_update(learner.optimiser, device) for _ in range(2))
    own_s: dict[Name, float] = {}
    num_bytes: dict[Name, float] = {}
    for name in get_args(Name):
        echo = _Echo(group)
        # Without overlap, so that one update is one whole agreement.
        settings = recipe.exchange.model_copy(
            update={"every": 1, "overlap": 0, "replicas": min(2, group.size)}
        )
        candidate = recipe.model_copy(
            update={
                "train": recipe.train.model_copy(update={"exchange": name}),
                "exchange": settings,
            }
        )
        exchange = build_exchange(candidate, echo)
        exchange.attach(learner.flat, learner.optimiser, lambda: None)
        for step in (1, 2):  # the second time all memory is there
            echo.num_bytes = 0
            own_s[name] = _time_agreement(exchange, step, recipe.train.slots, device)
        num_bytes[name] = traffic_share(group.size) * echo.num_bytes
    slowest: list[float] = [
        max(values)
        for values in zip(
            *group.gather_json([slot_s, optimiser_s, cpu_s_per_byte, *own_s.values()]), strict=True
        )
    ]
    return Measured(
        slots=recipe.train.slots,
        workers=group.size,
        hosts=hosts,
        slot_s=slowest[0],
        optimiser_s=slowest[1],
        cpu_s_per_byte=slowest[2],
        line_bytes_per_s=link.bytes_per_s,
        latency_s=link.latency_s,
        num_bytes=num_bytes,
        own_s=dict(zip(own_s, slowest[3:], strict=True)),
        steps_between=recipe.exchange.every,
        steps_behind=recipe.exchange.overlap,
    )


def _cpu_seconds_per_byte(group: Group, link: Link) -> float:
    """Processor time of adding up, for each byte that this worker sends."""
    size = max(2**18, int(_CPU_TEST_S * link.bytes_per_s))
    buffer = torch.zeros(size // 4)
    started = time.process_time()
    group.all_reduce(buffer)
    return (time.process_time() - started) / (traffic_share(group.size) * size)


def _time_slot(recipe: Recipe, task: Task, learner: Learner, group: Group, device: torch.device) -> float:
    """Seconds of a slot, on a model that is thrown away; all workers at once. Collective."""
    slots, precision = task.slots(1), Precision(recipe.train.precision, device)
    learner.model.train()
    group.barrier()
    seconds = []
    for number in range(_SLOTS):
        group.heart.beat()
        slot = slots[number % len(slots)]
        started = time.perf_counter()
        torch.manual_seed(slot_seed(recipe.seed, 1, number))
        with precision.autocast():
            loss = task.loss(learner.model, task.load(slot))
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
    for _ in exchange.turns(step, num_slots):
        exchange.update(lambda: None)
    _wait_for(device)
    return time.perf_counter() - started


class _Done:
    """A collective that is over."""

    def wait(self) -> object:
        return None


class _Echo(Group):
    """A group whose other workers are imagined: nothing travels, everything takes no time, and bytes are counted."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.num_bytes = 0
        """Of the buffers that would have been added up."""

    def all_reduce(self, tensor: Tensor) -> None:
        self.num_bytes += tensor.nbytes

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        self.num_bytes += tensor.nbytes
        return _Done()

    def all_to_all(self, rows: Tensor) -> Tensor:
        self.num_bytes += rows.nbytes
        return rows.clone()

    def all_gather(self, row: Tensor) -> Tensor:
        return row.expand(self.size, -1).clone()

    def channel(self, heart: Heart | None = None) -> Group:
        return self

    def part(self, parts: list[list[int]], heart: Heart | None = None) -> Group:
        return Group(0, 1)
