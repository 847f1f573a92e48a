"""What the shell offers when Tab is pressed: recipes, runs and the recipe's keys."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from echelon.runfolder import RUNS, RunFolder, list_runs

_BEGINNING = 4000
"""Letters of a file that are looked at."""


def leave_no_space_after_keys() -> None:
    """Have bash put no space behind `KEY=`: Typer's script, which `--install-completion` writes, always does."""
    scripts = importlib.import_module("typer._completion_shared")._completion_scripts
    no_space = "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
    scripts["bash"] = scripts["bash"].replace("    return 0\n", f"{no_space}    return 0\n")


def complete_recipe(incomplete: str) -> list[str]:
    """Recipe files, and folders that may hold some."""
    folder, _, _ = incomplete.rpartition("/")
    places = [Path(f"{folder}/" if folder or incomplete.startswith("/") else ".")]
    places += [Path("recipes")] if not folder else []
    found = [str(path) for place in places for path in sorted(place.glob("*.toml")) if _is_recipe(path)]
    found += [f"{path}/" for path in sorted(places[0].glob("*/")) if _may_hold_recipes(path)]
    return [path for path in dict.fromkeys(found) if path.startswith(incomplete)]


def _is_recipe(path: Path) -> bool:
    """Whether a TOML file begins as a recipe does: `version` stands before the first table."""
    try:
        text = "\n" + path.read_text(encoding="utf-8", errors="replace")[:_BEGINNING]
    except OSError:
        return False
    return re.search(r"^version\s*=", text.partition("\n[")[0], re.MULTILINE) is not None


def _may_hold_recipes(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".")
    return not is_hidden and any(any(folder.glob(pattern)) for pattern in ("*.toml", "*/*.toml"))


def complete_run(incomplete: str) -> list[str]:
    """The names of the runs in runs/; once a path is begun, the runs below it."""
    folder, slash, _ = incomplete.rpartition("/")
    if not slash:
        return [run.name for run in list_runs(RUNS) if run.name.startswith(incomplete)]
    place = Path(folder or "/")
    found = [str(run.path) for run in list_runs(place)]
    if not RunFolder(place).recipe.is_file():
        found += [f"{path}/" for path in sorted(place.glob("*/")) if str(path) not in found]
    return [path for path in found if path.startswith(incomplete)]


def complete_recipe_or_run(incomplete: str) -> list[str]:
    return [*complete_recipe(incomplete), *complete_run(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """The keys of all recipes, dotted, each with its equals sign."""
    from echelon.recipe.keys import recipe_keys

    return [f"{key}=" for key in recipe_keys() if key.startswith(incomplete)]
