"""`echelon.train`: what the command of that name does, called from Python.

The calling thread prepares the data and then shows progress and calls callbacks, all from the records that workers
write. The agent that looks after the workers runs in a thread of its own: it continues whatever the caller does.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.agent.outcome import RunOutcome
from echelon.commands.detached_training import detach
from echelon.commands.remote_training import train_on_hosts
from echelon.commands.training import (
    TrainOptions,
    begin,
    require_here,
    say_what_begins,
    tell_apart,
    train_here,
)
from echelon.console import SafeConsole, message_console
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.library.events import Callbacks, Caller, StopTraining, events_of
from echelon.library.handle import POLL_S, Run
from echelon.library.notebook import NotebookProgress, in_notebook
from echelon.library.recipes import as_overrides
from echelon.library.training_hosts import Hosts, as_hosts
from echelon.monitor.records import RecordReader
from echelon.recipe.loading import allow_named
from echelon.recipe.own_code import allow, paths_in
from echelon.recipe.schema import Recipe
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.runfolder import RunFolder


def train(
    recipe: Recipe | str | Path,
    *,
    workers: int | str | None = None,
    hosts: Hosts | Sequence[str] | str | None = None,
    run: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    wait: bool = True,
    show: bool = True,
) -> Run:
    """Prepare the data if needed, train with workers on this machine or on `hosts`, and score; the same call again
    resumes.

    `recipe` is an object, a file, or the folder of a run that is to be resumed. `settings` change it by dotted keys, as
    `--set` does: `{"train.steps": 100}`. The run's folder is runs/NAME unless `run` names another. `show` is progress:
    below a notebook's cell, or on stderr.

    KeyboardInterrupt saves before it is raised; so do SIGTERM and `echelon stop`, after which the run is returned. With
    `wait=False` training continues in a process of its own, which outlives this one, and the run is returned as soon
    as it trains; it then calls no callbacks, but `for event in run` follows it.
    """
    options = _options(recipe, run, workers, settings)
    if hosts is not None:
        options = replace(options, cluster=as_hosts(hosts).to_options(options.workers))
    is_quiet, is_drawn = not show, show and in_notebook()
    console = SafeConsole(quiet=True) if is_quiet or is_drawn else message_console()
    if options.cluster is None:
        require_here(options)
    if not wait:
        if hosts is not None:
            raise ValueError(
                "hosts need wait=True; `echelon train --hosts ... --detach` trains in the background"
            )
        if callbacks is not None:
            raise ValueError("callbacks need wait=True; `for event in run` follows a run in the background")
        with begin(options, console) as begun:
            folder = begun.run
        detach(["train", str(folder.path)], folder, console)
        return Run(folder)
    cluster, call = options.cluster, Caller(callbacks or Callbacks())
    with begin(options, console) as begun:
        progress = NotebookProgress(begun.run) if is_drawn else None
        if cluster is None:
            _see_through(begun.run, lambda stops: train_here(begun, console, stops), call, progress)
            return Run(begun.run)
        say_what_begins(begun, parse_workers(begun.recipe.train.workers), console)
    # Not locked any more: the agents of the hosts lock the run folder themselves.
    _see_through(begun.run, lambda stops: train_on_hosts(cluster, begun, console, stops), call, progress)
    return Run(begun.run)


def _options(
    recipe: Recipe | str | Path,
    run: str | Path | None,
    workers: int | str | None,
    settings: Mapping[str, Any] | None,
) -> TrainOptions:
    counted: WorkerRange | None = None if workers is None else parse_workers(workers)
    overrides = as_overrides(settings or {})
    folder = None if run is None else Path(run)
    allow(paths_in(dict(settings or {})))
    if isinstance(recipe, Recipe):
        # No file: its relative paths begin where this process is.
        return TrainOptions(Path(f"{recipe.name}.toml").absolute(), folder, counted, overrides, built=recipe)
    allow_named(Path(recipe))
    path, folder = tell_apart(Path(recipe), folder)
    return TrainOptions(path, folder, counted, overrides)


def _see_through(
    folder: RunFolder,
    work: Callable[[StopRequests], RunOutcome],
    call: Caller,
    progress: NotebookProgress | None,
) -> RunOutcome:
    """Train while showing and calling back; whatever ends this makes the workers save and leave first."""
    run, stops = Run(folder), StopRequests()
    reader = RecordReader(folder.worker_records(0), from_end=True)
    workers = _Background(lambda: work(stops))

    def follow() -> None:
        for event in events_of(reader.read()):
            call(event)
        if progress is not None:
            progress.update(repr(run), is_last=workers.ended.is_set())

    with signals_call(stops.ask, (signal.SIGTERM, signal.SIGHUP)):
        workers.start()
        try:
            while not workers.ended.wait(POLL_S):
                follow()
            follow()
        except BaseException as error:
            _end(workers, stops)
            if not isinstance(error, StopTraining):
                raise
    return workers.result()


def _end(workers: _Background, stops: StopRequests) -> None:
    """Have the workers save and leave, and wait; another KeyboardInterrupt ends them at once."""
    stops.ask()
    while not workers.ended.is_set():
        try:
            workers.ended.wait()
        except KeyboardInterrupt:
            stops.ask()


class _Background(threading.Thread):
    """A function that runs in a thread, with its result.

    `ended` is waited for, not the thread: a `join` that KeyboardInterrupt breaks off takes the thread for ended.
    """

    def __init__(self, work: Callable[[], RunOutcome]) -> None:
        super().__init__(name="echelon-train", daemon=True)
        self._work = work
        self.ended = threading.Event()
        self._outcome: RunOutcome | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._outcome = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> RunOutcome:
        """What the function returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome
