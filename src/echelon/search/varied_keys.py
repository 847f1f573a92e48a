"""What a search varies: keys of the recipe, each with a list of values or a range of numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from echelon.errors import Problem, RecipeError, UserError
from echelon.recipe.keys import keys_called, recipe_keys
from echelon.recipe.loading import load_recipe, parse_value
from echelon.recipe.schema import Recipe

FIXED_KEYS = (
    "version",
    "task",
    "name",
    "train.steps",
    "train.epochs",
    "train.stop_at",
    "train.workers",
    "evaluate.every",
    "checkpoint",
    "restart",
    "track",
)
"""Keys that all trials have in common: what they are compared at, and what changes nothing that is learnt."""
_NUMBER = r"[+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::\w+)*)")
_LIKE_A_RANGE = re.compile(r"[+-]?[\d.]+\S*\.\.|\S*\.\.[+-]?\d")
_EXAMPLE = "write it as KEY=A,B,C or KEY=LOW..HIGH, e.g. model.dropout=0.1,0.2 or schedule.learning_rate=1e-4..1e-2:log"
_DIGITS = 4
"""Significant digits of a number that is taken from a range: more would tell nobody anything."""


@dataclass(frozen=True)
class ListedValues:
    """A key and the values that it may have."""

    key: str
    values: tuple[Any, ...]

    @property
    def extremes(self) -> tuple[Any, ...]:
        """What the recipe must allow before anything is trained."""
        return self.values

    def has(self, value: Any) -> bool:
        """Whether a value from a file is one of these."""
        return any(type(value) is type(own) and value == own for own in self.values)

    def __str__(self) -> str:
        return f"{self.key}={','.join(map(format_value, self.values))}"


@dataclass(frozen=True)
class ValueRange:
    """A key and the range of its values, both ends included."""

    key: str
    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False

    @property
    def extremes(self) -> tuple[Any, ...]:
        """What the recipe must allow before anything is trained."""
        return (self.low, self.high)

    def has(self, value: Any) -> bool:
        """Whether a value from a file is a number of this range."""
        is_right = type(value) is int if self.is_whole else type(value) in (int, float)
        return is_right and self.low <= value <= self.high

    def rounded(self, value: float) -> Any:
        """A value as trials have it: short, and not outside."""
        if self.is_whole:
            return int(value)
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.key}={self.low:g}..{self.high:g}{':log' if self.is_log else ''}"


VariedKey = ListedValues | ValueRange
Values = dict[str, Any]
"""By key, what one trial varies."""


def load_space(path: Path, overrides: Sequence[str], texts: Sequence[str]) -> tuple[Recipe, list[VariedKey]]:
    """The recipe, and what `--vary` says; RecipeError with every problem of both."""
    recipe = load_recipe(path, overrides)
    varied, problems = list[VariedKey](), list[Problem]()
    for text in texts:
        try:
            varied.append(parse_varied(text))
        except UserError as error:
            problems.append(Problem("", str(error)))
    keys = [each.key for each in varied]
    problems += [Problem(key, "is varied twice; give all its values at once") for key in _repeated(keys)]
    for number, each in enumerate(varied):
        found = [
            problem for value in each.extremes for problem in _problems(path, overrides, each.key, value)
        ]
        problems += _fixed_problems(each.key) or dict.fromkeys(found)
        if not found:
            varied[number] = _with_kind(each, path, overrides)
    if not texts:
        problems.append(Problem("", f"nothing is varied; {_EXAMPLE}"))
    if problems:
        raise RecipeError("--vary", problems)
    return recipe, varied


def parse_varied(text: str) -> VariedKey:
    """`KEY=A,B,C`, `KEY=LOW..HIGH`, `KEY=LOW..HIGH:log`, or `KEY=LOW..HIGH:5` for five values evenly apart."""
    key, equals, given = (part.strip() for part in text.partition("="))
    if not equals or not given or not all(key.split(".")):
        raise UserError(f"{text}: {_EXAMPLE}")
    if found := _RANGE.fullmatch(given):
        return _parse_range(text, key, *found.groups())
    if _LIKE_A_RANGE.match(given):
        raise UserError(f"{text}: this is no range; {_EXAMPLE}")
    values = tuple(_parse_list(given))
    if any(isinstance(value, dict) for value in values):
        raise UserError(f"{text}: a table cannot be varied; vary its keys")
    if len(values) == 1:
        raise UserError(f"{text}: one value varies nothing; --set gives it to all trials")
    if repeated := _repeated([format_value(value) for value in values]):
        raise UserError(f"{text}: {repeated[0]} is there twice")
    return ListedValues(key, values)


def _parse_range(text: str, key: str, low_text: str, high_text: str, flags: str) -> VariedKey:
    low, high = _parse_number(low_text), _parse_number(high_text)
    words = [word for word in flags.split(":") if word]
    points = [int(word) for word in words if word.isdecimal()]
    if unknown := [word for word in words if word != "log" and not word.isdecimal()]:
        raise UserError(
            f"{text}: {unknown[0]!r} is not known; after a range there may be :log and a number of values"
        )
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"{text}: the range has no end; use finite numbers")
    if low > high:
        raise UserError(f"{text}: the range is reversed; write {high_text}..{low_text}{flags}")
    if low == high:
        raise UserError(f"{text}: one value varies nothing; --set gives it to all trials")
    is_log = "log" in words
    if is_log and low <= 0:
        raise UserError(f"{text}: a logarithmic range begins above 0")
    if len(words) != len(set(words)) or len(points) > 1 or any(count < 2 for count in points):
        raise UserError(
            f"{text}: after a range there may be :log and a number of values, at least 2, once each"
        )
    is_whole = isinstance(low, int) and isinstance(high, int)
    span = ValueRange(key, low, high, is_log, is_whole)
    return span if not points else ListedValues(key, _points_of(span, points[0]))


def _points_of(span: ValueRange, count: int) -> tuple[Any, ...]:
    """Values evenly apart, both ends among them."""
    shares = [number / (count - 1) for number in range(count)]
    if span.is_log:
        found = [span.low * (span.high / span.low) ** share for share in shares]
    else:
        found = [span.low + (span.high - span.low) * share for share in shares]
    values = [span.rounded(round(value) if span.is_whole else value) for value in found]
    return tuple(dict.fromkeys([span.low, *values[1:-1], span.high]))


def _parse_number(text: str) -> float:
    return int(text) if re.fullmatch(r"[+-]?[\d_]+", text) else float(text)


def _parse_list(text: str) -> list[Any]:
    """The values between commas, each TOML or a plain word."""
    whole = parse_value(f"[{text}]")
    return whole if isinstance(whole, list) else [parse_value(part.strip()) for part in text.split(",")]


def _repeated(words: Sequence[str]) -> list[str]:
    return [word for number, word in enumerate(words) if words.index(word) < number]


def _fixed_problems(key: str) -> list[Problem]:
    if any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED_KEYS):
        return [Problem(key, "is the same for all trials; give it with --set")]
    return []


def _problems(path: Path, overrides: Sequence[str], key: str, value: Any) -> list[Problem]:
    """What is wrong with a recipe that has this value."""
    try:
        load_recipe(path, [*overrides, *as_settings({key: value})])
    except RecipeError as error:
        return _about_key(key, error.problems)
    except UserError as error:
        return [Problem(key, str(error).removeprefix(f"--set {key}={format_value(value)}: "))]
    return []


def _about_key(key: str, found: list[Problem]) -> list[Problem]:
    """The same problems, unless the key itself made them: it has begun a table that the recipe does not have."""
    if key in recipe_keys() or any(problem.key == key for problem in found):
        return found
    meant = keys_called(key.rpartition(".")[2])
    return [Problem(key, f"there is no such key; did you mean {' or '.join(meant)}?")] if meant else found


def _with_kind(varied: VariedKey, path: Path, overrides: Sequence[str]) -> VariedKey:
    """The range with fractions between whole ends, unless the recipe takes whole numbers only."""
    if isinstance(varied, ListedValues) or not varied.is_whole:
        return varied
    if _problems(path, overrides, varied.key, varied.low + 0.5):
        return varied
    return ValueRange(varied.key, float(varied.low), float(varied.high), varied.is_log)


def as_settings(values: Values) -> list[str]:
    """Values as `--set` takes them."""
    return [f"{key}={format_value(value)}" for key, value in values.items()]


def format_value(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def show_values(values: Values) -> str:
    """`learning_rate 0.001, dropout 0.2`: by the keys' last words, unless two keys have the same."""
    names = short_names(list(values))
    return ", ".join(f"{names[key]} {show_value(value)}" for key, value in values.items())


def show_value(value: Any) -> str:
    """A value for a table: text without quotes."""
    return value if isinstance(value, str) else format_value(value)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """By key, its last word; the whole key if others end in the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: key if last.count(word) > 1 else word for key, word in zip(keys, last, strict=True)}


def is_setting_of(varied: Sequence[VariedKey], values: Values) -> bool:
    """Whether values from a file are a setting of this space, and nothing else."""
    return values.keys() == {each.key for each in varied} and all(
        each.has(values[each.key]) for each in varied
    )


def all_combinations(varied: Sequence[VariedKey]) -> Iterator[Values] | None:
    """Every setting, if all keys have lists of values; None if there are ranges."""
    if not all(isinstance(each, ListedValues) for each in varied):
        return None
    keys = [each.key for each in varied]
    lists = [each.values for each in varied if isinstance(each, ListedValues)]
    return (dict(zip(keys, chosen, strict=True)) for chosen in itertools.product(*lists))


def count_combinations(varied: Sequence[VariedKey]) -> int | None:
    """How many settings there are; None if there are ranges."""
    sizes = [len(each.values) for each in varied if isinstance(each, ListedValues)]
    return math.prod(sizes) if len(sizes) == len(varied) else None
