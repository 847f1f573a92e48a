"""`train` and `demo` on this machine: from a recipe to a scored model. And how every run begins, wherever it trains."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from echelon.agent.actions import RecordEvent
from echelon.agent.outcome import RunOutcome
from echelon.agent.single_host import run_on_this_machine
from echelon.commands.cluster_options import ClusterOptions
from echelon.commands.disk import require_room
from echelon.commands.prepare import prepare_data
from echelon.commands.resume import (
    is_own_recipe,
    last_step,
    leave_hosts,
    length_note,
    load_own_recipe,
    open_own_data,
    refuse_other_data,
    refuse_other_recipe,
    refuse_to_leave_hosts,
)
from echelon.commands.run_setup import write_run
from echelon.commands.trial import this_machine
from echelon.console import tell
from echelon.data.batch_plan import AnyPrepared, steps_per_epoch
from echelon.data.prepare import default_cache
from echelon.errors import CheckpointError, EchelonError, RunError, UserError
from echelon.files.checkpoint_layout import default_choice
from echelon.launch.stop_requests import StopRequests
from echelon.monitor.records import RecordWriter, is_number, read_records
from echelon.monitor.scores import read_scores
from echelon.monitor.screen import follow_records, open_screen
from echelon.recipe.length import length_in_steps
from echelon.recipe.loading import change_recipe, load_recipe
from echelon.recipe.own_code import own_paths, require_allowed
from echelon.recipe.schedule import warm_up_note
from echelon.recipe.schema import Recipe
from echelon.recipe.shipped import suggest_shipped
from echelon.recipe.tasks import less_is_better
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.resolve.earlier import with_earlier, with_mirrored
from echelon.resolve.measured import must_measure, refuse_auto_batch, with_measured
from echelon.runfolder import RUNS, RunFolder, find_run, remove_folder, suggest_run
from echelon.store import address_of, get_file


@dataclass(frozen=True)
class TrainOptions:
    """What `echelon train` was asked for."""

    recipe: Path
    """Where it is; its folder is where its relative paths begin."""
    run: Path | None = None
    workers: WorkerRange | None = None
    overrides: list[str] = field(default_factory=list)
    cluster: ClusterOptions | None = None
    as_before: bool = False
    """Resume with the run's own recipe, whatever `recipe` says."""
    built: Recipe | None = None
    """The recipe itself, if it was built in Python and is no file."""

    def load(self) -> Recipe:
        """The recipe, changed by the overrides."""
        if self.built is not None:
            return change_recipe(self.built, self.overrides)
        return load_recipe(local_recipe(self.recipe), self.overrides)


@dataclass(frozen=True)
class Begun:
    """A run whose folder is ready for workers, and locked."""

    run: RunFolder
    recipe: Recipe
    prepared: AnyPrepared
    lock: int
    before: Recipe | None = None
    """The recipe of its last start, if it was begun before."""


def train(options: TrainOptions, console: Console) -> dict[str, Any]:
    """Prepare if needed, train or resume training here, score; returns what `train --json` prints."""
    require_here(options)
    with begin(options, console) as begun:
        ended = train_here(begun, console)
    return summarise(begun.run, begun.recipe, ended)


def require_here(options: TrainOptions) -> None:
    """RunError if the run that is resumed was trained on hosts, and nothing says that this machine is to continue."""
    if options.workers is None:
        _, run = open_run(options)
        if is_own_recipe(options.recipe, run):
            refuse_to_leave_hosts(run)


def train_here(begun: Begun, console: Console, stops: StopRequests | None = None) -> RunOutcome:
    """Train, or resume training, with workers on this machine; `stops` as in `run_on_this_machine`."""
    workers = parse_workers(begun.recipe.train.workers)
    say_what_begins(begun, workers, console)
    done = (
        "nothing is left to train; looking for the scores" if _is_trained(begun) else "starting the workers"
    )
    console.print(f"{done} ...", highlight=False)
    return _run_workers(begun, workers, console, stops)


def open_run(options: TrainOptions) -> tuple[Recipe, RunFolder]:
    """The recipe and the run's folder, which need not exist; refuses a folder that another recipe began."""
    recipe = options.load()
    run = _local_run(options.run, recipe)
    if options.as_before or is_own_recipe(options.recipe, run):
        recipe = load_own_recipe(run, options.overrides)
    recipe = _with_absolute_init(recipe)
    if options.cluster is not None:
        run = RunFolder(run.path.absolute())
    recipe = with_earlier(recipe, run, options.workers)
    refuse_other_recipe(run, recipe, options.overrides)
    if options.cluster is not None:
        refuse_auto_batch(recipe)
    return recipe, run


