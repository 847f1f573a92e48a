"""`train` and `demo`: from a recipe to a scored model."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from echelon.commands.clusters import ClusterOptions, train_on_hosts
from echelon.commands.disk import require_room
from echelon.commands.preparing import prepare_data
from echelon.commands.resume import (
    is_own_recipe,
    last_step,
    length_note,
    load_own_recipe,
    open_own_data,
    refuse_other_data,
    refuse_other_recipe,
)
from echelon.commands.tuning import find_workers, refuse_auto_batch, resolve_batch
from echelon.console import tell
from echelon.data.images.store import PreparedImages
from echelon.data.planning import AnyPrepared, steps_per_epoch
from echelon.data.prepare import default_cache
from echelon.errors import CheckpointError, EchelonError, RunError, UserError
from echelon.launch.cores import available_cores
from echelon.launch.local import LocalJob, StopRequests, follow
from echelon.launch.supervise import Supervised, policy_of, supervise
from echelon.monitor.provenance import collect_provenance
from echelon.monitor.records import RecordWriter, read_records
from echelon.monitor.scores import read_scores
from echelon.monitor.screen import open_screen
from echelon.recipe.continuing import found_in, refuse_another_s, with_found
from echelon.recipe.length import length_in_steps
from echelon.recipe.loading import load_recipe
from echelon.recipe.schedule import warm_up_note
from echelon.recipe.schema import LOWER_IS_BETTER, Recipe, TranslationTrain
from echelon.recipe.toml import dump_recipe
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.runfolder import RunFolder, read_json, remove_folder, write_atomically, write_json
from echelon.store import address_of, get_file, has_file


@dataclass(frozen=True)
class TrainOptions:
    """What `echelon train` was asked for."""

    recipe: Path
    run: Path | None = None
    workers: WorkerRange | None = None
    overrides: list[str] = field(default_factory=list)
    cluster: ClusterOptions | None = None
    as_before: bool = False
    """Resume with the run's own recipe, whatever `recipe` says."""


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
    """Prepare if needed, train or go on training, score; returns what `train --json` prints."""
    with begin(options, console) as begun:
        workers = wanted_workers(options, begun.recipe)
        say_what_begins(begun, workers, console)
        if options.cluster is None:
            console.print("starting the workers ...", highlight=False)
            ended = _run_workers(begun.run, begun.recipe, workers, begun.lock, console)
    if options.cluster is not None:  # the agents of its hosts lock the run folder themselves
        ended = train_on_hosts(options.cluster, begun.run, begun.recipe, begun.prepared, console)
    return summarise(begun.run, begun.recipe, ended)


def open_run(options: TrainOptions) -> tuple[Recipe, RunFolder]:
    """The recipe and the run's folder, which need not exist; refuses a folder that another recipe began."""
    recipe = load_recipe(local_recipe(options.recipe), options.overrides)
    run = _local_run(options.run, recipe)
    if options.as_before or is_own_recipe(options.recipe, run):
        recipe = load_own_recipe(run, options.overrides)
    recipe = _with_absolute_init(recipe)
    if options.cluster is not None:
        run = RunFolder(run.path.absolute())
    found = _workers_found_before(recipe, run)
    recipe = _with_resolved(recipe, run)
    if options.workers is not None and options.workers.is_auto:
        recipe = _with_workers(recipe, found or "auto")
    refuse_other_recipe(run, recipe, options.overrides)
    if options.cluster is not None:
        refuse_auto_batch(recipe)
    return recipe, run


def wanted_workers(options: TrainOptions, recipe: Recipe) -> WorkerRange:
    """How many workers an opened run shall have; its recipe knows what `--workers auto` was found to be."""
    given = options.workers
    return parse_workers(recipe.train.workers) if given is None or given.is_auto else given


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


@contextlib.contextmanager
def begin(options: TrainOptions, console: Console) -> Iterator[Begun]:
    """Prepare the data if needed and make the run's folder ready; it is locked while this lasts."""
    recipe, run = open_run(options)
    # Before there is a folder to leave behind.
    if not run.recipe.exists():
        _require_init(recipe)
    prepared = find_or_prepare(options, recipe, run, console)
    run.create()
    with run.lock() as lock:
        recipe, run = open_run(options)  # again: somebody may have begun a run here meanwhile
        refuse_other_data(run, prepared)
        before = load_recipe(run.recipe) if run.recipe.exists() else None
        if _must_measure(recipe, options):
            recipe = _with_mirrored(recipe)
        recipe = _with_measured(recipe, prepared, options, console)
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


def summarise(run: RunFolder, recipe: Recipe, ended: Supervised) -> dict[str, Any]:
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
    """Where a run goes that is started with these."""
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
    """What is allowed but seldom meant."""
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
    run: RunFolder, recipe: Recipe, workers: WorkerRange, lock: int, console: Console
) -> Supervised:
    reader, screen = follow(run), open_screen(console, recipe.train.log_every)
    records = RecordWriter(run.launcher_records)

    def show_new_records() -> None:
        for record in reader.read():
            screen.show(record)

    def start(count: int, stops: StopRequests) -> LocalJob:
        return LocalJob(run, count, lock, stops=stops, hang_s=recipe.restart.hang_seconds)

    def tell(message: str, **values: object) -> None:
        records.write("event", message=message, **values)
        screen.show({"kind": "event", "message": message})

    try:
        first = workers.at_start(available_cores())
        return supervise(start, first, policy_of(recipe.restart, workers), tell, show_new_records)
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
    other = RunFolder(Path(recipe.train.init_from).resolve()).require()
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"init_from": str(other.path)})})


