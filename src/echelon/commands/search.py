"""`search`: trainings with different settings, of which the promising ones continue, and the best settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.prepare import find_data, prepare_data
from echelon.commands.report import write_report
from echelon.commands.training import local_recipe
from echelon.commands.trial_process import TrialTrainer
from echelon.console import output_width, tell
from echelon.data.batch_plan import AnyPrepared, steps_per_epoch
from echelon.errors import DataError, RecipeError, RunError, UserError
from echelon.explain.page import study_page
from echelon.explain.tables import render_table
from echelon.explain.units import show_share
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.monitor.records import RecordWriter
from echelon.recipe.length import length_in_steps
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import less_is_better
from echelon.recipe.toml import dump_table
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RUNS, write_atomically
from echelon.search.proposals import Sampler, describe_space, importance, load_optuna, propose
from echelon.search.rungs import Halving, best_trial, default_rungs, explain_trial, fit_rungs, plan_trial
from echelon.search.search_charts import search_charts
from echelon.search.search_folder import (
    SearchFolder,
    SearchRules,
    changes_of,
    recipe_table,
    refuse_other_search,
)
from echelon.search.search_loop import SearchLoop
from echelon.search.trials import Trial
from echelon.search.varied_keys import (
    Values,
    VariedKey,
    as_settings,
    count_combinations,
    load_space,
    short_names,
    show_value,
    show_values,
)

_TRIALS = 16
_FACTOR = 4


@dataclass(frozen=True)
class SearchOptions:
    """What `echelon search` was asked for."""

    recipe: Path
    vary: Sequence[str]
    trials: int | None = None
    sampler: Sampler = "tpe"
    parallel: int = 1
    factor: int | None = None
    rungs: int | None = None
    folder: Path | None = None
    to: Path | None = None
    workers: WorkerRange | None = None
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Prospect:
    """A search whose command is right: what it will do."""

    options: SearchOptions
    path: Path
    """The recipe's, on this machine."""
    recipe: Recipe
    varied: list[VariedKey]
    folder: SearchFolder
    rules: SearchRules
    halving: Halving

    @property
    def metric(self) -> str:
        return self.recipe.checkpoint.best


@dataclass(frozen=True)
class SearchResult:
    """What a search has found, as far as it has come."""

    folder: Path
    metric: str
    is_finished: bool
    varied: list[VariedKey]
    trials: list[Trial]
    halving: Halving
    best: Trial | None
    importance: dict[str, float] | None
    files: list[Path]

    @property
    def steps(self) -> int:
        """Steps that were trained, as far as they were compared."""
        return sum(trial.step for trial in self.trials)

    @property
    def all_steps(self) -> int:
        """Steps of all these trials, had each been trained to the end."""
        return sum(trial.rungs[-1] for trial in self.trials)

    def to_json(self) -> dict[str, Any]:
        return {
            "search": str(self.folder),
            "finished": self.is_finished,
            "metric": self.metric,
            "best": None if self.best is None else self._trial_json(self.best),
            "trials": [self._trial_json(trial) for trial in self.trials],
            "steps": self.steps,
            "all_steps": self.all_steps,
            "importance": self.importance,
            "files": [str(file) for file in self.files],
        }

    def _trial_json(self, trial: Trial) -> dict[str, Any]:
        return {
            "trial": trial.number,
            "run": str(self.folder / trial.name),
            "settings": trial.values,
            "step": trial.step,
            "value": trial.value,
            "results": [vars(result) for _, result in sorted(trial.results.items())],
            "outcome": explain_trial(trial, self.trials, self.halving),
        }

    def rows(self) -> list[list[str]]:
        """The heading, then a row for each trial, the furthest first, then the best."""
        names = short_names([each.key for each in self.varied])
        heading = ["trial", *names.values(), "steps", self.metric, "outcome"]
        sign = 1 if self.halving.lower_is_better else -1
        ordered = sorted(
            self.trials,
            key=lambda t: (t.failure is not None, -t.furthest, sign * (t.value or 0.0), t.number),
        )
        return [heading, *map(self._row, ordered)]

    def _row(self, trial: Trial) -> list[str]:
        star = " *" if trial is self.best else ""
        values = [show_value(trial.values[each.key]) for each in self.varied]
        value = "-" if trial.value is None else f"{trial.value:.6g}"
        outcome = explain_trial(trial, self.trials, self.halving)
        return [f"{trial.name}{star}", *values, f"{trial.step:,}", value, outcome]

    def sentences(self) -> list[str]:
        """The answer first."""
        if self.best is None or self.best.value is None:
            return ["No trial has a result yet." if not self.is_finished else "No trial has a result."]
        result = f"{self.metric} {self.best.value:.6g} at step {self.best.step:,}"
        share = self.steps / self.all_steps
        found = [
            f"The best is {self.best.name}, {result}: {show_values(self.best.values)}.",
            f"{self.steps:,} steps were trained, {show_share(share)} of the {self.all_steps:,} of these "
            f"{len(self.trials)} trials in full.",
        ]
        if self.importance:
            names = short_names(list(self.importance))
            parts = ", ".join(f"{names[key]} {show_share(each)}" for key, each in self.importance.items())
            where = "at the first comparison" if self.halving.rungs else "at the end"
            found.append(f"What decides the {self.metric} {where}: {parts}.")
        return found

    def to_text(self) -> str:
        parts = [render_table(self.rows(), output_width())] if self.trials else []
        parts.append("\n".join(self.sentences()))
        if not self.is_finished:
            parts.append("The search is not finished; the same command resumes it.")
        parts.append("written:" + "".join(f"\n  {file}" for file in self.files))
        return "\n\n".join(parts)


