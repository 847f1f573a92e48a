"""Prepares the text files that a recipe names; prepared data are made once and found again by content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from echelon.data import stages
from echelon.data.cleaning import CLEANING_VERSION
from echelon.data.exclusive_folder import exclusive, publish
from echelon.data.fingerprints import sha256_of_file
from echelon.data.pool import ordered_map
from echelon.data.prepared import (
    FORMAT_VERSION,
    MANIFEST,
    TOKENISER,
    InputEntry,
    Manifest,
    Prepared,
    open_prepared,
)
from echelon.data.progress import Progress, ReportProgress, waiting
from echelon.data.resume_state import ResumeState
from echelon.data.shards import FileEntry
from echelon.data.sources import Library, Sources, find_sources, hash_inputs
from echelon.data.stages import Encoded, Preparation
from echelon.data.subwords import SubwordText, check_plain, check_subwords
from echelon.data.tokeniser import Tokeniser
from echelon.errors import DataError
from echelon.recipe import schema
from echelon.store import get_folder

POOL_FROM_BYTES = 1_500_000
"""Below this, starting more processes takes longer than they save."""


def ignore(progress: Progress) -> None:
    """Discard a report."""


def default_cache() -> Path:
    """Where prepared data are kept: $ECHELON_CACHE, else ~/.cache/echelon."""
    return Path(os.environ.get("ECHELON_CACHE") or Path.home() / ".cache" / "echelon")


def prepare(
    data: schema.Data,
    *,
    recipe_folder: Path,
    cache: Path,
    tokeniser: Path | None = None,
    progress: ReportProgress = ignore,
) -> Prepared:
    """Prepare the data of a recipe, or find them prepared.

    `tokeniser` is a SentencePiece model to use instead of learning one. If this process is killed on the way,
    nothing is left that could be taken for prepared data. The next call resumes with what was fetched, cleaned and
    learnt.
    """
    with explaining_disk_errors(cache):
        sources = find_sources(Library(data, recipe_folder, cache, progress), tokeniser)
    stamps = _time_stamps(sources)
    inputs = hash_inputs(sources)
    settings = _settings(data, has_tokeniser=sources.tokeniser is not None)
    key = _key(settings, inputs)
    state = ResumeState(cache / "halfway" / key)

    def build(unfinished: Path) -> None:
        corpora = _build(data, sources, unfinished, state, progress)
        _check_unchanged(sources, stamps)
        _write_manifest(unfinished, data, corpora, key=key, inputs=inputs, settings=settings)

    return open_prepared(make_once(cache, key, progress, build, state))


def make_once(
    cache: Path,
    key: str,
    progress: ReportProgress,
    build: Callable[[Path], None],
    state: AbstractContextManager[object] | None = None,
) -> Path:
    """The folder of prepared data with that key; unless it is there, `build` makes it, in one process at a time.

    `state`, which `build` may resume from, is left once the folder is published.
    """
    folder = prepared_folder(cache, key)
    if not folder.exists():
        on_wait = waiting(progress, f"makes {folder}")
        with explaining_disk_errors(cache), exclusive(folder, on_wait) as unfinished:
            if not folder.exists():  # the process that we waited for may have made it
                with state or nullcontext():
                    build(unfinished)
                    publish(unfinished, folder)
    return folder


def find_prepared(
    data: schema.Data, *, recipe_folder: Path, cache: Path, tokeniser: Path | None = None
) -> Prepared | None:
    """A recipe's prepared data; None if they are not prepared yet, or the inputs are missing."""
    try:
        sources = find_sources(Library(data, recipe_folder, cache, ignore, may_fetch=False), tokeniser)
        inputs = hash_inputs(sources)
    except DataError:
        return None
    folder = prepared_folder(
        cache, _key(_settings(data, has_tokeniser=sources.tokeniser is not None), inputs)
    )
    return open_prepared(folder) if folder.exists() else None


def fetch_prepared(data: schema.Data, cache: Path) -> Prepared:
    """The data at the address that `data.prepared` names, kept in the cache; DataError if they are others'."""
    assert data.prepared is not None
    folder = _fetched_folder(data, cache)
    get_folder(data.prepared, folder)
    prepared = open_prepared(folder)
    allowed = [_settings(data, has_tokeniser=has_tokeniser) for has_tokeniser in (True, False)]
    if prepared.key != folder.name or prepared.manifest.settings not in allowed:
        raise DataError(
            f"{data.prepared}: was prepared with other settings than the recipe's [data]; prepare it again, with --to"
        )
    return prepared


def find_fetched(data: schema.Data, cache: Path) -> Prepared | None:
    """Like `fetch_prepared`, but only from the cache."""
    return fetch_prepared(data, cache) if _fetched_folder(data, cache).exists() else None


def _fetched_folder(data: schema.Data, cache: Path) -> Path:
    assert data.prepared is not None
    return prepared_folder(cache, data.prepared.rstrip("/").rpartition("/")[2])


def prepared_folder(cache: Path, key: str) -> Path:
    """The folder of prepared data with that key."""
    return cache / "prepared" / key


def _settings(data: schema.Data, *, has_tokeniser: bool) -> dict[str, Any]:
    """The settings that affect prepared data; weights and max_tokens only affect batches."""
    settings = data.model_dump(include={"source_language", "target_language", "clean"})
    settings["cleaning"] = CLEANING_VERSION
    return settings if has_tokeniser else {**settings, "vocabulary": data.vocabulary}


def _key(settings: dict[str, Any], inputs: tuple[InputEntry, ...]) -> str:
    named = [[entry.name, entry.sha256] for entry in inputs]
    canonical = json.dumps([FORMAT_VERSION, settings, named], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@contextmanager
def explaining_disk_errors(cache: Path) -> Iterator[None]:
    """Turn a full or read-only disk into a DataError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left on the disk of {cache}; free some, or set ECHELON_CACHE to another disk"
        else:
            message = (
                f"cannot write into {cache}: {error.strerror or error}; set ECHELON_CACHE to another folder"
            )
        raise DataError(message) from error


def _time_stamps(sources: Sources) -> dict[Path, tuple[int, int]]:
    return {path: ((status := path.stat()).st_size, status.st_mtime_ns) for path in sources.files()}


def _check_unchanged(sources: Sources, stamps: dict[Path, tuple[int, int]]) -> None:
    for path, stamp in _time_stamps(sources).items():
        if stamp != stamps[path]:
            raise DataError(f"{path} changed while it was being read; prepare again when it is complete")


def _build(
    data: schema.Data, sources: Sources, folder: Path, state: ResumeState, progress: ReportProgress
) -> list[Encoded]:
    """Make everything but the manifest, reusing what an earlier process finished."""
    size_bytes = sum(text.size_bytes for text in sources.train)
    workers = len(os.sched_getaffinity(0)) if size_bytes >= POOL_FROM_BYTES else 1
    model = folder / TOKENISER
    with ordered_map(workers) as in_order:
        preparation = Preparation(folder, state, in_order, progress)
        stages.check_held_out(sources.held_out().values())
        check_plain(sources.held_out().values())
        if sources.tokeniser is not None:
            _check_tokeniser(sources, sources.tokeniser)
        corpora = stages.clean(sources.train, data.clean, preparation)
        if sources.tokeniser is None:
            model.write_bytes(stages.learn_vocabulary(corpora, data.vocabulary, preparation))
        else:
            model.write_bytes(sources.tokeniser.read_bytes())
        encoded = stages.encode_training(corpora, model, preparation)
        for name, text in sources.held_out().items():
            encoded.append(
                stages.encode_text(
                    name, text, data.clean.unicode, model, folder, in_order=preparation.in_order
                )
            )
    return encoded


def _check_tokeniser(sources: Sources, tokeniser: Path) -> None:
    loaded = Tokeniser.load(tokeniser)
    for text in sources.texts().values():
        if isinstance(text, SubwordText):
            check_subwords(text, loaded)


def _write_manifest(
    folder: Path,
    data: schema.Data,
    corpora: list[Encoded],
    *,
    key: str,
    inputs: tuple[InputEntry, ...],
    settings: dict[str, Any],
) -> None:
    tokeniser = folder / TOKENISER
    files = [FileEntry(TOKENISER, tokeniser.stat().st_size, sha256_of_file(tokeniser))]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        key=key,
        source_language=data.source_language,
        target_language=data.target_language,
        vocabulary=Tokeniser.load(tokeniser).size,
        corpora=tuple(corpus.entry for corpus in corpora),
        inputs=inputs,
        settings=settings,
        files=tuple(files + [file for corpus in corpora for file in corpus.files]),
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())