def local_recipe(recipe: Path) -> Path:
    """A recipe on this machine: one at an address is fetched."""
    address = address_of(recipe)
    if address is None:
        return recipe
    copy = (
        default_cache()
        / "recipes"
        / hashlib.sha256(address.encode()).hexdigest()[:16]
        / Path(urlsplit(address).path).name
    )
    get_file(address, copy)
    return copy


def tell_apart(given: Path, run: Path | None) -> tuple[Path, Path | None]:
    """The recipe and the run's folder. What is given may be a run: then the recipe is the one it was begun with."""
    resumed = find_run(given.parent if given.name == "recipe.toml" else given)
    is_run = resumed.recipe.is_file() and resumed.checkpoints.is_dir()
    if given.is_dir() and not is_run:
        raise UserError(f"{given}: is a folder without a run; give a recipe, a TOML file, or a run's folder")
    if not is_run and not given.exists() and given.suffix != ".toml":
        near = suggest_shipped(given) or suggest_run(given, given.parent if len(given.parts) > 1 else RUNS)
        raise UserError(f"{given}: there is no such recipe file, and no run of that name{near}")
    if given.is_file() and given.name != "recipe.toml":
        return given, run
    if is_run and run is not None and run.resolve() != resumed.path.resolve():
        raise UserError(f"{given} is a run already; leave out --run {run} to resume it")
    return (resumed.recipe, resumed.path) if is_run else (given, run)


@contextlib.contextmanager
def begin(options: TrainOptions, console: Console) -> Iterator[Begun]:
    """Prepare the data if needed and make the run's folder ready; it is locked while this lasts."""
    recipe, run = open_run(options)
    require_allowed(own_paths(recipe))  # here, and not only by the workers, when the run has been changed
    # Before there is a folder to leave behind.
    if not run.recipe.exists():
        _require_init(recipe)
    prepared = find_or_prepare(options, recipe, run, console)
    run.create()
    with run.lock() as lock:
        recipe, run = open_run(options)  # again: another process may have begun a run here meanwhile
        refuse_other_data(run, prepared)
        before = load_recipe(run.recipe) if run.recipe.exists() else None
        on_hosts = options.cluster is not None
        if must_measure(recipe, on_hosts=on_hosts):
            recipe = with_mirrored(recipe)
        wanted = parse_workers(recipe.train.workers)
        if options.workers is not None and options.workers.is_auto and not wanted.is_auto:
            console.print(f'workers = "auto" is {wanted}, as the run was begun', highlight=False)
        recipe = with_measured(recipe, prepared, this_machine(prepared, console), console, on_hosts=on_hosts)
        if not on_hosts:
            leave_hosts(run)
        write_run(run, recipe, prepared)
        yield Begun(run, recipe, prepared, lock, before)


def find_or_prepare(options: TrainOptions, recipe: Recipe, run: RunFolder, console: Console) -> AnyPrepared:
    """The run's data; of a run that is resumed with its own recipe, those it was begun with."""
    if is_own_recipe(options.recipe, run):
        return open_own_data(run, recipe)
    return prepare_data(recipe, options.recipe.parent, console)


def say_what_begins(begun: Begun, workers: WorkerRange, console: Console) -> None:
    """Print notes on what will be trained; RunError if the disk has no room for a checkpoint."""
    run, recipe, prepared = begun.run, begun.recipe, begun.prepared
    changed = length_note(begun.before, recipe, prepared, last_step(run)) if begun.before else None
    found = [changed, require_room(run, recipe, prepared), *notes(recipe, prepared, workers)]
    for line in (*filter(None, found), f"run folder: {run.path}"):
        tell(console, line)


def _is_trained(begun: Begun) -> bool:
    """Whether the run has all its steps."""
    train = begun.recipe.train
    return last_step(begun.run) >= length_in_steps(train, steps_per_epoch(begun.recipe, begun.prepared))


def summarise(run: RunFolder, recipe: Recipe, ended: RunOutcome) -> dict[str, Any]:
    """What `train --json` prints; a test score is of the whole training, so that one paused on the way has none."""
    step = last_step(run)
    is_paused = ended.is_finished and step == recipe.train.stop_at
    return {
        "run": str(run.path),
        "finished": ended.is_finished,
        "paused": is_paused,
        "step": step,
        "saved_step": last_step(run, "checkpoint"),
        "restarts": ended.restarts,
        "valid": best_valid(run, recipe.checkpoint.best),
        **({} if is_paused else test_scores(run)),
    }


