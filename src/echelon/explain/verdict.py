"""Whether models differ: runs that were scored on the same set, by a test of their outputs or of their seeds' scores.

Runs whose recipes differ only in the seed, and in what does not decide the result, are one group. Two groups of two
runs or more are compared by their scores; otherwise one run of each is, by its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Protocol

from echelon.explain.significance import LEVEL, Difference, agree, compare_seeds, seeds_needed
from echelon.explain.units import show_count
from echelon.monitor.scores import read_scores
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import RecipeDeclaration, find_task, less_is_better
from echelon.recipe.toml import flat_settings
from echelon.runfolder import RunFolder, read_file

_NOT_OF_THE_RESULT = re.compile(
    r"seed|name|version|train\.(workers|log_every)|restart\..*|track\..*"
    r"|checkpoint\.(every|failure_hours|keep|mirror)|data\.(download|mirrors|prepared).*"
)
"""Settings in which runs of a group may differ."""
_SEED_OF_A_NAME = re.compile(r"[-_. ]*(seed|s)?[-_. ]*$")
MOST_EXAMPLES, LONGEST_LINE = 100_000, 100_000
"""Of a set, and characters of an output: the tests take time and memory in proportion to both."""
_MOST_TIMES = 1000
"""How much larger a set may have to be to be recommended."""


class _TooLargeError(Exception):
    """A set is too large for the tests."""


class ComparedTask(Protocol):
    """What a task says about models that are compared."""

    def compare_outputs(
        self, recipe: Recipe, first: Sequence[str], second: Sequence[str], references: Sequence[str]
    ) -> list[Difference]:
        """Whether their scores differ; none if the task has no test for that."""
        ...


@dataclass(frozen=True)
class ScoredRun:
    """A run's scores on a set, and its outputs with what they should have been, if the task has any."""

    name: str
    recipe: Recipe
    metrics: Mapping[str, float]
    signature: str
    outputs: list[str]
    references: list[str]


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one recipe."""

    name: str
    runs: list[ScoredRun]

    def scores(self, metric: str) -> list[float]:
        return [run.metrics[metric] for run in self.runs]


@dataclass(frozen=True)
class Judgement:
    """A group beside the first one."""

    first: str
    second: str
    seeds: tuple[int, int]
    """Runs of each."""
    differences: list[Difference]
    """By metric, those that people ask for first in front."""
    deciding: int
    """How many of them must agree."""
    level: float
    """Below which p must be: 0.05, divided by the number of comparisons."""
    more_seeds: int | None = None
    """If nothing can be told yet from the seeds: about how many more of each would. None if too many."""

    @property
    def differs(self) -> bool:
        """Whether all deciding metrics say that the same side is better, each by more than chance."""
        return agree(self.differences[: self.deciding], self.level)


@dataclass(frozen=True)
class Verdict:
    """What can be said of some runs."""

    set_name: str
    examples: int
    signature: str
    metrics: Mapping[str, str]
    """Names for people."""
    groups: list[SeedGroup]
    judgements: list[Judgement]
    sentences: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.set_name,
            "examples": self.examples,
            "signature": self.signature,
            "groups": [
                {
                    "name": group.name,
                    "runs": [run.name for run in group.runs],
                    "scores": {metric: group.scores(metric) for metric in self.metrics},
                }
                for group in self.groups
            ],
            "comparisons": [
                {
                    "first": each.first,
                    "second": each.second,
                    "seeds": list(each.seeds),
                    "differs": each.differs,
                    "conclusion": _conclusion(each, self.metrics, self.examples),
                    "level": each.level,
                    "more_seeds": each.more_seeds,
                    "metrics": [
                        {**asdict(difference), "difference": difference.size}
                        for difference in each.differences
                    ],
                }
                for each in self.judgements
            ],
            "sentences": self.sentences,
        }


def has_outputs(run: RunFolder, set_name: str) -> bool:
    """Whether everything that a comparison needs was kept when the set was scored."""
    if read_scores(run, set_name) is None:
        return False
    try:
        is_without = run.outputs_file(set_name).stat().st_size == 0  # as of a user's own task
    except OSError:
        return False
    return is_without or run.references_file(set_name).is_file()


def read_scored(run: RunFolder, name: str, set_name: str) -> ScoredRun | None:
    """What was kept when a set was scored; None if it was not, or the files are damaged. May raise _TooLargeError."""
    scores = read_scores(run, set_name)
    if scores is None or not has_outputs(run, set_name):
        return None
    recipe = load_recipe(run.recipe)
    task: RecipeDeclaration = find_task(recipe.task)
    try:
        outputs = _lines(read_file(run.outputs_file(set_name)))
        references = _lines(read_file(run.references_file(set_name))) if outputs else []
    except (OSError, ValueError):
        return None
    metrics = {
        score.key: float(scores[score.key]) for score in task.scores if scores.get(score.key) is not None
    }
    signature = str(scores.get("signature", ""))
    if len(outputs) != len(references) or not metrics:
        return None
    return ScoredRun(name, recipe, metrics, signature, outputs, references)


def _lines(content: bytes) -> list[str]:
    """What a file of lines holds. Counted first: each takes memory, and an empty one takes a byte of the file."""
    if content.count(b"\n") > MOST_EXAMPLES:
        raise _TooLargeError
    lines = content.decode().split("\n")[:-1]
    if max(map(len, lines), default=0) > LONGEST_LINE:
        raise _TooLargeError
    return lines


def find_verdict(runs: Sequence[tuple[str, RunFolder]], set_name: str) -> Verdict | str:
    """The verdict on runs with their names; or why there is none."""
    try:
        found = [(name, read_scored(run, name, set_name)) for name, run in runs]
    except _TooLargeError:
        return (
            f"No verdict: the {set_name} set has more than {MOST_EXAMPLES:,} examples, or outputs of more than "
            f"{LONGEST_LINE:,} characters, which is too much for the tests."
        )
    if unscored := [name for name, scored in found if scored is None]:
        return f"No verdict: {', '.join(unscored)} {_was(unscored)} not scored on the {set_name} set."
    return judge([scored for _, scored in found if scored is not None], set_name)


def judge(runs: Sequence[ScoredRun], set_name: str) -> Verdict | str:
    """The first group beside each other one."""
    first = runs[0]
    task: RecipeDeclaration = find_task(first.recipe.task)
    if other := [run.name for run in runs if run.recipe.task != first.recipe.task]:
        return f"No verdict: {', '.join(other)} {_was(other)} trained for another task than {first.name}."
    if other := [run.name for run in runs if run.references != first.references]:
        return (
            f"No verdict: the {set_name} set of {', '.join(other)} is not that of {first.name}. `echelon evaluate` "
            "scores runs on any set, and --on NAME compares them on it."
        )
    groups, is_one_recipe = group_runs(runs)
    level = LEVEL / max(1, len(groups) - 1)
    judgements = [_compare(groups[0], group, level) for group in groups[1:]]
    metrics = {
        score.key: score.name for score in task.scores if all(score.key in run.metrics for run in runs)
    }
    return Verdict(
        set_name,
        len(first.references),
        first.signature,
        metrics,
        groups,
        judgements,
        _sentences(judgements, metrics, set_name, len(first.references), is_one_recipe=is_one_recipe),
    )


def group_runs(runs: Sequence[ScoredRun]) -> tuple[list[SeedGroup], bool]:
    """Runs by recipe, in order; each alone, and True, if all have the same one."""
    by_recipe: dict[tuple[tuple[str, str], ...], list[ScoredRun]] = {}
    for run in runs:
        settings = flat_settings(run.recipe).items()
        key = tuple(pair for pair in settings if not _NOT_OF_THE_RESULT.fullmatch(pair[0]))
        by_recipe.setdefault(key, []).append(run)
    if len(by_recipe) == 1:
        return [SeedGroup(run.name, [run]) for run in runs], True
    members = list(by_recipe.values())
    names = [_group_name([run.name for run in own]) for own in members]
    if len(set(names)) < len(names):
        names = [own[0].name for own in members]
    return [SeedGroup(name, own) for name, own in zip(names, members, strict=True)], False


def _group_name(names: Sequence[str]) -> str:
    """What the names begin with, without the word seed; the first if they have nothing in common."""
    if len(names) == 1:
        return names[0]
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return _SEED_OF_A_NAME.sub("", "".join(letters[0] for letters in shared)) or names[0]


def _compare(first: SeedGroup, second: SeedGroup, level: float) -> Judgement:
    seeds = len(first.runs), len(second.runs)
    if min(seeds) < 2:
        # One of each, of the same seed if there is such a pair.
        pairs = [(one, other) for one in first.runs for other in second.runs]
        one, other = next((pair for pair in pairs if pair[0].recipe.seed == pair[1].recipe.seed), pairs[0])
        task: ComparedTask = find_task(one.recipe.task)
        found = task.compare_outputs(one.recipe, one.outputs, other.outputs, one.references)
        return Judgement(one.name, other.name, (1, 1), found, len(found), level)
    metrics = [
        metric for metric in first.runs[0].metrics if all(metric in run.metrics for run in second.runs)
    ]
    found = [compare_seeds(metric, first.scores(metric), second.scores(metric)) for metric in metrics]
    needed = seeds_needed(first.scores(metrics[0]), second.scores(metrics[0]))
    more = None if needed is None else max(1, needed - min(seeds))
    return Judgement(first.name, second.name, seeds, found, 1, level, more)


def _sentences(
    judgements: Sequence[Judgement],
    metrics: Mapping[str, str],
    set_name: str,
    examples: int,
    *,
    is_one_recipe: bool,
) -> list[str]:
    found = []
    for each in judgements:
        if not each.differences:
            found.append(
                f"No verdict on {each.second}: outputs of this task have no test. Train two seeds or more of each."
            )
            continue
        found.append(_conclusion(each, metrics, examples))
        found += [_measured(each, difference, metrics) for difference in each.differences]
    if len(judgements) > 1:
        found.append(
            f"p is held against {judgements[0].level:.2g}, because {len(judgements)} comparisons find something by "
            "chance more easily than one."
        )
    if is_one_recipe:
        found.append("The recipes are the same but for the seed: this is what a seed does.")
    elif any(max(each.seeds) == 1 and each.differences for each in judgements):
        found.append(
            "This compares models, not recipes: another seed may reverse the order. To compare recipes, give at least "
            "two runs of each, with different seeds."
        )
    return found


def _conclusion(each: Judgement, metrics: Mapping[str, str], examples: int) -> str:
    pair = f"{each.first} and {each.second}"
    if each.differs:
        main = each.differences[0]
        better = each.second if (main.size > 0) != less_is_better(main.metric) else each.first
        names = [
            metrics.get(difference.metric, difference.metric)
            for difference in each.differences[: each.deciding]
        ]
        return f"{pair} differ: {better} is better by {' and '.join(names)}."
    if all(difference.low == difference.high == 0 for difference in each.differences):
        return f"{pair} score the same."
    unclear = f"Can't tell yet whether {pair} differ"
    if max(each.seeds) > 1:
        if each.more_seeds is None:
            return f"{unclear}, and not even 100 seeds of each would show so small a difference."
        return (
            f"{unclear}; about {each.more_seeds} more seed{'s' * (each.more_seeds != 1)} of each would tell."
        )
    needed = [difference.times_more_examples() for difference in each.differences]
    times = max((_MOST_TIMES + 1 if each is None else each for each in needed), default=1.0)
    if times > _MOST_TIMES:
        return f"{unclear}: no set of a usual size would show so small a difference."
    if times < 1.5:
        return f"{unclear}; a set somewhat larger would tell."
    return f"{unclear}; a set of about {show_count(float(f'{times * examples:.2g}'))} examples would tell."


def _measured(each: Judgement, difference: Difference, metrics: Mapping[str, str]) -> str:
    name = metrics.get(difference.metric, difference.metric)
    more = "more" if difference.size >= 0 else "less"
    first, second = each.seeds
    counts = f"{second} seeds of each" if first == second else f"{second} seeds against {first}"
    seeds = "" if max(each.seeds) == 1 else f" on average over {counts}"
    p = ", ".join(f"{test} p = {value:.2g}" for test, value in difference.p.items())
    interval = f"95% interval of the difference {difference.low:+.2f} to {difference.high:+.2f}"
    if f"{difference.size:+.2f}" in ("+0.00", "-0.00"):
        equal = f"{each.first} and {each.second} have the same {name}{seeds}, {difference.second:.2f}"
        return f"{equal}: {interval}; {p}."
    return (
        f"{each.second} has {abs(difference.size):.2f} {name} {more} than {each.first}{seeds}: "
        f"{difference.second:.2f} against {difference.first:.2f}, {interval}; {p}."
    )


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