def run_search(options: SearchOptions, console: Console) -> SearchResult:
    """Begin a search or resume it; the best settings and a page are written in any case."""
    load_optuna()
    prospect = _look_ahead(options, console)
    folder = prospect.folder
    folder.create()
    with folder.lock():
        if folder.read_rules() is None:
            folder.write_rules(prospect.rules)
        trials = folder.trials(prospect.varied)
        records = RecordWriter(folder.records)
        stops = StopRequests()
        loop = _make_loop(prospect, trials, records, stops, console)
        try:
            loop.retry_failed()
            with signals_call(stops.ask):
                loop.run()
        finally:
            records.close()
        return _conclude(prospect, trials, loop.rules, is_finished=loop.is_complete())


def _look_ahead(options: SearchOptions, console: Console) -> _Prospect:
    """Everything that can be wrong is found here, before anything is prepared, trained or written."""
    path = local_recipe(options.recipe)
    recipe, varied = load_space(path, options.overrides, options.vary)
    if recipe.train.stop_at is not None:
        raise UserError("train.stop_at: the search decides where trials stop; take it out of the recipe")
    if recipe.train.is_batch_auto:
        raise UserError('train.batch = "auto" differs from trial to trial; give train.batch_tokens')
    folder = SearchFolder(options.folder or RUNS / f"{recipe.name}-search")
    before, space = folder.read_rules(), describe_space(varied)
    if before is not None:
        refuse_other_search(folder.path, before, recipe, space)
    trials = _count_trials(options, varied, len(folder.trials(varied)), console)
    factor, rungs = _choose_halving(options, before, trials)
    if before is None:
        length = _length(recipe, _prepared(recipe, path, console))
        if (fitting := fit_rungs(length, factor, rungs)) < rungs:
            tell(console, f"training of {length:,} steps has room for {fitting} comparisons, not {rungs}")
            rungs = fitting
    lower_is_better = less_is_better(recipe.checkpoint.best)
    rules = SearchRules(recipe_table(recipe), space, factor, rungs)
    halving = Halving(trials, factor, rungs, lower_is_better)
    return _Prospect(options, path, recipe, varied, folder, rules, halving)


def _count_trials(options: SearchOptions, varied: Sequence[VariedKey], begun: int, console: Console) -> int:
    """How many trials there are to be: not more than there are settings, and no fewer than there are already."""
    size = count_combinations(varied)
    if options.sampler == "grid" and size is None:
        raise UserError(
            "--sampler grid: a range has no grid; give lists, or a number of values as in "
            "--vary schedule.learning_rate=1e-4..1e-2:log:5"
        )
    wanted = options.trials or (size if options.sampler == "grid" and size is not None else _TRIALS)
    if size is not None and wanted > size:
        tell(console, f"there are {size} settings, so there will be {size} trials, not {wanted}")
        wanted = size
    if begun > wanted:
        tell(console, f"{begun} trials were begun already, so there will be {begun}, not {wanted}")
    return max(wanted, begun)


def _choose_halving(options: SearchOptions, before: SearchRules | None, trials: int) -> tuple[int, int]:
    """Factor and rungs: those that the search was begun with."""
    if before is None:
        factor = options.factor or _FACTOR
        return factor, default_rungs(trials, factor) if options.rungs is None else options.rungs
    if options.factor not in (None, before.factor) or options.rungs not in (None, before.rungs):
        raise RunError(
            f"the search was begun with --factor {before.factor} --rungs {before.rungs}; leave both out to resume it"
        )
    return before.factor, before.rungs


def _length(recipe: Recipe, prepared: AnyPrepared) -> int:
    return length_in_steps(recipe.train, steps_per_epoch(recipe, prepared))


def _prepared(recipe: Recipe, path: Path, console: Console) -> AnyPrepared:
    """The recipe's data; what is to be said of them is said when they are made."""
    return find_data(recipe, path.parent) or prepare_data(recipe, path.parent, console)


