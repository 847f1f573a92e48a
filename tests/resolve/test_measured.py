"""What "auto" is resolved to."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from echelon.commands import benchmark, training, trial
from echelon.commands.prepare import prepare_data
from echelon.commands.training import TrainOptions, begin
from echelon.commands.trial import measure, this_machine
from echelon.data.batch_plan import steps_per_epoch
from echelon.data.prepared import Prepared
from echelon.errors import FINAL_STATUS, UserError, WorkerError
from echelon.recipe.loading import load_recipe, load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.resolve import measured
from echelon.resolve.measured import (
    LARGEST_SLOT,
    find_slot,
    find_workers,
    largest_slot,
    resolve_batch,
    slot_candidates,
    with_slot_tokens,
    worker_candidates,
)
from echelon.runfolder import RunFolder
from echelon.store import put_file


@pytest.mark.parametrize(
    ("cores", "slots", "expected"),
    [(1, 4, [1]), (2, 4, [1, 2]), (6, 8, [1, 2, 4, 6]), (8, 3, [1, 2]), (64, 8, [1, 2, 4, 8])],
)
def test_worker_candidates_share_the_cores_and_have_a_slot_each(
    cores: int, slots: int, expected: list[int]
) -> None:
    assert worker_candidates(cores, slots) == expected


def failed_worker(exit_code: int = -9) -> WorkerError:
    return WorkerError(host="here", rank=0, exit_code=exit_code, log=Path("worker-0.log"), last_lines=[])


def table(rates: Mapping[int, tuple[float, float]]) -> Callable[[int], tuple[float, float]]:
    """Measurements; a slot that is not among them fails."""

    def measure_slot(slot: int) -> tuple[float, float]:
        if slot not in rates:
            raise failed_worker()
        return rates[slot]

    return measure_slot


def test_the_largest_slot_that_is_nearly_the_fastest_is_taken() -> None:
    rates = {512: (800.0, 10), 1024: (990.0, 11), 2048: (1000.0, 12), 4096: (985.0, 14), 8192: (850.0, 18)}

    assert find_slot(slot_candidates(512, LARGEST_SLOT), table(rates), most_memory=1000) == 4096


def test_a_slot_that_would_not_fit_is_not_tried() -> None:
    tried: list[int] = []

    def measure(slot: int) -> tuple[float, int]:
        tried.append(slot)
        return 1000.0 + slot, 100 + slot

    assert find_slot(slot_candidates(512, LARGEST_SLOT), measure, most_memory=4000) == 2048
    assert tried == [512, 1024, 2048]


def test_a_slot_that_takes_more_memory_than_there_is_is_not_taken() -> None:
    rates = {512: (1000.0, 50), 1024: (2000.0, 150)}

    assert find_slot(slot_candidates(512, LARGEST_SLOT), table(rates), most_memory=100) == 512
    assert (
        find_slot(slot_candidates(1024, LARGEST_SLOT), table(rates), most_memory=100) == 1024
    )  # there is no smaller one


def test_a_slot_that_fails_is_the_end() -> None:
    assert (
        find_slot(slot_candidates(512, LARGEST_SLOT), table({512: (1.0, 1), 1024: (2.0, 1)}), most_memory=100)
        == 1024
    )


def test_an_epoch_of_few_tokens_has_several_steps_all_the_same(toy_recipe: Path) -> None:
    recipe = load_translation_recipe(toy_recipe, ["train.slots=2"])
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    largest = largest_slot(recipe, prepared)
    assert 0 < largest < LARGEST_SLOT
    steps = steps_per_epoch(with_slot_tokens(recipe, max(largest, recipe.data.max_tokens)), prepared)
    assert 8 < steps < 16
    assert list(slot_candidates(512, largest)) == [512]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["exchange.synchronous=false", "exchange.backup_workers=1"])
def test_a_trial_with_parameter_servers_comes_to_its_end(toy_recipe: Path, setting: str) -> None:
    """Whoever is at the end waits for those who still ask; twice, because without it some had luck."""
    recipe = load_recipe(toy_recipe, ["train.exchange=parameter_server", setting, "restart.hang_seconds=20"])
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    for _ in range(2):
        assert measure(recipe, prepared, workers=4, steps=3, warm_up=0)["steps"] == 3


def test_a_trial_leaves_the_checkpoints_address_and_the_trackers_alone(
    toy_recipe: Path, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    addresses = [f"checkpoint.mirror=file://{mirror}", f"track.mlflow={tmp_path}/mlflow"]
    recipe = load_recipe(toy_recipe, [*addresses, "track.tensorboard=true"])
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))

    assert measure(recipe, prepared, workers=1, steps=1, warm_up=0)["steps"] == 1

    assert list(mirror.iterdir()) == []
    assert not (tmp_path / "mlflow").exists()


def test_a_trial_shows_how_far_it_is(toy_recipe: Path) -> None:
    recipe = load_recipe(toy_recipe)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    shares: list[float] = []

    measure(recipe, prepared, workers=2, steps=200, warm_up=2, show=shares.append)

    assert shares == sorted(shares)
    assert any(0 < share < 1 for share in shares)
    assert shares[-1] == 1


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Measurements of (workers, batch tokens): two workers win, and so do slots of 1,024 tokens."""
    asked: list[tuple[int, int]] = []

    def measure(
        recipe: TranslationRecipe, _prepared: Any, workers: int, *_: Any, **__: Any
    ) -> dict[str, Any]:
        asked.append((workers, recipe.train.batch_tokens))
        slot_tokens = recipe.train.batch_tokens // recipe.train.slots
        rate = workers * (1.0 if slot_tokens == 1024 else 0.5)
        times = {"seconds_per_step": 0.2, "median_seconds_per_step": 0.1}
        return {"tokens_per_second": rate, "memory_bytes": 1_000_000, "gpu_memory_bytes": None, **times}

    monkeypatch.setattr(trial, "measure", measure)
    monkeypatch.setattr(trial, "available_cores", lambda: 2)
    monkeypatch.setattr(measured, "largest_slot", lambda *_: LARGEST_SLOT)
    return asked


