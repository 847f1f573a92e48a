"""From a TOML file and `--set` options to a checked Recipe; every problem is reported at once."""

from __future__ import annotations

import contextlib
import copy
import difflib
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from pydantic_core import ErrorDetails

from echelon.addresses import redact_text
from echelon.errors import Problem, RecipeError, UserError
from echelon.recipe.checks import find_problems, secret_problems
from echelon.recipe.keys import keys_called, sections_in
from echelon.recipe.own_code import allow, is_import_path, paths_in
from echelon.recipe.schema import SCHEMA_VERSION, ClassificationRecipe, Recipe, TranslationRecipe
from echelon.recipe.section import Section
from echelon.recipe.shipped import suggest_shipped
from echelon.recipe.tasks import DEFAULT_TASK, TASKS, RecipeDeclaration, find_task, recipe_type, task_name
from echelon.runfolder import RunFolder, parse_toml, read_file
from echelon.validation import plain_message

R = TypeVar("R", bound=Recipe)

_DEEPEST = 50
"""Tables and lists in each other; no recipe has ten."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path`, changed by `overrides` such as `train.steps=100`.

    Raises RecipeError with every problem found, UserError if the file cannot be read.
    """
    table = read_toml(path)
    if problems := list(
        secret_problems(table)
    ):  # an override may hide them, unless the file itself is copied
        raise RecipeError(str(path), problems)
    for override in overrides:
        apply_override(table, override)
    recipe = check_recipe(table, where=str(path))
    task: RecipeDeclaration = find_task(recipe.task)
    task.refuse_idle(recipe, overrides)
    return recipe


def allow_named(path: Path) -> None:
    """Let the user's own code be imported that a recipe file names; not what the recipe in a run's folder does, which
    may be anybody's. Errors in the file are reported when it is read."""
    is_of_a_run = (
        path.name == RunFolder(path.parent).recipe.name and RunFolder(path.parent).checkpoints.is_dir()
    )
    if path.is_file() and not is_of_a_run:
        with contextlib.suppress(UserError):
            allow(paths_in(read_toml(path)))


def change_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Another recipe, changed by `overrides` such as `train.steps=100`; it is checked even if there are none."""
    table = recipe.model_dump(exclude_none=True)
    for override in overrides:
        apply_override(table, override)
    return check_recipe(table, where=f"recipe {recipe.name}")


def load_recipe_of(kind: type[R], path: Path, overrides: Sequence[str] = ()) -> R:
    """Load a recipe of one task; UserError if it is another's."""
    recipe = load_recipe(path, overrides)
    if not isinstance(recipe, kind):
        raise UserError(f"{path}: its task is {recipe.task}; this needs one of {task_name(kind)}")
    return recipe


def load_translation_recipe(path: Path, overrides: Sequence[str] = ()) -> TranslationRecipe:
    """A recipe of translation."""
    return load_recipe_of(TranslationRecipe, path, overrides)


def load_classification_recipe(path: Path) -> ClassificationRecipe:
    """A recipe of image classification."""
    return load_recipe_of(ClassificationRecipe, path)


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML file's top table."""
    try:
        text = read_file(path).decode("utf-8-sig")  # editors on Windows put a byte order mark in front
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such recipe file{suggest_shipped(path)}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read as a recipe: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a recipe: not UTF-8 text ({error.reason})") from None
    try:
        table = parse_toml(text)
        _require_plain(table)
    except ValueError as error:  # also numbers of thousands of digits
        raise UserError(f"{path} is not a recipe: not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is not a recipe: nested too deeply") from None
    return table


