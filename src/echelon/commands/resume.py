"""Resuming a run: with its own recipe or with one that may differ, on the data that it was begun with."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from echelon.agent.inquiry import HostAnswer
from echelon.cluster.roster import open_sessions, read_roster
from echelon.cluster.status import ask_hosts
from echelon.data.batch_plan import AnyPrepared, open_data, steps_per_epoch
from echelon.data.run_data import find_run_data
from echelon.errors import DataError, RunError
from echelon.launch.hosts import Host
from echelon.monitor.records import read_records
from echelon.recipe.compatibility import find_changes
from echelon.recipe.length import length_in_steps
from echelon.recipe.loading import load_recipe
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.schema import Recipe, Train
from echelon.runfolder import RunFolder, read_json

_LENGTH_KEYS = ("train.steps", "train.epochs")
_SAME_RATE = 0.01
"""Relative difference of two learning rates below which no note is shown."""


def is_own_recipe(recipe: Path, run: RunFolder) -> bool:
    """Whether a recipe is the one in the run's folder: then the run is resumed as it was begun."""
    return recipe.resolve() == run.recipe.resolve()


def load_own_recipe(run: RunFolder, overrides: Sequence[str]) -> Recipe:
    """The recipe that a run was begun with, without a `train.stop_at` that it has reached."""
    recipe = load_recipe(run.require().recipe, overrides)
    stop_at = recipe.train.stop_at
    is_asked = any(override.startswith("train.stop_at=") for override in overrides)
    if stop_at is None or is_asked or last_step(run) < stop_at:
        return recipe
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"stop_at": None})})


def open_own_data(run: RunFolder, recipe: Recipe) -> AnyPrepared:
    """The data that a run was begun with, found without the recipe's folder."""
    named = find_run_data(run)
    try:
        prepared = open_data(recipe, named.folder)
    except DataError as error:
        raise RunError(
            f"{run.path}: its prepared data cannot be used ({error}); give its recipe, which prepares them again: "
            f"echelon train RECIPE --run {run.path}"
        ) from error
    named.check(prepared.key)
    return prepared


def refuse_other_recipe(run: RunFolder, recipe: Recipe, overrides: Sequence[str]) -> None:
    """A run is resumed with the recipe it was begun with, except for what does not change the model it trains.

    Another length is a change of the schedule, too: it must be asked for on the command line.
    """
    if not run.recipe.exists():
        return
    before = load_recipe(run.recipe)
    if changed := find_changes(before, recipe):
        raise RunError(
            f"{run.path}: was begun with another recipe ({', '.join(changed)} changed); undo that, give --as-before "
            "to resume it as it was begun, or use --run to begin a new run"
        )
    is_asked = any(override.partition("=")[0].strip() in _LENGTH_KEYS for override in overrides)
    if _length(before.train) != _length(recipe.train) and not is_asked and last_step(run):
        train = recipe.train
        flag = f"--steps {train.steps}" if train.steps is not None else f"--epochs {train.epochs:g}"
        raise RunError(
            f"{run.path}: was begun with {format_length(before.train)} and the recipe now says "
            f"{format_length(train)}; give --as-before to keep {format_length(before.train)}, or {flag} to change it"
        )


def refuse_other_data(run: RunFolder, prepared: AnyPrepared) -> None:
    """The same recipe means other data if the files it names have changed."""
    if not run.data.exists():
        return
    try:
        key = read_json(run.data)["key"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(
            f"{run.data}: is damaged, so nobody knows which data the run was begun with; "
            "if the recipe's files are as they were, delete it and start again"
        ) from None
    if key != prepared.key:
        raise RunError(
            f"{run.path}: was begun with other data, the files that the recipe names have changed since; "
            "bring them back, or use --run to begin a new run"
        )


def refuse_to_leave_hosts(run: RunFolder) -> None:
    """RunError if a run was trained on hosts and nothing says that it is to be resumed on this machine."""
    if not run.hosts.exists():
        return
    there = f"echelon train {run.path} --hosts HOSTS"
    with contextlib.suppress(RunError):  # another user's hosts go into no command
        roster = read_roster(run)
        assert roster is not None
        hosts = [str(Host(entry.host.name, entry.host.workers)) for entry in roster.entries]
        there = f"echelon train {run.path} --hosts {','.join(hosts)}"
        if roster.ray:
            there = f"echelon train {run.path} --launcher ray --address {roster.ray.address}"
            there += f" --workers {roster.entries[0].host.workers}"
        there += f" --ssh-config {roster.ssh_config}" if roster.ssh_config else ""
        there += f" --container {roster.container}" if roster.container else ""
    raise RunError(
        f"{run.path}: was trained on hosts; `{there}` resumes it there, and `echelon train {run.path} --workers N` on "
        "this machine"
    )


def leave_hosts(run: RunFolder) -> None:
    """Forget the hosts of a run that is trained on this machine from now on, so that `status`, `watch` and `stop` look
    for it here; RunError if they are training it."""
    roster = None
    with contextlib.suppress(RunError):  # another user's hosts are not asked
        roster = read_roster(run)
    if roster is not None:
        with open_sessions(roster) as sessions:
            answers = ask_hosts(sessions, run)
        if any(isinstance(answer, HostAnswer) and answer.is_running for answer in answers):
            raise RunError(
                f"{run.path}: is being trained on its hosts; `echelon stop {run.path}` stops it there"
            )
    run.hosts.unlink(missing_ok=True)


def length_note(before: Recipe, now: Recipe, prepared: AnyPrepared, step: int) -> str | None:
    """What to tell the user if a resumed run becomes longer or shorter; None if it does not."""
    old, new = (length_in_steps(recipe.train, steps_per_epoch(recipe, prepared)) for recipe in (before, now))
    if old == new or not step:
        return None
    planned, actual = (
        rate_by_step(before, old)(min(step + 1, old)),
        rate_by_step(now, new)(min(step + 1, new)),
    )
    note = f"note: the run's length changes from {old:,} to {new:,} steps"
    if abs(planned - actual) <= _SAME_RATE * max(planned, actual):
        return note
    return f"{note}, and the learning rate at step {step + 1:,} from {planned:.2g} to {actual:.2g}"


def last_step(run: RunFolder, kind: str = "step") -> int:
    """The last step that worker 0 wrote such a record of; 0 if there is none."""
    records = [record for record in read_records(run.worker_records(0)) if record["kind"] == kind]
    return int(records[-1].get("step") or 0) if records else 0


def format_length(train: Train) -> str:
    """`300 steps`, `2 epochs`."""
    return f"{train.steps:,} steps" if train.steps is not None else f"{train.epochs:g} epochs"


def _length(train: Train) -> tuple[int | None, float | None]:
    return train.steps, train.epochs
