"""`train.exchange = "auto"`: found when several hosts begin a run, and kept from then on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from echelon.monitor.records import RecordWriter
from echelon.recipe.compatibility import found_in, with_found
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.workers import level_size
from echelon.resolve.exchange_choice import SETTINGS, Measured, choose, fastest_of
from echelon.resolve.peers import Peers, count_hosts
from echelon.resolve.run_recipe import write_recipe
from echelon.runfolder import RunFolder, read_json, write_json

_ALONE = "alone_seconds"


@dataclass(frozen=True)
class ResolvedExchange:
    """What exchange.json holds."""

    exchange: dict[str, Any]
    """The exchange and its settings, in place of "auto"."""
    alone: dict[str, float]
    """How fast the hosts were: seconds of a step on each alone, by its name."""

    def to_json(self) -> dict[str, Any]:
        return self.exchange | ({_ALONE: self.alone} if self.alone else {})


def resolve_exchange(
    run: RunFolder, peers: Peers, records: RecordWriter, measure: Callable[[Recipe], Measured]
) -> Recipe:
    """The run's recipe with an exchange: if it says "auto" and there are several hosts, found and written down.

    What was found once holds for the whole run, even if hosts keep folders of their own and one of them was cut off
    while the others found it. `measure` is collective, as this is.
    """
    recipe = load_recipe(run.recipe)
    is_auto = recipe.train.exchange == "auto"
    if count_hosts(peers) == 1 or not peers.agree(is_auto):
        return recipe
    here = _read_found(run)
    kept = peers.gather_json([found_in(recipe), here.exchange if here else None])
    # A recipe that is resolved has been trained with; a file may have been written just before everything stopped.
    exchange = next((each for each in chain(*zip(*kept, strict=True)) if each is not None), None)
    found = None if exchange is None else ResolvedExchange(exchange, _gather_alone(run, peers))
    if found is None:
        found, reason = _find_exchange(recipe, peers, measure)
        if peers.is_first:
            records.write("event", message=reason)
    if is_auto:
        recipe = with_found(recipe, found.exchange)
        if peers.keeps_folder:
            write_json(run.exchange, found.to_json())
            write_recipe(run, recipe)
    peers.barrier()
    return recipe


def choose_hosts(run: RunFolder, peers: Peers, count: int | None) -> list[int]:
    """Which hosts train, if it is only `count` of them: the fastest that were measured when "auto" was found, otherwise
    the first; counted in the order of ranks. Collective."""
    ranks = [rank for rank, local_rank in enumerate(peers.local_ranks()) if local_rank == 0]
    if count is None or count >= len(ranks):
        return list(range(len(ranks)))
    names = peers.gather_json(socket.gethostname())
    hosts, alone = [names[rank] for rank in ranks], _gather_alone(run, peers)
    if not alone or len(set(hosts)) < len(hosts):
        return list(range(count))
    return sorted(hosts.index(name) for name in fastest_of(hosts, alone, count))


def _find_exchange(
    recipe: Recipe, peers: Peers, measure: Callable[[Recipe], Measured]
) -> tuple[ResolvedExchange, str]:
    """What to put in the place of "auto", and why. Collective."""
    measured = measure(recipe)
    choice = choose(measured, recipe.train.exchange_may)
    found = {
        **SETTINGS[choice.exchange],
        "hosts": choice.hosts,
        "bucket_bytes": measured.bucket_bytes,
        "hierarchical": level_size(peers.local_ranks()) > 1,
    }
    if choice.exchange == "local":
        found["replicas"] = min(measured.hosts, recipe.train.slots)
    return ResolvedExchange(found, dict(measured.alone)), choice.reason


def _read_found(run: RunFolder) -> ResolvedExchange | None:
    if not run.exchange.exists():
        return None
    values = dict(read_json(run.exchange))
    return ResolvedExchange(alone=values.pop(_ALONE, {}), exchange=values)


def _gather_alone(run: RunFolder, peers: Peers) -> dict[str, float]:
    """`ResolvedExchange.alone` of any host that has it. Collective."""
    here = _read_found(run)
    return next((alone for alone in peers.gather_json(here.alone if here else {}) if alone), {})