def _require_plain(table: dict[str, Any]) -> None:
    """RecursionError if tables, also of dotted keys, are nested deeply; ValueError for whole numbers beyond TOML's."""
    waiting: list[tuple[Any, int]] = [(table, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise RecursionError
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("a whole number has more than 64 bits")
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            waiting += [(entry, depth + 1) for entry in inner]


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one key of `table` from `a.b.c=value`; the value is TOML, or else taken as a string.

    With nothing after the `=`, the key is taken out, as if the file did not have it.
    """
    key, equals, text = override.partition("=")
    override = redact_text(override)  # from here on only shown
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"--set {override}: write it as KEY=VALUE, e.g. --set train.steps=100")
    place: Any = table
    for part in parts[:-1]:
        place = _step_into(place, part, override)
    last = parts[-1]
    if not isinstance(place, list | dict):
        raise UserError(f"--set {override}: {'.'.join(parts[:-1])} is a value, it has no keys")
    index: Any = _list_index(place, last, override) if isinstance(place, list) else last
    if text.strip():
        place[index] = parse_value(text)
    elif isinstance(place, list) or index in place:
        del place[index]


def _step_into(place: Any, part: str, override: str) -> Any:
    if isinstance(place, list):
        return place[_list_index(place, part, override)]
    if isinstance(place, dict):
        return place.setdefault(part, {})
    raise UserError(f"--set {override}: {part} is not inside a table")


def _list_index(place: list[Any], part: str, override: str) -> int:
    if not part.isdecimal() or int(part) >= len(place):
        entries = f"the entries are 0 to {len(place) - 1}" if place else "it is empty"
        raise UserError(f"--set {override}: the list has no entry {part}; {entries}")
    return int(part)


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not one (so that strings need no quotes)."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def check_recipe(table: dict[str, Any], where: str) -> Recipe:
    """The table as a Recipe; raises RecipeError with every problem, `where` naming the file."""
    problems = [*secret_problems(table), *_version_problems(table), *_task_problems(table)]
    if problems:
        raise RecipeError(where, problems)
    try:
        recipe = _kind_of(table).model_validate(table)
    except pydantic.ValidationError as error:
        problems = [_as_problem(details, _kind_of(table)) for details in error.errors()]
        raise RecipeError(where, [*problems, *_problems_of_the_rest(table, error)]) from None
    problems = find_problems(recipe)
    if problems:
        raise RecipeError(where, problems)
    return recipe


def _kind_of(table: dict[str, Any]) -> type[Recipe]:
    return recipe_type(table.get("task", DEFAULT_TASK))


def _problems_of_the_rest(table: dict[str, Any], error: pydantic.ValidationError) -> list[Problem]:
    """Problems between keys that are valid one by one, if the recipe is whole without the invalid ones."""
    rest = copy.deepcopy(table)
    wrong = [_walk(details["loc"], _kind_of(table))[0] for details in error.errors()]
    for keys in wrong:
        place: Any = rest
        for key in keys[:-1]:
            place = place[int(key)] if isinstance(place, list) else place.get(key, {})
        if isinstance(place, dict):
            place.pop(keys[-1], None)
    try:
        found = find_problems(_kind_of(rest).model_validate(rest))
    except pydantic.ValidationError:
        return []
    # What was taken out counts as not given: a problem of its own section may be due to that.
    sections = {keys[0] for keys in wrong}
    return [problem for problem in found if problem.key.split(".")[0] not in sections]


def _version_problems(table: dict[str, Any]) -> list[Problem]:
    version = table.get("version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return [
            Problem(
                "version", f"{version} is newer than this Echelon understands ({SCHEMA_VERSION}); upgrade it"
            )
        ]
    return []


def _task_problems(table: dict[str, Any]) -> list[Problem]:
    """Which task it is decides which keys there are, so that comes first."""
    task = table.get("task", DEFAULT_TASK)
    if (isinstance(task, str) and task in TASKS) or is_import_path(task):
        return []
    allowed = f"{' or '.join(map(repr, TASKS))}, or your own by its import path, package.module:name"
    return [Problem("task", f"{task!r} is not allowed; use {allowed}{_near(str(task), list(TASKS))}")]


def _as_problem(details: ErrorDetails, recipe: type[Section]) -> Problem:
    keys, section = _walk(details["loc"], recipe)
    key = ".".join(keys)
    given, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return Problem(key, f"there is no such key{_suggestion(keys, section)}")
        case "missing":
            return Problem(key, f"is missing; {_meaning(keys[-1], section)}")
        case "union_tag_not_found":
            return Problem(f"{key}.kind", f"is missing; use one of {', '.join(_variants(recipe, keys[-1]))}")
        case "union_tag_invalid":
            tag, expected = str(context["tag"]), context["expected_tags"].replace("'", "")
            return Problem(
                f"{key}.kind",
                f"{tag!r} is not known; use one of {expected}{_near(tag, expected.split(', '))}",
            )
        case "literal_error":
            return Problem(
                key, f"{given!r} is not allowed; use {context['expected']}{_near_literal(given, context)}"
            )
        case "string_pattern_mismatch":
            return Problem(
                key,
                f"{given!r} is not allowed; use letters, digits, '.', '_' and '-', a letter or digit first",
            )
        case kind:
            must_be = f"must be {_TYPE_WORDS[kind]}" if kind in _TYPE_WORDS else plain_message(details)
            it = "it " if must_be.startswith("must ") else ""
            return Problem(key, f"{_shortened(given)} is not allowed: {it}{must_be}")


def _walk(location: tuple[int | str, ...], recipe: type[Section]) -> tuple[list[str], type[Section] | None]:
    """The user's dotted path, without pydantic's union tags, and the section in which its last key stands."""
    keys: list[str] = []
    holder: type[Section] | None = None
    inside: type[Section] | None = recipe
    variants: dict[str, type[Section]] = {}
    for part in location:
        if isinstance(part, int):
            keys.append(str(part))
        elif part in variants:
            inside, variants = variants[part], {}
        else:
            keys.append(part)
            holder = inside
            inside, variants = _section_of(holder, part), _variants(holder, part)
    return keys, holder


def _sections(holder: type[Section] | None, key: str) -> list[type[Section]]:
    if holder is None or key not in holder.model_fields:
        return []
    return sections_in(holder.model_fields[key].annotation)


def _section_of(holder: type[Section] | None, key: str) -> type[Section] | None:
    sections = _sections(holder, key)
    return sections[0] if len(sections) == 1 else None


def _variants(holder: type[Section] | None, key: str) -> dict[str, type[Section]]:
    """Tag to section, for a key that is a union told apart by `kind`."""
    sections = _sections(holder, key)
    if len(sections) < 2:
        return {}
    return {typing.get_args(section.model_fields["kind"].annotation)[0]: section for section in sections}


def _near(word: str, candidates: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _near_literal(given: Any, context: dict[str, Any]) -> str:
    allowed = [word.strip(" '") for word in context["expected"].replace(" or ", ",").split(",")]
    return _near(given, allowed) if isinstance(given, str) else ""


def _suggestion(keys: Sequence[str], section: type[Section] | None) -> str:
    """What is meant by a key that does not exist: one nearby in its table, or one of that name in another table."""
    names = list(section.model_fields) if section is not None else []
    usual = _USUAL_NAMES.get(keys[-1].lower())
    if usual in names:
        return f"; did you mean {usual!r}?"
    if usual and (known := keys_called(usual)):
        return f"; did you mean {' or '.join(known)}?"
    if near := _near(keys[-1], names):
        return near
    if elsewhere := [key for key in keys_called(keys[-1]) if key != ".".join(keys)]:
        return f"; did you mean {' or '.join(elsewhere)}?"
    return f"; the keys here are {', '.join(names)}" if names else ""


_USUAL_NAMES = {
    "lr": "learning_rate",
    "batch_size": "batch_tokens",
    "wd": "weight_decay",
    "warmup": "warmup_steps",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "max_steps": "steps",
    "num_steps": "steps",
    "optimizer": "optimiser",
}
"""What other systems call our keys."""


def _meaning(key: str, section: type[Section] | None) -> str:
    field = section.model_fields.get(key) if section else None
    text = (field.description or "") if field else ""
    return f"it is needed: {' '.join(text.split())}"


def _shortened(given: Any) -> str:
    """A value as the user wrote it, near enough."""
    text = str(given).lower() if isinstance(given, bool) else repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."


_TYPE_WORDS = {
    "model_type": "a table",
    "model_attributes_type": "a table",
    "list_type": "a list",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
}
"""Pydantic's errors about types, in the words of recipes."""
