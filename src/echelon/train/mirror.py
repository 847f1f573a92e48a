"""Checkpoints at an address as well: uploaded behind training by a thread, fetched where the run folder has none."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from echelon.errors import StoreError, UserError
from echelon.monitor.heartbeat import Heart
from echelon.monitor.records import RecordWriter
from echelon.recipe.continuing import refuse_another_s
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from echelon.store import (
    get_file,
    get_folder,
    has_file,
    list_folders,
    put_file,
    put_folder,
    remove_folder_at,
)
from echelon.train.checkpoint import best_beside, list_checkpoints

_WAIT_S = 1.0


class Mirror:
    """Keeps at an address what the run folder keeps. Only the run's first worker has one."""

    def __init__(
        self, address: str, run: RunFolder, records: RecordWriter, model_files: Sequence[Path]
    ) -> None:
        self._address = address.rstrip("/")
        self._run = run
        self._model_files = model_files
        self._records = records
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._upload_all, name="mirror", daemon=True)
        self._thread.start()

    def put(self, folder: Path) -> None:
        """Upload a checkpoint that is complete, when there is time."""
        self._waiting.put(folder)

    def finish(self, heart: Heart) -> None:
        """Return when everything is uploaded, with what makes a run of it; the heart beats meanwhile."""
        self._waiting.put(None)
        while self._thread.is_alive():
            self._thread.join(_WAIT_S)
            heart.beat()

    def _upload_all(self) -> None:
        while (folder := self._waiting.get()) is not None:
            if folder.is_dir():  # pruning may have been faster
                self._try(partial(self._upload, folder))
        self._try(self._upload_run)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (StoreError, UserError, OSError) as error:
            self._records.write("event", message=f"mirroring failed: {error}; training goes on")

    def _upload(self, folder: Path) -> None:
        put_folder(folder, f"{self._address}/checkpoints/{folder.name}")
        best = best_beside(folder)
        kept = {path.name for path in (*self._run.checkpoints.iterdir(), folder, *([best] if best else []))}
        for name in list_folders(f"{self._address}/checkpoints"):
            if name not in kept and name < folder.name:
                remove_folder_at(f"{self._address}/checkpoints/{name}")
        self._records.write("event", message=f"{folder.name} is at {self._address} too")

    def _upload_run(self) -> None:
        """What a checkpoint needs to be used and scored, and the scores."""
        scores = self._run.scores.iterdir() if self._run.scores.is_dir() else ()
        for file in (self._run.recipe, self._run.data, *self._model_files, *scores):
            if file.is_file():
                put_file(file, f"{self._address}/{file.relative_to(self._run.path).as_posix()}")


def fetch_newest(address: str, run: RunFolder, heart: Heart) -> list[str]:
    """Fetch the newest checkpoint at `address` where it is newer than all here, and the best where it is only there;
    their names. UserError where another run's are there. The recipe is put there first, so that no other run comes
    after this one."""
    _claim(address.rstrip("/"), run)
    root = f"{address.rstrip('/')}/checkpoints"
    there = {name for name in list_folders(root) if name.startswith("step-")}
    here = {checkpoint.folder.name for checkpoint in list_checkpoints(run.checkpoints)}
    fetched: list[str] = []

    def fetch(folder: Path | None) -> None:
        if folder is not None and folder.name in there - here - set(fetched):
            get_folder(f"{root}/{folder.name}", folder, heart.beat)
            fetched.append(folder.name)

    if there:
        newest = run.checkpoints / max(there | here)
        fetch(newest)
        fetch(best_beside(newest))
    return fetched


def _claim(address: str, run: RunFolder) -> None:
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder) / run.recipe.name
        if has_file(f"{address}/{run.recipe.name}"):
            get_file(f"{address}/{run.recipe.name}", theirs)
            refuse_another_s(address, load_recipe(theirs), load_recipe(run.recipe))
    put_file(run.recipe, f"{address}/{run.recipe.name}")