def run_folder(recipe: Path, run: Path | None, overrides: list[str]) -> RunFolder:
    """The folder of a run that is started with these."""
    return _local_run(run, load_recipe(recipe, overrides))


def _local_run(run: Path | None, recipe: Recipe) -> RunFolder:
    address = None if run is None else address_of(run)
    if address is not None:
        raise RunError(
            f"--run {address}: a run's folder is on this machine; name one here, and give "
            f"--set checkpoint.mirror={address} to have its checkpoints there as well"
        )
    return RunFolder(run or Path("runs") / recipe.name)


def notes(recipe: Recipe, prepared: AnyPrepared, workers: WorkerRange) -> list[str]:
    """Notes on settings that are allowed but rarely intended."""
    found = []
    steps = length_in_steps(recipe.train, steps_per_epoch(recipe, prepared))
    if note := warm_up_note(recipe, steps):
        found.append(note)
    serving = recipe.exchange.servers if recipe.train.exchange == "parameter_server" else 0
    count = 0 if workers.is_auto else workers.most - serving
    if count > recipe.train.slots:
        found.append(
            f"note: a step has {recipe.train.slots} slots, so {count - recipe.train.slots} of "
            f"{count} workers will have nothing to do; raise train.slots in a new run"
        )
    return found


def _run_workers(
    begun: Begun, workers: WorkerRange, console: Console, stops: StopRequests | None
) -> RunOutcome:
    run, recipe = begun.run, begun.recipe
    screen = open_screen(console, recipe.train.log_every)
    reader = follow_records(run.worker_records(0), screen)
    records = RecordWriter(run.launcher_records)
    stops = stops or StopRequests()

    def show_new_records() -> None:
        if message := stops.news():
            screen.show({"kind": "event", "message": message})
        for record in reader.read():
            screen.show(record)

    def tell(news: RecordEvent) -> None:
        if news.kind == "event":
            records.write("event", message=news.message, **news.values)
            screen.show({"kind": "event", "message": news.message})

    try:
        return run_on_this_machine(
            run,
            recipe.restart,
            workers,
            lock=begun.lock,
            tell=tell,
            on_tick=show_new_records,
            stops=stops,
        )
    except EchelonError as error:
        records.write("failure", message=str(error))
        raise
    finally:
        screen.close()
        records.close()


def _with_absolute_init(recipe: Recipe) -> Recipe:
    """The recipe with `train.init_from` as a path that holds wherever the workers run."""
    if recipe.train.init_from is None:
        return recipe
    from echelon.pretrained.conversion import starting_run

    other = starting_run(recipe.train.init_from)
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"init_from": str(other.path)})})


def _require_init(recipe: Recipe) -> None:
    """UserError if the run that training shall start from has no checkpoint."""
    if recipe.train.init_from is None:
        return
    from echelon.train.checkpoint import choose_checkpoint

    checkpoints = RunFolder(Path(recipe.train.init_from)).checkpoints
    try:
        choose_checkpoint(checkpoints, default_choice(checkpoints, "best"))
    except CheckpointError as error:
        raise UserError(f"train.init_from = {recipe.train.init_from!r}: {error}") from error


def best_valid(run: RunFolder, metric: str) -> dict[str, Any] | None:
    """The best validation scores so far, with their step."""
    records = [
        r for r in read_records(run.worker_records(0)) if r["kind"] == "valid" and is_number(r.get(metric))
    ]
    if not records:
        return None
    best = (min if less_is_better(metric) else max)(records, key=lambda record: float(record[metric]))
    return {name: value for name, value in best.items() if name not in ("kind", "time", "seconds")}


def test_scores(run: RunFolder) -> dict[str, Any]:
    """The test scores, if the run has been scored."""
    scores = read_scores(run, "test")
    return {} if scores is None else {"test": scores}


def remove_run(run: RunFolder) -> None:
    """Delete a run that is not being trained."""
    run.require()
    if run.path.is_symlink():
        raise RunError(f"{run.path}: is a link; remove the folder {run.path.resolve()} and the link yourself")
    if run.is_locked():
        raise RunError(f"{run.path}: is being trained; `echelon stop {run.path}` stops it")
    remove_folder(run.path)
