"""What `train.exchange = "auto"` means here: measured where several hosts begin a run, and kept from then on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from echelon.comm.group import Group
from echelon.errors import UserError
from echelon.monitor.records import RecordWriter
from echelon.recipe.continuing import find_changes_in_tables, found_in, with_found
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, read_json, write_atomically, write_json
from echelon.train.exchange.choice import SETTINGS, choose, fastest_of
from echelon.train.exchange.hierarchical import level_size
from echelon.train.exchange.measure import measure

_ALONE = "alone_seconds"


@dataclass(frozen=True)
class Found:
    """What exchange.json holds."""

    exchange: dict[str, Any]
    """The exchange and its settings, in place of "auto"."""
    alone: dict[str, float]
    """How fast the hosts were: seconds of a step on each alone, by its name."""

    def to_json(self) -> dict[str, Any]:
        return self.exchange | ({_ALONE: self.alone} if self.alone else {})


def resolve_exchange(run: RunFolder, group: Group, records: RecordWriter, device: torch.device) -> Recipe:
    """The run's recipe with an exchange; where it says "auto" and there are several hosts, found and written down.

    What was found once holds for the whole run, also where hosts keep folders of their own and one of them was cut off
    while the others found it. Collective.
    """
    recipe = load_recipe(run.recipe)
    is_auto = recipe.train.exchange == "auto"
    if count_hosts(group) == 1 or not group.agree(is_auto):
        return recipe
    here = _read_found(run)
    kept = group.gather_json([found_in(recipe), here.exchange if here else None])
    # A recipe that is resolved has been trained with; a file may have been written just before everything stopped.
    exchange = next((each for each in chain(*zip(*kept, strict=True)) if each is not None), None)
    found = None if exchange is None else Found(exchange, _gather_alone(run, group))
    if found is None:
        found, reason = find_exchange(recipe, run, group, device)
        if group.is_first:
            records.write("event", message=reason)
    if is_auto:
        recipe = with_found(recipe, found.exchange)
        if group.keeps_folder:
            write_json(run.exchange, found.to_json())
            write_atomically(run.recipe, dump_recipe(recipe))
    group.barrier()
    return recipe


def choose_hosts(run: RunFolder, group: Group, count: int | None) -> list[int]:
    """Which hosts train, if it is only `count` of them: the fastest that were measured when "auto" was found, otherwise
    the first; counted in the order of ranks. Collective."""
    ranks = [rank for rank, local_rank in enumerate(group.local_ranks()) if local_rank == 0]
    if count is None or count >= len(ranks):
        return list(range(len(ranks)))
    names = group.gather_json(socket.gethostname())
    hosts, alone = [names[rank] for rank in ranks], _gather_alone(run, group)
    if not alone or len(set(hosts)) < len(hosts):
        return list(range(count))
    return sorted(hosts.index(name) for name in fastest_of(hosts, alone, count))


def require_one_recipe(recipe: Recipe, group: Group) -> None:
    """UserError in every worker where one would learn something else than the first: hosts may keep folders of their
    own. Collective."""
    own = recipe.model_dump(mode="json")
    changes = find_changes_in_tables(group.broadcast_json(own), own)
    for rank, changed in enumerate(group.gather_json(changes)):
        if changed:
            raise UserError(
                f"the run folder of worker {rank} has another recipe than that of worker 0 ({', '.join(changed)} "
                "differ); begin with the same recipe on all hosts, in run folders that are new or of the same run"
            )


def find_exchange(recipe: Recipe, run: RunFolder, group: Group, device: torch.device) -> tuple[Found, str]:
    """What to put in the place of "auto", and why. Collective."""
    measured = measure(recipe, run, group, device)
    choice = choose(measured, recipe.train.exchange_may)
    found = {
        **SETTINGS[choice.exchange],
        "hosts": choice.hosts,
        "bucket_bytes": measured.bucket_bytes,
        "hierarchical": level_size(group.local_ranks()) > 1,
    }
    if choice.exchange == "local":
        found["replicas"] = min(measured.hosts, recipe.train.slots)
    return Found(found, dict(measured.alone)), choice.reason


def _read_found(run: RunFolder) -> Found | None:
    if not run.exchange.exists():
        return None
    values = dict(read_json(run.exchange))
    return Found(alone=values.pop(_ALONE, {}), exchange=values)


def _gather_alone(run: RunFolder, group: Group) -> dict[str, float]:
    """What `Found.alone` is, from any host that has it. Collective."""
    here = _read_found(run)
    return next((alone for alone in group.gather_json(here.alone if here else {}) if alone), {})


def count_hosts(group: Group) -> int:
    """Hosts of the group, from what launchers tell every worker. Collective."""
    return group.local_ranks().count(0)
