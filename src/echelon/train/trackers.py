"""Where curves go beside the records: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any, Literal, Protocol

from echelon.errors import UserError
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import flat_settings
from echelon.runfolder import RunFolder, read_json, write_json

_LONGEST_PARAMETER = 500
"""Letters that MLflow takes."""


class Tracker(Protocol):
    """Takes numbers and texts by step."""

    def scalars(self, values: dict[str, float], step: int) -> None: ...

    def text(self, name: str, text: str, step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Writes TensorBoard event files; a resumed run hides what the interrupted one wrote past its checkpoint."""

    def __init__(self, run: RunFolder, first_step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(run.tensorboard), purge_step=first_step, flush_secs=10)

    def scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        self._writer.close()


class MlflowTracker:
    """Logs to an MLflow tracking store; a resumed run goes on in the same MLflow run."""

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
        self._client = MlflowClient(tracking_uri=address)
        self._run_id = _known(run, "mlflow") or self._begin(run, recipe)

    def _begin(self, run: RunFolder, recipe: Recipe) -> str:
        experiment = self._client.get_experiment_by_name(recipe.name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(recipe.name)
        run_id: str = self._client.create_run(number, run_name=run.name).info.run_id
        for key, value in flat_settings(recipe).items():
            self._client.log_param(run_id, key, value[:_LONGEST_PARAMETER])
        _remember(run, "mlflow", run_id)
        return run_id

    def scalars(self, values: dict[str, float], step: int) -> None:
        now = round(time.time() * 1000)
        self._client.log_batch(
            self._run_id, [self._metric(name, float(value), now, step) for name, value in values.items()]
        )

    def text(self, name: str, text: str, step: int) -> None:
        self._client.log_text(self._run_id, text, f"{name}-step-{step:08d}.md")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class WandbTracker:
    """Logs to Weights & Biases; a resumed run goes on under the same id."""

    def __init__(self, run: RunFolder, recipe: Recipe, mode: Literal["offline", "online"]) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("track.wandb", "wandb") from None
        known = _known(run, "wandb") or secrets.token_hex(4)
        _remember(run, "wandb", known)
        self._run = wandb.init(
            project=recipe.name,
            name=run.name,
            id=known,
            resume="allow",
            mode=mode,
            dir=str(run.path),
            config=recipe.model_dump(),
            settings=wandb.Settings(console="off", silent=True),
        )

    def scalars(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()


def build_trackers(recipe: Recipe, run: RunFolder, first_step: int) -> list[Tracker]:
    track = recipe.track
    trackers: list[Tracker] = []
    if track.tensorboard:
        trackers.append(TensorBoardTracker(run, first_step))
    if track.mlflow is not None:
        trackers.append(MlflowTracker(run, recipe, track.mlflow))
    if track.wandb is not None:
        trackers.append(WandbTracker(run, recipe, track.wandb))
    return trackers


def _missing(key: str, extra: str) -> UserError:
    return UserError(f"{key}: needs a package that is not here; pip install 'echelon[{extra}]'")


def _store_address(store: str) -> str:
    """What MLflow calls a store: folders get their full path."""
    return store if re.match(r"[a-z][a-z0-9+.-]*:", store) else Path(store).absolute().as_uri()


def _known(run: RunFolder, tracker: str) -> str | None:
    """By which name a tracker knows this run already."""
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
