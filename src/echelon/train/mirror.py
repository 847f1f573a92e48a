"""Checkpoints at an address as well: uploaded behind training by a thread, fetched if the run folder has none."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from echelon.errors import StoreError, UserError
from echelon.files.checkpoint_layout import best_beside, is_complete
from echelon.monitor.heartbeat import Heart
from echelon.monitor.records import RecordWriter
from echelon.recipe.compatibility import require_same_learning
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
    remove_unfinished,
)
from echelon.train.checkpoint import list_checkpoints

_WAIT_S = 1.0


class Mirror:
    """Keeps at an address what the run folder keeps: if uploads are slower than saves, the newest that there is time
    for, and the best. Only the run's first worker has one."""

    def __init__(
        self, address: str, run: RunFolder, records: RecordWriter, model_files: Sequence[Path]
    ) -> None:
        self._address = address.rstrip("/")
        self._run = run
        self._model_files = model_files
        self._records = records
        self._changed = threading.Condition()
        self._newest: Path | None = None
        self._is_over = False
        self.held: tuple[Path, ...] = ()
        """What is being uploaded, the best first, and must not be pruned meanwhile."""
        self._thread = threading.Thread(target=self._upload_all, name="mirror", daemon=True)
        self._thread.start()

    def put(self, folder: Path) -> None:
        """Upload a checkpoint that is complete, and the best that it names, unless a newer one comes first."""
        with self._changed:
            self._newest = folder
            self._changed.notify()

    def finish(self, heart: Heart) -> None:
        """Return when everything is uploaded, with the files that make it a run; the heart beats meanwhile."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        while self._thread.is_alive():
            self._thread.join(_WAIT_S)
            heart.beat()

    def _upload_all(self) -> None:
        while (folder := self._take_newest()) is not None:
            self._try(partial(self._upload, folder))
            self.held = ()
        self._try(self._upload_run)

    def _take_newest(self) -> Path | None:
        """The newest checkpoint that waits, held from now on; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._is_over)
            folder, self._newest = self._newest, None
            if folder is not None:  # held before a newer one is put, after which it may be pruned
                best = best_beside(folder)
                self.held = (folder,) if best is None or best == folder else (best, folder)
            return folder

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (StoreError, UserError, OSError) as error:
            self._records.write("event", message=f"mirroring failed: {error}; training continues")

    def _upload(self, folder: Path) -> None:
        for held in self.held:
            if is_complete(held):  # the best may be at the address only
                self._put(held)
        root = f"{self._address}/checkpoints"
        here = {path.name for path in (*self._run.checkpoints.iterdir(), *self.held)}
        kept = here.intersection(list_folders(root))
        for name in list_folders(root, whole=False):  # also what uploads that were killed have left
            if name.startswith("step-") and name < folder.name and name not in kept:
                remove_folder_at(f"{root}/{name}")

    def _put(self, folder: Path) -> None:
        address = f"{self._address}/checkpoints/{folder.name}"
        try:
            is_new = put_folder(folder, address)
        except (StoreError, OSError):
            with contextlib.suppress(StoreError):
                remove_unfinished(address)
            raise
        if is_new:
            self._records.write("event", message=f"{folder.name} is at {self._address} too")

    def _upload_run(self) -> None:
        """What a checkpoint needs to be used and scored, and the scores."""
        scores = self._run.scores.iterdir() if self._run.scores.is_dir() else ()
        for file in (self._run.recipe, self._run.data, *self._model_files, *scores):
            if file.is_file():
                put_file(file, f"{self._address}/{file.relative_to(self._run.path).as_posix()}")


def fetch_newest(address: str, run: RunFolder, heart: Heart) -> list[str]:
    """Fetch the newest checkpoint at `address` if it is newer than all here, and the best if it is only there;
    returns their names. UserError if another run's are there. The recipe is put there first, so that no other run comes
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
            require_same_learning(address, load_recipe(theirs), load_recipe(run.recipe))
    put_file(run.recipe, f"{address}/{run.recipe.name}")
