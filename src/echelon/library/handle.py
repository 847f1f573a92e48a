"""A run as an object of Python: everything is read from its folder when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from echelon.commands.runs import RunSummary, summarise
from echelon.commands.training import best_valid
from echelon.errors import TrainingError
from echelon.explain.history import read_history
from echelon.library.columns import TableForm, as_columns, as_form
from echelon.library.events import Event, events_of
from echelon.monitor.records import RecordReader, read_records
from echelon.monitor.run_state import read_state
from echelon.monitor.scores import read_scores
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder, find_run

if TYPE_CHECKING:
    from torch import Tensor

    from echelon.commands.report import ReportForm

POLL_S = 0.2


class Run:
    """One training run. Iterating over it yields its events from the beginning, and, while it trains, those to come."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def name(self) -> str:
        return self._folder.name

    @property
    def recipe(self) -> Recipe:
        """The recipe that it is trained with, every "auto" resolved."""
        return load_recipe(self._folder.recipe)

    @property
    def state(self) -> str:
        """training, finished, stopped early, interrupted, paused, or not started."""
        return read_state(self._folder).name

    @property
    def step(self) -> int:
        """The last step that was made."""
        return read_state(self._folder).step

    @property
    def is_training(self) -> bool:
        return self._folder.is_locked()

    def summary(self) -> RunSummary:
        """What `echelon runs` shows of it."""
        return summarise(self._folder)

    def __iter__(self) -> Iterator[Event]:
        reader = RecordReader(self._folder.worker_records(0))
        is_training = True
        while is_training:
            is_training = self.is_training  # asked before reading: what is written last is still read
            yield from events_of(reader.read())
            if is_training:
                time.sleep(POLL_S)

    def wait(self, on_event: Callable[[Event], object] | None = None) -> Run:
        """Wait until it is no longer being trained; TrainingError if it failed.

        KeyboardInterrupt only ends the waiting; `stop` ends the training.
        """
        for event in self:
            if on_event is not None:
                on_event(event)
        last = next(
            (r for r in reversed(read_records(self._folder.launcher_records)) if r["kind"] == "failure"), None
        )
        if last is not None and float(last.get("time") or 0) > self._last_start():
            raise TrainingError(str(last.get("message", "")))
        return self

    def _last_start(self) -> float:
        starts = [r for r in read_records(self._folder.worker_records(0)) if r["kind"] == "start"]
        return float(starts[-1].get("time") or 0) if starts else 0.0

    def stop(self, *, now: bool = False) -> None:
        """Have a run that trains in the background, or on hosts, save and leave; `now` ends it at once."""
        from echelon.commands.stop import stop

        stop(self._folder, now=now)

    def metrics(self, of: Literal["steps", "scores"] = "steps", *, form: TableForm = "columns") -> Any:
        """The measurements of every step, or of every scoring of the validation set: a list for each name.

        `form` "pandas" or "polars" gives a data frame; UserError if that package is not installed. A step that was
        repeated after a restart counts as it was made last.
        """
        history = read_history(self._folder)
        return as_form(as_columns(history.steps if of == "steps" else history.valid), form)

    def best(self, metric: str | None = None) -> dict[str, Any] | None:
        """The best scores on the validation set, with their step; by `checkpoint.best` of the recipe unless another
        metric is named. None before the first scoring."""
        return best_valid(self._folder, metric or self.recipe.checkpoint.best)

    def scores(self, name: str = "test") -> dict[str, Any] | None:
        """The scores on the test set, or on another that `echelon evaluate` has scored; None if there are none."""
        return read_scores(self._folder, name)

    def weights(self, which: str = "best") -> dict[str, Tensor]:
        """The model's tensors by name, for `load_state_dict`: of its best checkpoint, the "last", their "average", or
        the one of a name such as "step-00000100". Adapters (LoRA) are merged."""
        from echelon.train.weights import choose_weights

        return choose_weights(self._folder, which).tensors

    def report(self, form: ReportForm = "text") -> str:
        """Where time, bytes and money went, and what to improve: what `echelon report` prints."""
        from echelon.commands.report import make_reports, render_report

        return render_report(make_reports([self.path], None, None)[0], form)

    def __repr__(self) -> str:
        state = read_state(self._folder)
        words = [f"{state.name}, step {state.step:,}" + (f" of {state.steps:,}" if state.steps else "")]
        metric = self.recipe.checkpoint.best
        if (best := self.best()) is not None:
            words.append(f"best {metric} {best[metric]:.6g} at step {best['step']:,}")
        tested = (self.scores() or {}).get(metric)
        if tested is not None:
            words.append(f"test {metric} {tested:.6g}")
        return f"<Run {str(self.path)!r}: {'; '.join(words)}>"

    def _repr_html_(self) -> str:
        from echelon.library.notebook import render_run

        return render_run(self._folder, repr(self))


def load_run(path: str | Path) -> Run:
    """A run by its folder, or by its name below runs/; RunError if there is none."""
    return Run(find_run(path).require())
