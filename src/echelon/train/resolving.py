"""What `train.exchange = "auto"` means here: measured where several hosts begin a run, and kept from then on."""

from __future__ import annotations

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
from echelon.train.exchange.choice import SETTINGS, choose
from echelon.train.exchange.hierarchical import level_size
from echelon.train.exchange.measure import measure


def resolve_exchange(run: RunFolder, group: Group, records: RecordWriter, device: torch.device) -> Recipe:
    """The run's recipe with an exchange; where it says "auto" and there are several hosts, found and written down.

    What was found once holds for the whole run, also where hosts keep folders of their own and one of them was cut off
    while the others found it. Collective.
    """
    recipe = load_recipe(run.recipe)
    is_auto = recipe.train.exchange == "auto"
    if count_hosts(group) == 1 or not group.agree(is_auto):
        return recipe
    kept = group.gather_json([found_in(recipe), _read_found(run)])
    # A recipe that is resolved has been trained with; a file may have been written just before everything stopped.
    found = next((each for each in chain(*zip(*kept, strict=True)) if each is not None), None)
    if found is None:
        found, reason = find_exchange(recipe, run, group, device)
        if group.is_first:
            records.write("event", message=reason)
    if is_auto:
        recipe = with_found(recipe, found)
        if group.keeps_folder:
            write_json(run.exchange, found)
            write_atomically(run.recipe, dump_recipe(recipe))
    group.barrier()
    return recipe


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


def find_exchange(
    recipe: Recipe, run: RunFolder, group: Group, device: torch.device
) -> tuple[dict[str, Any], str]:
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
    return found, choice.reason


def _read_found(run: RunFolder) -> Any:
    return read_json(run.exchange) if run.exchange.exists() else None


def count_hosts(group: Group) -> int:
    """Hosts of the group, from what launchers tell every worker. Collective."""
    return group.local_ranks().count(0)
