"""A run's recipe.toml: the recipe that its workers train, with what "auto" was found to be."""

from __future__ import annotations

from echelon.errors import UserError
from echelon.recipe.compatibility import find_changes_in_tables
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_recipe
from echelon.resolve.peers import Peers
from echelon.runfolder import RunFolder, write_atomically


def write_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Make this the run's recipe. Nothing else writes that file."""
    write_atomically(run.recipe, dump_recipe(recipe))


def require_one_recipe(recipe: Recipe, peers: Peers) -> None:
    """UserError in every worker if one would learn something else than the first: hosts may keep folders of their own.
    Collective."""
    own = recipe.model_dump(mode="json")
    changes = find_changes_in_tables(peers.broadcast_json(own), own)
    for rank, changed in enumerate(peers.gather_json(changes)):
        if changed:
            raise UserError(
                f"the run folder of worker {rank} has another recipe than that of worker 0 ({', '.join(changed)} "
                "differ); begin with the same recipe on all hosts, in run folders that are new or of the same run"
            )
