"""Where curves go beside the records: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol

from echelon.addresses import fill_in
from echelon.errors import UserError
from echelon.extras import install_hint
from echelon.monitor.heartbeat import Heart
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import flat_settings
from echelon.runfolder import RunFolder, read_json, write_json

_LONGEST_PARAMETER = 500
"""Letters that MLflow takes."""
_MOST_WAITING = 10_000
_PATIENCE_S = 30.0
_FLUSH_S = 10
"""How often TensorBoard's files are written."""


class Tracker(Protocol):
    """Takes numbers and texts by step."""

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        """`at`: when, in seconds since 1970."""

    def text(self, name: str, text: str, step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Writes TensorBoard event files; a resumed run hides what the interrupted one wrote past its checkpoint."""

    def __init__(self, run: RunFolder, first_step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(run.tensorboard), purge_step=first_step, flush_secs=_FLUSH_S)

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=at)

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        self._writer.close()


class MlflowTracker:
    """Logs to an MLflow tracking store, which is asked for nothing before the first point; a resumed run
    continues in the same MLflow run."""

    def __init__(self, run: RunFolder, recipe: Recipe, store: str) -> None:
        address = _store_address(store)
        if address.startswith("file:"):
            os.environ.setdefault(
                "MLFLOW_ALLOW_FILE_STORE", "true"
            )  # MLflow 3 asks whether a folder is meant
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _missing("track.mlflow", "mlflow") from None
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=fill_in(address))
        self._begin = partial(self._begin_run, run, recipe)
        self._known_id = _known(run, "mlflow")

    @property
    def _run_id(self) -> str:
        self._known_id = self._known_id or self._begin()
        return self._known_id

    def _begin_run(self, run: RunFolder, recipe: Recipe) -> str:
        experiment = self._client.get_experiment_by_name(recipe.name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(recipe.name)
        run_id: str = self._client.create_run(number, run_name=run.name).info.run_id
        for key, value in flat_settings(recipe).items():
            self._client.log_param(run_id, key, value[:_LONGEST_PARAMETER])
        _remember(run, "mlflow", run_id)
        return run_id

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        at_ms = round(at * 1000)
        self._client.log_batch(
            self._run_id, [self._metric(name, float(value), at_ms, step) for name, value in values.items()]
        )

    def text(self, name: str, text: str, step: int) -> None:
        self._client.log_text(self._run_id, text, f"{name}-step-{step:08d}.md")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class WandbTracker:
    """Logs to Weights & Biases; a resumed run continues under the same id."""

    def __init__(self, run: RunFolder, recipe: Recipe, mode: Literal["offline", "online"]) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("track.wandb", "wandb") from None
        known = _known(run, "wandb") or secrets.token_hex(4)
        _remember(run, "wandb", known)
        self._begin = partial(
            wandb.init,
            project=recipe.name,
            name=run.name,
            id=known,
            resume="allow",
            mode=mode,
            dir=str(run.path),
            config=recipe.model_dump(),
            settings=wandb.Settings(console="off", silent=True),
        )

    @cached_property
    def _run(self) -> Any:
        """Started with the first point."""
        return self._begin()

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        self._run.log(values, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()


class BehindTracker:
    """Hands everything on to another tracker in a thread, so that training never waits for a server or a disk.

    After its first error, or when it falls far behind, the other gets nothing more, and the records say so once.
    """

    def __init__(self, name: str, other: Tracker, records: RecordWriter, heart: Heart) -> None:
        self._name, self._other, self._records, self._heart = name, other, records, heart
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)
        self._is_broken = False
        self._thread = threading.Thread(target=self._hand_on, name=f"track-{name}", daemon=True)
        self._thread.start()

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        self._later(partial(self._other.scalars, values, step, at))

    def text(self, name: str, text: str, step: int) -> None:
        self._later(partial(self._other.text, name, text, step))

    def close(self) -> None:
        """Hand on what waits, for as long as training can wait."""
        self._later(self._other.close)
        self._later(None)
        deadline = time.monotonic() + _PATIENCE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(min(1.0, _PATIENCE_S))
            self._heart.beat()
        if self._thread.is_alive():
            self._break(f"it did not take the last points within {_PATIENCE_S:.0f} s")

    def _later(self, call: Callable[[], None] | None) -> None:
        if self._is_broken:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._break(f"it is {_MOST_WAITING:,} points behind")

    def _hand_on(self) -> None:
        while not self._is_broken and (call := self._calls.get()):
            try:
                call()
            except Exception as error:  # whatever a tracker's client raises
                self._break(str(error))

    def _break(self, why: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            _report(self._name, why, self._records)


def build_trackers(
    recipe: Recipe, run: RunFolder, first_step: int, records: RecordWriter, heart: Heart
) -> list[Tracker]:
    """The trackers that the recipe asks for, without those that the disk has no room for."""
    track = recipe.track
    wanted: dict[str, Callable[[], Tracker]] = {}
    if track.tensorboard:
        wanted["TensorBoard"] = partial(TensorBoardTracker, run, first_step)
    if track.mlflow is not None:
        wanted["MLflow"] = partial(MlflowTracker, run, recipe, track.mlflow)
    if track.wandb is not None:
        wanted["Weights & Biases"] = partial(WandbTracker, run, recipe, track.wandb)
    trackers: list[Tracker] = []
    for name, build in wanted.items():
        try:
            trackers.append(BehindTracker(name, build(), records, heart))
        except OSError as error:
            _report(name, str(error), records)
    return trackers


def _report(name: str, why: str, records: RecordWriter) -> None:
    records.write("event", message=f"{name} gets no more points: {why}; training continues")


def _missing(key: str, extra: str) -> UserError:
    return UserError(f"{key}: needs a package that is not here (extra {extra}); {install_hint(extra)}")


def _store_address(store: str) -> str:
    """What MLflow calls a store: folders get their full path."""
    return store if re.match(r"[a-z][a-z0-9+.-]*:", store) else Path(store).absolute().as_uri()


def _known(run: RunFolder, tracker: str) -> str | None:
    """The name by which a tracker already knows this run."""
    with contextlib.suppress(OSError, ValueError):
        names = read_json(run.trackers)
        if isinstance(names, dict) and isinstance(names.get(tracker), str):
            return str(names[tracker])
    return None


def _remember(run: RunFolder, tracker: str, name: str) -> None:
    names: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        names = dict(read_json(run.trackers))
    write_json(run.trackers, names | {tracker: name})
