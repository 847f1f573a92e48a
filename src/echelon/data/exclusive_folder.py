"""A folder that is either complete or absent, even if its maker is killed.

with exclusive(folder) as partial:      # waits while another process makes the same folder
    if not folder.exists():
        ...                           # write into `partial`
        publish(partial, folder)
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from echelon.runfolder import sync_to_disk

PARTIAL = ".partial"
LOCK = ".lock"

OnWait = Callable[[], None]
"""Called once if another process holds the lock."""


@contextmanager
def exclusive(folder: Path, on_wait: OnWait = lambda: None) -> Iterator[Path]:
    """Hold the exclusive right to make `folder`, and yield an empty folder beside it to make it in."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder.parent)
    partial = _beside(folder, PARTIAL)
    with locked(_beside(folder, LOCK), on_wait):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path, on_wait: OnWait = lambda: None) -> Iterator[None]:
    """Wait until no other process holds the same path; its lock file is removed afterwards."""
    lock = _lock(path, wait=False)
    if lock is None:
        on_wait()
        lock = _lock(path, wait=True)
    assert lock is not None
    try:
        yield
    finally:
        _unlock(path, lock)


def publish(partial: Path, folder: Path) -> None:
    """Give the finished folder its name, once all of it is on the disk."""
    for path in [*partial.iterdir(), partial]:
        sync_to_disk(path)
    partial.rename(folder)
    sync_to_disk(folder.parent)


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left behind: partial folders whose lock is free."""
    for path in {*parent.glob(f"*{LOCK}"), *parent.glob(f"*{PARTIAL}")}:
        folder = path.with_suffix("")
        with suppress(PermissionError):  # another user's, in a shared cache
            lock = _lock(_beside(folder, LOCK), wait=False)
            if lock is not None:
                shutil.rmtree(_beside(folder, PARTIAL), ignore_errors=True)
                _unlock(_beside(folder, LOCK), lock)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(folder.name + suffix)


def _lock(path: Path, *, wait: bool) -> int | None:
    """Lock a file and return its descriptor; None if it is held and we don't wait."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(
            descriptor
        )  # its holder removed the file while we waited: lock the one that has its name now


def _unlock(path: Path, descriptor: int) -> None:
    path.unlink(missing_ok=True)  # before unlocking, so that no process locks a file about to vanish
    os.close(descriptor)