def _make_loop(
    prospect: _Prospect, trials: list[Trial], records: RecordWriter, stops: StopRequests, console: Console
) -> SearchLoop:
    options, halving = prospect.options, prospect.halving
    trainer = TrialTrainer(
        prospect.path.absolute(), options.overrides, prospect.metric, options.workers, options.parallel
    )

    def begin(trial: Trial, rung: int, place: int) -> Any:
        _refuse_changed_recipe(prospect)
        tell(console, f"{trial.name} to step {trial.rungs[rung]:,}: {show_values(trial.values)}")
        return trainer.begin(prospect.folder.run(trial), trial, rung, place)

    def propose_trial(number: int) -> Trial | None:
        plans: dict[str, Trial] = {}

        def problem_of(values: Values) -> str | None:
            found = _plan(prospect, number, values, console)
            if isinstance(found, str):
                return found
            plans[str(values)] = found
            return None

        values = propose(
            prospect.varied,
            trials,
            options.sampler,
            prospect.recipe.seed,
            lower_is_better=halving.lower_is_better,
            problem_of=problem_of,
        )
        return None if values is None else plans[str(values)]

    return SearchLoop(
        halving,
        trials,
        records,
        begin,
        propose_trial,
        lambda line: tell(console, line),
        options.parallel,
        stops,
    )


def _refuse_changed_recipe(prospect: _Prospect) -> None:
    """RunError if somebody edits the recipe meanwhile: later trials would be of another one."""
    now = load_recipe(prospect.path, prospect.options.overrides)
    if changed := changes_of(prospect.rules, now):
        raise RunError(
            f"{prospect.path}: has changed during the search ({', '.join(changed)}); undo that, and the same command "
            "resumes"
        )


def _plan(prospect: _Prospect, number: int, values: Values, console: Console) -> Trial | str:
    """A trial with these values, or what the recipe has against them."""
    try:
        recipe = load_recipe(prospect.path, [*prospect.options.overrides, *as_settings(values)])
    except RecipeError as error:
        return f"{show_values(values)}: {'; '.join(map(str, error.problems))}"
    try:
        length = _length(recipe, _prepared(recipe, prospect.path, console))
    except DataError as error:  # those of the recipe as it is could be prepared
        return f"{show_values(values)}: {error}"
    plan = plan_trial(length, recipe.evaluate.every, prospect.rules.factor, prospect.rules.rungs)
    if plan is None:
        return f"{show_values(values)}: {length} steps are too few for {prospect.rules.rungs} comparisons"
    return Trial(number, values, plan.steps, plan.every)


def _conclude(
    prospect: _Prospect, trials: list[Trial], halving: Halving, *, is_finished: bool
) -> SearchResult:
    """Write the best recipe and the page, and return what was found."""
    folder = prospect.folder
    best = best_trial(trials, halving)
    shares = importance(prospect.varied, trials, lower_is_better=halving.lower_is_better)
    page = prospect.options.to or folder.path / "search.html"
    files = [page] if best is None else [folder.best, page]
    result = SearchResult(
        folder.path, prospect.metric, is_finished, prospect.varied, trials, halving, best, shares, files
    )
    if best is not None:
        write_atomically(
            folder.best, render_best(prospect.path, prospect.options.overrides, folder.path, result)
        )
    write_report(page, render_search(result))
    return result


def render_search(result: SearchResult) -> str:
    """The page of a search."""
    charts = search_charts(
        result.varied,
        result.trials,
        result.best,
        result.metric,
        result.importance,
        lower_is_better=result.halving.lower_is_better,
    )
    heading, *rows = result.rows()
    table = (heading, [(row[0], row[1:]) for row in rows])
    state = "finished" if result.is_finished else "not finished"
    title = f"Search in {result.folder.name}"
    return study_page(title, state, result.sentences(), {"Trials": table}, charts)


def render_best(path: Path, overrides: Sequence[str], folder: Path, result: SearchResult) -> str:
    """The recipe with the best settings, as a file in the search's folder: relative paths lead where they did."""
    best = result.best
    assert best is not None
    table = load_recipe(path, [*overrides, *as_settings(best.values)]).model_dump(exclude_none=True)
    table["name"] = f"{table['name']}-best"
    table["data"] = _moved(table.get("data"), path.absolute().parent, folder.absolute())
    head = f"# The best of {len(result.trials)} trials: {best.name}, {result.metric} {best.value:.6g}.\n"
    return head + dump_table(table)


def _moved(value: Any, old: Path, new: Path) -> Any:
    """A table in which relative paths to what lies beside the recipe lead there from another folder."""
    match value:
        case dict():
            return {key: _moved(inner, old, new) for key, inner in value.items()}
        case list():
            return [_moved(inner, old, new) for inner in value]
        case str() if value and not Path(value).is_absolute() and (old / value).exists():
            return os.path.relpath(old / value, new)
    return value