def test_workers_are_found_and_said(
    toy_recipe: Path, pretended: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    screen = io.StringIO()
    prepared: Any = None

    found = find_workers(
        load_recipe(toy_recipe), this_machine(prepared, Console(quiet=True)), Console(file=screen, width=200)
    )

    assert found == WorkerRange(2, 2)
    assert [workers for workers, _ in pretended] == [1, 2]
    assert screen.getvalue() == 'workers = "auto" is 2 here (1: 0 tokens/s, 2: 1 tokens/s)\n'


@pytest.mark.usefixtures("pretended")
def test_threads_that_are_set_for_every_number_of_workers_are_said(
    toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    screen = io.StringIO()
    prepared: Any = None
    find_workers(
        load_recipe(toy_recipe), this_machine(prepared, Console(quiet=True)), Console(file=screen, width=200)
    )
    assert screen.getvalue().splitlines()[1:] == [
        "note: OMP_NUM_THREADS is set, so a worker had 3 threads in all of these, and will have in training; "
        "unset it to have workers share the cores out"
    ]


@pytest.mark.usefixtures("pretended")
def test_a_slot_must_fit_into_the_gpu_where_there_is_one(
    toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(recipe: TranslationRecipe, *_: Any, **__: Any) -> dict[str, Any]:
        slot_tokens = recipe.train.batch_tokens // recipe.train.slots
        taken = {"memory_bytes": slot_tokens * 1_000_000, "gpu_memory_bytes": 5_000_000_000}
        return {"tokens_per_second": 1.0, "seconds_per_step": 1.0, "median_seconds_per_step": 1.0, **taken}

    monkeypatch.setattr(trial, "measure", measure)
    recipe = load_recipe(toy_recipe, ["train.batch=auto", "train.slots=1"])
    prepared: Any = None

    found = resolve_batch(
        recipe, prepared, WorkerRange(1, 1), this_machine(prepared, Console(quiet=True)), Console(quiet=True)
    )

    assert isinstance(found, TranslationRecipe)
    assert found.train.batch_tokens == 2048


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("largest", "exit_code", "why"), [(0, -9, "signal 9"), (512, FINAL_STATUS, "exit code 2")]
)
def test_where_no_slot_works_or_size_is_not_the_reason_the_error_is_the_workers(
    toy_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    largest: int,
    exit_code: int,
    why: str,
) -> None:
    succeed = trial.measure

    def measure(recipe: TranslationRecipe, *arguments: Any, **options: Any) -> dict[str, Any]:
        if recipe.train.batch_tokens > largest:
            raise failed_worker(exit_code)
        return succeed(recipe, *arguments, **options)

    monkeypatch.setattr(trial, "measure", measure)
    recipe = load_recipe(toy_recipe, ["train.batch=auto", "train.slots=1"])
    prepared: Any = None
    with pytest.raises(WorkerError, match=why):
        resolve_batch(
            recipe,
            prepared,
            WorkerRange(1, 1),
            this_machine(prepared, Console(quiet=True)),
            Console(quiet=True),
        )


def test_a_given_batch_is_left_alone(toy_recipe: Path, pretended: list[tuple[int, int]]) -> None:
    recipe = load_recipe(toy_recipe)
    prepared: Any = None

    assert (
        resolve_batch(
            recipe,
            prepared,
            WorkerRange(1, 1),
            this_machine(prepared, Console(quiet=True)),
            Console(quiet=True),
        )
        is recipe
    )
    assert pretended == []


def test_a_batch_is_found_with_the_workers_that_will_train_one_slot_each_and_every_candidate_is_said(
    toy_recipe: Path, pretended: list[tuple[int, int]]
) -> None:
    recipe = load_recipe(toy_recipe, ["train.batch=auto", "train.slots=8"])
    screen = io.StringIO()
    prepared: Any = None

    found = resolve_batch(
        recipe,
        prepared,
        WorkerRange(2, 2),
        this_machine(prepared, Console(quiet=True)),
        Console(file=screen, width=200),
    )

    assert pretended == [(2, 2 * 512), (2, 2 * 1024), (2, 2 * 2048)]
    assert screen.getvalue().splitlines() == [
        "slots of 512 tokens: 2 tokens/s, 2 MB",
        "slots of 1,024 tokens: 4 tokens/s, 2 MB",
        "slots of 2,048 tokens: 2 tokens/s, 2 MB",
        'batch = "auto" is 8 slots of 1,024 tokens here: 8,192 a step',
    ]
    assert isinstance(found, TranslationRecipe)
    assert (found.train.slots, found.train.batch_tokens) == (8, 8192)


@pytest.mark.parametrize("command", ["train", "benchmark"])
def test_the_workers_of_the_command_line_are_those_that_a_batch_is_found_with(
    toy_recipe: Path,
    tmp_path: Path,
    pretended: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr(benchmark, "measure", trial.measure)
    settings = ["train.workers=2", "train.batch=auto", "train.slots=4"]
    options = TrainOptions(toy_recipe, tmp_path / "run", WorkerRange(1, 1), settings)
    if command == "train":
        with begin(options, Console(quiet=True)):
            pass
    else:
        benchmark.benchmark(options, 1, Console(quiet=True))
    assert {workers for workers, _ in pretended} == {1}


def test_a_number_of_workers_that_fails_is_passed_over(
    toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_recipe: Any, _prepared: Any, workers: int, *_: Any, **__: Any) -> dict[str, Any]:
        if workers > 1:
            raise failed_worker()
        return {"tokens_per_second": 5.0}

    monkeypatch.setattr(trial, "measure", measure)
    monkeypatch.setattr(trial, "available_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    screen = io.StringIO()
    prepared: Any = None
    found = find_workers(
        load_recipe(toy_recipe), this_machine(prepared, Console(quiet=True)), Console(file=screen, width=200)
    )
    assert found == WorkerRange(1, 1)
    assert screen.getvalue() == 'workers = "auto" is 1 here (1: 5 tokens/s, 2: failed)\n'


def test_where_every_number_of_workers_fails_the_error_is_theirs(
    toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any, **__: Any) -> dict[str, Any]:
        raise failed_worker()

    monkeypatch.setattr(trial, "measure", measure)
    prepared: Any = None
    with pytest.raises(WorkerError, match=r"worker-0\.log"):
        find_workers(
            load_recipe(toy_recipe), this_machine(prepared, Console(quiet=True)), Console(quiet=True)
        )


@pytest.mark.slow
def test_both_kinds_of_auto_on_a_real_model(
    toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "LARGEST_SLOT", 1024)
    settings = ["train.workers=auto", "train.batch=auto", "train.slots=2"]
    options = TrainOptions(toy_recipe, tmp_path / "run", None, settings)
    screen = io.StringIO()
    with begin(options, Console(file=screen, width=200)) as begun:
        kept = load_translation_recipe(begun.run.recipe).train
    assert kept.workers in (1, 2)
    assert kept.batch_tokens in (2 * 512, 2 * 1024)
    assert "slots of 512 tokens: " in screen.getvalue()
    assert f'workers = "auto" is {kept.workers} here (1: ' in screen.getvalue()


@pytest.mark.parametrize("given", ["in the recipe", "as an option"])
def test_what_was_found_is_written_down_and_kept(
    toy_recipe: Path, tmp_path: Path, pretended: list[tuple[int, int]], given: str
) -> None:
    settings = ["train.batch=auto", "train.slots=4"]
    options = TrainOptions(toy_recipe, tmp_path / "run", parse_workers("auto"), settings)
    if given == "in the recipe":
        options = TrainOptions(toy_recipe, tmp_path / "run", None, [*settings, "train.workers=auto"])
    trials = []
    for _ in range(2):
        with begin(options, Console(quiet=True)) as begun:
            kept = load_translation_recipe(begun.run.recipe).train
            assert (kept.workers, kept.batch, kept.batch_tokens) == (2, "given", 4096)
        trials.append(len(pretended))
    assert trials[0] == trials[1] > 0, "the second start measured again"
    assert training.open_run(options)[0].model_dump()["train"]["batch_tokens"] == 4096


def test_a_run_that_goes_on_says_what_workers_auto_is_or_finds_it(
    toy_recipe: Path,
    tmp_path: Path,
    pretended: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with begin(TrainOptions(toy_recipe, tmp_path / "run"), Console(quiet=True)):
        assert not pretended
    options = TrainOptions(toy_recipe, tmp_path / "run", parse_workers("auto"))
    said = []
    for _ in range(2):
        screen = io.StringIO()
        with begin(options, Console(file=screen, width=200)) as begun:
            assert begun.recipe.train.workers == 2
        said.append(screen.getvalue().splitlines()[-1])
    assert said[0].startswith('workers = "auto" is 2 here (1: ')
    assert said[1] == 'workers = "auto" is 2, as the run was begun'


def test_a_run_that_is_taken_up_from_its_mirror_keeps_what_was_found_there(
    toy_recipe: Path, tmp_path: Path, pretended: list[tuple[int, int]]
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    settings = [
        "train.workers=auto",
        "train.batch=auto",
        "train.slots=4",
        f"checkpoint.mirror=file://{mirror}",
    ]
    with begin(TrainOptions(toy_recipe, tmp_path / "first", None, settings), Console(quiet=True)) as begun:
        put_file(begun.run.recipe, f"file://{mirror}/recipe.toml")
    num_trials = len(pretended)
    with begin(TrainOptions(toy_recipe, tmp_path / "second", None, settings), Console(quiet=True)) as begun:
        kept = load_translation_recipe(begun.run.recipe).train
    assert (kept.workers, kept.batch, kept.batch_tokens) == (2, "given", 4096)
    workers = [workers for workers, _ in pretended[num_trials:]]
    assert workers == [1, 2], "only the number of workers is the new machine's own"


def test_a_mirror_of_another_run_leaves_nothing_in_this_one(
    toy_recipe: Path, tmp_path: Path, pretended: list[tuple[int, int]]
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    settings = ["train.batch=auto", "train.slots=4", f"checkpoint.mirror=file://{mirror}"]
    with begin(TrainOptions(toy_recipe, tmp_path / "first", None, settings), Console(quiet=True)) as begun:
        put_file(begun.run.recipe, f"file://{mirror}/recipe.toml")
    other = TrainOptions(toy_recipe, tmp_path / "second", None, [*settings, "seed=77"])
    with pytest.raises(UserError, match=r"another recipe \(seed differ"), begin(other, Console(quiet=True)):
        pass
    assert not RunFolder(tmp_path / "second").recipe.exists()
