"""The verb `search`: mistakes before anything is trained, the command of a trial, and what is written at the end."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.search import SearchOptions, SearchResult, render_best, render_search, run_search
from echelon.commands.trial_process import TrialTrainer, arrival, share_of_cores
from echelon.data.corpora import resolve
from echelon.errors import RecipeError, RunError, UserError
from echelon.monitor.records import RecordWriter
from echelon.recipe.loading import load_recipe, load_translation_recipe
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder
from echelon.search.rungs import Halving
from echelon.search.search_folder import SearchFolder, SearchRules, recipe_table
from echelon.search.trials import RungResult, Trial
from echelon.search.varied_keys import ListedValues, ValueRange, VariedKey, as_settings

RATE = "schedule.learning_rate=1e-4..1e-2:log"
DROPOUT = "model.dropout=0.1,0.2"
VARIED: list[VariedKey] = [
    ValueRange("schedule.learning_rate", 1e-4, 1e-2, is_log=True),
    ListedValues("model.dropout", (0.1, 0.2)),
]
CONSOLE = Console(quiet=True)


def options(recipe: Path, *vary: str, **changes: object) -> SearchOptions:
    asked = SearchOptions(recipe, vary, folder=recipe.parent / "search")
    return dataclasses.replace(asked, **changes)  # type: ignore[arg-type]


def begin_search(recipe: Path, *varied: str) -> SearchFolder:
    """A search that was begun, with no trial yet."""
    folder = SearchFolder(recipe.parent / "search")
    folder.create()
    folder.write_rules(SearchRules(recipe_table(load_recipe(recipe)), sorted(varied), 4, 2))
    return folder


def made_result(folder: Path) -> SearchResult:
    """Five trials: one at the end, one a rung before it, two at the first rung, one failed."""
    losses = {0: (4.0, 3.0, 2.0), 1: (5.0, 3.5), 2: (6.0,), 3: (7.5,), 4: ()}
    trials = [
        Trial(
            number,
            {"schedule.learning_rate": 1e-4 * (number + 1), "model.dropout": (0.1, 0.2)[number % 2]},
            (10, 40, 160),
            10,
            {rung: RungResult((10, 40, 160)[rung], loss) for rung, loss in enumerate(found)},
        )
        for number, found in losses.items()
    ]
    trials[4].failure = "training of <b>nothing</b> cannot continue"
    shares = {"schedule.learning_rate": 0.75, "model.dropout": 0.25}
    rules = Halving(5, 4, 2, lower_is_better=True)
    return SearchResult(
        folder, "loss", True, VARIED, trials, rules, trials[0], shares, [folder / "best.toml"]
    )


def test_mistakes_of_the_space_come_before_anything_is_written(toy_recipe: Path) -> None:
    with pytest.raises(RecipeError, match="--vary has 2 problems"):
        run_search(options(toy_recipe, "model.dropot=1,2", "model.dropout=0.2..0.1"), CONSOLE)
    with pytest.raises(UserError, match="a range has no grid; give lists, or a number of values"):
        run_search(options(toy_recipe, RATE, sampler="grid"), CONSOLE)
    with pytest.raises(UserError, match=r"train\.stop_at: the search decides where trials stop"):
        run_search(options(toy_recipe, DROPOUT, overrides=["train.stop_at=5"]), CONSOLE)
    assert not (toy_recipe.parent / "search").exists()


def test_without_optuna_the_extra_is_named(toy_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"this needs optuna \(extra search\)"):
        run_search(options(toy_recipe, DROPOUT), CONSOLE)


def test_a_folder_with_something_else_is_left_alone(toy_recipe: Path) -> None:
    with pytest.raises(RunError, match="has something else in it; name another folder with --folder"):
        run_search(options(toy_recipe, DROPOUT, folder=toy_recipe.parent), CONSOLE)
    assert not (toy_recipe.parent / "search.json").exists()


def test_a_search_is_resumed_with_the_recipe_and_the_space_that_it_was_begun_with(toy_recipe: Path) -> None:
    begin_search(toy_recipe, DROPOUT)
    with pytest.raises(RunError) as caught:
        run_search(options(toy_recipe, "model.dropout=0.1,0.3", overrides=["train.slots=4"]), CONSOLE)
    for said in (
        "--vary model.dropout=0.1,0.3 is new",
        "--vary model.dropout=0.1,0.2 is missing",
        "the recipe has another train.slots",
    ):
        assert said in str(caught.value)
    with pytest.raises(RunError, match="begun with --factor 4 --rungs 2; leave both out to resume it"):
        run_search(options(toy_recipe, DROPOUT, factor=2), CONSOLE)


def test_a_search_that_somebody_is_making_is_refused(toy_recipe: Path) -> None:
    folder = begin_search(toy_recipe, DROPOUT)
    with folder.lock(), pytest.raises(RunError, match="this search is being made already"):
        run_search(options(toy_recipe, DROPOUT), CONSOLE)


def test_a_damaged_file_of_rules_is_told(toy_recipe: Path) -> None:
    folder = begin_search(toy_recipe, DROPOUT)
    folder.rules.write_text("{")
    with pytest.raises(RunError, match="is damaged, so nobody knows what was searched"):
        run_search(options(toy_recipe, DROPOUT), CONSOLE)


@pytest.mark.parametrize(
    "values",
    [
        {"model.dropout": 0.1, "task": "evil.module:Task"},
        {"task": "evil.module:Task"},
        {"model.dropout": "0.1 evil.module:Task"},
        {"model.dropout": 0.15},
        {"model.dropout": True},
    ],
)
def test_settings_from_a_stranger_s_folder_go_into_no_command(
    toy_recipe: Path, values: dict[str, object]
) -> None:
    folder = begin_search(toy_recipe, DROPOUT)
    writer = RecordWriter(folder.records)
    writer.write("trial", trial=0, values=values, rungs=[2, 8, 30], every=2)
    writer.close()
    with pytest.raises(RunError, match=r"search\.jsonl: has trials that are not of this search"):
        run_search(options(toy_recipe, DROPOUT), CONSOLE)
    assert not (folder.path / "trial-00").exists()


def test_a_trial_is_an_ordinary_command_that_pauses_at_its_rung(tmp_path: Path) -> None:
    trainer = TrialTrainer(tmp_path / "toy.toml", ["seed=3"], "loss", WorkerRange(2, 2), 1)
    trial = made_result(tmp_path).trials[1]
    words = trainer.words(RunFolder(tmp_path / "trial-01"), trial, 1)
    assert words[:6] == [
        "train",
        str(tmp_path / "toy.toml"),
        "--run",
        str(tmp_path / "trial-01"),
        "--workers",
        "2",
    ]
    sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
    assert sets == [
        "seed=3",
        "schedule.learning_rate=0.0002",
        "model.dropout=0.2",
        "evaluate.every=10",
        "checkpoint.mirror=",
        "train.stop_at=40",
    ]
    assert "train.stop_at=" in trainer.words(RunFolder(tmp_path / "trial-01"), trial, 2), (
        "the last one does not pause"
    )


def test_trials_side_by_side_have_cores_of_their_own() -> None:
    assert [share_of_cores({0, 2, 4, 6}, 2, place) for place in range(2)] == [{0, 4}, {2, 6}]
    assert share_of_cores({0, 1, 2}, 2, 0) == {0, 2}
    assert share_of_cores({0}, 2, 1) == {0}, "too few to share"


def write_records(run: RunFolder, *records: tuple[str, Mapping[str, object]]) -> None:
    run.create()
    writer = RecordWriter(run.worker_records(0))
    for kind, values in records:
        writer.write(kind, **values)
    writer.close()


def test_a_trial_has_arrived_if_its_rung_is_scored_and_not_before(tmp_path: Path) -> None:
    trial = made_result(tmp_path).trials[1]
    begun = ("start", {"step": 0, "steps": 160})
    scored = ("valid", {"step": 10, "loss": 5.5, "bleu": 3.0})
    at_the_rung = ("valid", {"step": 40, "loss": 6.5, "bleu": 4.0})
    write_records(RunFolder(tmp_path / "before"), begun, scored)
    assert arrival(RunFolder(tmp_path / "before"), trial, 1, "loss") is None
    there = RunFolder(tmp_path / "there")
    write_records(there, begun, scored, at_the_rung, ("end", {"step": 40, "outcome": "paused"}))
    for metric, value in (("loss", 5.5), ("bleu", 4.0)):
        found = arrival(there, trial, 1, metric)
        assert found is not None
        assert (found.result, found.is_over) == (RungResult(40, value), False), "the best so far"
    assert arrival(there, trial, 2, "loss") is None
    assert arrival(there, trial, 1, "chrf") is None, "without a score there is no result"


def test_a_trial_that_its_recipe_stops_early_has_arrived_for_good(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "early")
    records: list[tuple[str, Mapping[str, object]]] = [
        ("start", {"step": 0, "steps": 160}),
        ("step", {"step": 20, "loss": 5.0}),
    ]
    write_records(
        run, *records, ("valid", {"step": 20, "loss": 5.5}), ("end", {"step": 20, "outcome": "stopped early"})
    )
    found = arrival(run, made_result(tmp_path).trials[1], 2, "loss")
    assert found is not None
    assert (found.result, found.is_over) == (RungResult(20, 5.5), True)


def test_the_text_begins_with_the_best_and_explains_every_trial(tmp_path: Path) -> None:
    text = made_result(tmp_path).to_text()
    rows = [re.split(r"  +", line) for line in text.partition("\n\n")[0].splitlines()]
    assert rows == [
        ["trial", "learning_rate", "dropout", "steps", "loss", "outcome"],
        ["trial-00 *", "0.0001", "0.1", "160", "2", "trained to the end"],
        ["trial-01", "0.0002", "0.2", "40", "3.5", "stopped at step 40: 2 of 2, and 1 continued"],
        [
            "trial-02",
            "0.00030000000000000003",
            "0.1",
            "10",
            "6",
            "stopped at step 10: 3 of 4, and 2 continued",
        ],
        ["trial-03", "0.0004", "0.2", "10", "7.5", "stopped at step 10: 4 of 4, and 2 continued"],
        ["trial-04", "0.0005", "0.1", "0", "-", "failed: training of <b>nothing</b> cannot continue"],
    ]
    assert "The best is trial-00, loss 2 at step 160: learning_rate 0.0001, dropout 0.1." in text
    assert "220 steps were trained, 28% of the 800 of these 5 trials in full." in text
    assert "learning_rate 75%, dropout 25%" in text


def test_the_document_has_what_others_need(tmp_path: Path) -> None:
    document = json.loads(json.dumps(made_result(tmp_path).to_json()))
    assert document["best"]["run"] == str(tmp_path / "trial-00")
    assert document["best"]["settings"] == {"schedule.learning_rate": 0.0001, "model.dropout": 0.1}
    assert [trial["step"] for trial in document["trials"]] == [160, 40, 10, 10, 0]
    assert (document["steps"], document["all_steps"], document["finished"]) == (220, 800, True)


def test_the_page_has_the_charts_and_executes_nothing(tmp_path: Path) -> None:
    page = render_search(made_result(tmp_path))
    assert page.count("<svg") == 3
    assert "Settings and results" in page
    assert "What decides the loss at step 10" in page
    assert "The best of 4 trials is trial-00" in page
    assert "<b>nothing" not in page
    assert "<script" not in page
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")


def test_a_page_without_results_is_a_page(tmp_path: Path) -> None:
    empty = dataclasses.replace(
        made_result(tmp_path), trials=[], best=None, importance=None, is_finished=False
    )
    assert "No trial has a result yet." in render_search(empty)
    assert "the same command resumes it" in empty.to_text()


def test_the_best_recipe_finds_its_data_from_where_it_is(toy_recipe: Path, tmp_path: Path) -> None:
    shutil.copy(toy_recipe.parent / "valid.en", tmp_path / "elsewhere.en")
    folder = tmp_path / "searches" / "one"
    folder.mkdir(parents=True)
    overrides = [f"data.valid.source={tmp_path / 'elsewhere.en'}", "seed=9"]
    result = made_result(folder)
    (folder / "best.toml").write_text(render_best(toy_recipe, overrides, folder, result))
    best = load_translation_recipe(folder / "best.toml")
    assert result.best is not None
    wanted = load_translation_recipe(toy_recipe, [*overrides, *as_settings(result.best.values)])
    assert best.name == "toy-best"
    assert (best.model, best.schedule, best.train, best.seed) == (
        wanted.model,
        wanted.schedule,
        wanted.train,
        wanted.seed,
    )
    train = best.data.train[0].source
    assert train is not None
    assert resolve(train, folder).resolve() == (toy_recipe.parent / "train.en").resolve()
    assert best.data.valid.source == str(tmp_path / "elsewhere.en")
