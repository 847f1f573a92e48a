"""What preparation has finished so far, kept so that it resumes there after it was killed or failed.

clean.json          the cleaned corpora, once all of them are cleaned; *.temporary is their text
tokeniser.model     the vocabulary, once it is learnt

The folder is that of one key, so of the same inputs and settings. Its user holds the exclusive folder of that key.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pydantic import TypeAdapter, ValidationError

from echelon.data.training_text import CleanCorpus, TextBlock
from echelon.errors import DataError
from echelon.runfolder import sync_to_disk, write_atomically

CLEAN = "clean.json"
MODEL = "tokeniser.model"
KEPT_DAYS = 7
_CORPORA = TypeAdapter(list[CleanCorpus])


class ResumeState:
    """The folder of one preparation; removed on success, and if it cannot help or the disk is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> ResumeState:
        self.folder.mkdir(parents=True, exist_ok=True)
        os.utime(self.folder)  # in use again
        _remove_old(self.folder.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DataError | OSError) or error is None or not (self.folder / CLEAN).exists():
            self._remove()

    def clean_corpora(self) -> list[CleanCorpus] | None:
        """What was cleaned; None, and an empty folder, if that was unfinished or is damaged."""
        with suppress(OSError, ValidationError):
            corpora = _CORPORA.validate_json((self.folder / CLEAN).read_bytes())
            if _are_whole(corpora):
                return corpora
        self._remove()
        self.folder.mkdir(parents=True)
        return None

    def keep_clean(self, corpora: list[CleanCorpus]) -> None:
        for path in {path for block in _blocks(corpora) for path in (block.path, block.kept) if path}:
            sync_to_disk(path)  # before the file that says that they are there
        write_atomically(self.folder / CLEAN, _CORPORA.dump_json(corpora))

    def model(self) -> bytes | None:
        with suppress(OSError):
            return (self.folder / MODEL).read_bytes()
        return None

    def keep_model(self, model: bytes) -> None:
        write_atomically(self.folder / MODEL, model)

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _blocks(corpora: list[CleanCorpus]) -> list[TextBlock]:
    return [block for corpus in corpora for block in corpus.blocks]


def _are_whole(corpora: list[CleanCorpus]) -> bool:
    """Whether the cleaned text is complete: a machine that crashed may have lost its end."""
    sizes: dict[Path, int] = {}
    for block in _blocks(corpora):  # what each file must have; a later block tells more of it
        sizes[block.path] = block.offset_bytes + block.size_bytes
        if block.kept is not None:
            sizes[block.kept] = block.first_pair + block.pairs
    return all(path.stat().st_size == size for path, size in sizes.items())


def _remove_old(parent: Path) -> None:
    """Remove state that has not been resumed for days: it takes as much room as the corpus."""
    with suppress(OSError):
        for folder in parent.iterdir():
            if time.time() - folder.stat().st_mtime > KEPT_DAYS * 86400:
                shutil.rmtree(folder, ignore_errors=True)