def _require_init(recipe: Recipe) -> None:
    """UserError where the run that training shall start from has no best checkpoint."""
    if recipe.train.init_from is None:
        return
    from echelon.train.checkpoint import choose_checkpoint

    try:
        choose_checkpoint(RunFolder(Path(recipe.train.init_from)).checkpoints, "best")
    except CheckpointError as error:
        raise UserError(f"train.init_from = {recipe.train.init_from!r}: {error}") from error


def _with_resolved(recipe: Recipe, run: RunFolder) -> Recipe:
    """The recipe with what the run has already found out for "auto"."""
    return _with_found_before(recipe, load_recipe(run.recipe)) if run.recipe.exists() else recipe


def _workers_found_before(recipe: Recipe, run: RunFolder) -> int | str | None:
    """What "auto" was found to be when the run was begun: only then has it another number than the recipe's file."""
    before = load_recipe(run.recipe) if run.recipe.exists() else recipe
    return before.train.workers if before.train.workers != recipe.train.workers else None


def _with_mirrored(recipe: Recipe) -> Recipe:
    """The recipe with what was found out for "auto" where the run began, if its checkpoints are at an address; the
    number of workers is this machine's own."""
    if recipe.checkpoint.mirror is None:
        return recipe
    with tempfile.TemporaryDirectory() as folder:
        theirs = RunFolder(Path(folder)).recipe
        address = f"{recipe.checkpoint.mirror.rstrip('/')}/{theirs.name}"
        if not has_file(address):
            return recipe
        get_file(address, theirs)
        found = _with_workers(_with_found_before(recipe, load_recipe(theirs)), recipe.train.workers)
        refuse_another_s(recipe.checkpoint.mirror, load_recipe(theirs), found)
        return found


def _with_found_before(recipe: Recipe, before: Recipe) -> Recipe:
    checkpoint, train = recipe.checkpoint, recipe.train
    if checkpoint.every == "auto":
        checkpoint = checkpoint.model_copy(update={"every": before.checkpoint.every})
    if train.workers == "auto":
        train = train.model_copy(update={"workers": before.train.workers})
    old = before.train
    if isinstance(train, TranslationTrain) and isinstance(old, TranslationTrain) and train.batch == "auto":
        found = {"batch": old.batch, "batch_tokens": old.batch_tokens}
        train = train.model_copy(update=found)
    recipe = recipe.model_copy(update={"checkpoint": checkpoint, "train": train})
    exchange = found_in(before)
    return with_found(recipe, exchange) if train.exchange == "auto" and exchange else recipe


def _must_measure(recipe: Recipe, options: TrainOptions) -> bool:
    workers = wanted_workers(options, recipe)
    is_batch_open = isinstance(recipe.train, TranslationTrain) and recipe.train.batch == "auto"
    return is_batch_open or (workers.is_auto and options.cluster is None)


def _with_measured(recipe: Recipe, prepared: AnyPrepared, options: TrainOptions, console: Console) -> Recipe:
    """The recipe with what a few steps on this machine tell about "auto"."""
    wanted = wanted_workers(options, recipe)
    if options.workers is not None and options.workers.is_auto and not wanted.is_auto:
        console.print(f'workers = "auto" is {wanted}, as the run was begun', highlight=False)
    recipe = resolve_batch(recipe, prepared, wanted, console)
    if not wanted.is_auto or options.cluster is not None:
        return recipe
    return _with_workers(recipe, find_workers(recipe, prepared, console).most)


def _with_workers(recipe: Recipe, workers: int | str) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"workers": workers})})


def write_run(run: RunFolder, recipe: Recipe, prepared: AnyPrepared) -> None:
    """Put what the workers need, and where the run comes from, into its folder."""
    write_atomically(run.recipe, dump_recipe(recipe))
    write_json(run.data, {"folder": str(prepared.folder.resolve()), "key": prepared.key})
    if isinstance(prepared, PreparedImages):
        write_json(run.images, prepared.what_classifying_needs())
    else:
        write_atomically(run.tokeniser, prepared.tokeniser_path.read_bytes())
    write_json(run.provenance, [*_earlier_starts(run), collect_provenance()])


def _earlier_starts(run: RunFolder) -> list[Any]:
    """What the provenance says so far; a damaged one is put aside, as training can do without."""
    try:
        starts = read_json(run.provenance)
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        starts = None
    if isinstance(starts, list):
        return starts
    run.provenance.replace(run.provenance.with_name(f"damaged-{time.time_ns()}-{run.provenance.name}"))
    return []


def best_valid(run: RunFolder, metric: str) -> dict[str, Any] | None:
    """The best validation scores so far, with their step."""
    records = [
        r for r in read_records(run.worker_records(0)) if r["kind"] == "valid" and r.get(metric) is not None
    ]
    if not records:
        return None
    best = (min if metric in LOWER_IS_BETTER else max)(records, key=lambda record: float(record[metric]))
    return {name: value for name, value in best.items() if name not in ("kind", "time", "seconds")}


def test_scores(run: RunFolder) -> dict[str, Any]:
    """The test scores, where the run has been scored."""
    scores = read_scores(run, "test")
    return {} if scores is None else {"test": scores}


def remove_run(run: RunFolder) -> None:
    """Delete a run that nobody is training."""
    run.require()
    if run.path.is_symlink():
        raise RunError(f"{run.path}: is a link; remove the folder {run.path.resolve()} and the link yourself")
    if run.is_locked():
        raise RunError(f"{run.path}: is being trained; stop it first")
    remove_folder(run.path)
