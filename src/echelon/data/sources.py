"""Finds every file that a recipe names: beside it, under ECHELON_DATA, on a mirror, or in the download cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from echelon.addresses import is_web_address, redact_url
from echelon.data.accelerators import PlainLabels
from echelon.data.corpora import FilePair, PairFile, ParallelText, expand, resolve
from echelon.data.download import Wanted, fetch
from echelon.data.download_record import first_fetches, how_to_fetch_again
from echelon.data.embedded import EmbeddedSplit, EmbeddedText
from echelon.data.fingerprints import HashMemory
from echelon.data.prepared import InputEntry
from echelon.data.progress import Progress, ReportProgress, waiting
from echelon.data.streams import FileLocation
from echelon.data.subwords import SubwordText
from echelon.errors import DataError
from echelon.recipe import schema


@dataclass(frozen=True)
class Library:
    """Finds the files of a recipe's data, and downloads those that are missing."""

    data: schema.Data
    recipe_folder: Path
    cache: Path
    report: ReportProgress
    may_fetch: bool = True

    def find(self, name: str) -> Path:
        """The file's path; DataError if it is missing, or cannot be fetched."""
        wanted = self._wanted(name)
        if wanted is None:
            return resolve(name, self.recipe_folder)
        here = self._find_here(wanted)
        if here is not None:
            return here
        if not self.may_fetch:
            raise DataError(f"{redact_url(name)} is not here yet")
        on_wait = waiting(self.report, f"fetches {wanted.name}")
        return fetch(self._with_mirrors(wanted), self.downloads, self._teller(wanted.name), on_wait)

    @property
    def downloads(self) -> Path:
        return self.cache / "downloads"

    def check(self, path: Path, name: str, sha256: str) -> None:
        """DataError if the file that was found for a download is not the one that the recipe means."""
        wanted = self._wanted(name)
        if wanted is None:
            return
        size = path.stat().st_size
        if wanted.bytes not in (None, size):
            raise _other_file(path, f"{size:,} bytes", f"the recipe says {wanted.bytes:,}")
        if wanted.sha256 not in (None, sha256):
            raise _other_file(path, f"SHA-256 {sha256}", f"the recipe says {wanted.sha256}")
        if wanted.sha256 is None and path == self.downloads / wanted.name:
            first = first_fetches(self.downloads).get(wanted.name, {"sha256": sha256})
            if first["sha256"] != sha256:
                raise _other_file(path, f"SHA-256 {sha256}", f"had {first['sha256']} when it was fetched")

    def _wanted(self, name: str) -> Wanted | None:
        """What the recipe says to fetch under this name, if anything; an address names itself."""
        if is_web_address(name):
            last = urlsplit(name).path.rpartition("/")[2] or "index"
            return Wanted(f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{last}", [name])
        for download in self.data.download:
            if download.name == name:
                return Wanted(name, download.urls, download.bytes, download.sha256)
        return None

    def _find_here(self, wanted: Wanted) -> Path | None:
        with suppress(DataError):
            return resolve(wanted.name, self.recipe_folder)
        folders = self._mirror_folders()
        places = [folder / wanted.name for folder in [*folders, self.downloads]]
        flat = [folder / Path(wanted.name).name for folder in folders]
        found = [place for place in places if place.is_file()]
        # the last part of a name may be that of another file too, so there the size must be right
        found += [place for place in flat if place.is_file() and wanted.bytes in (None, place.stat().st_size)]
        return next(iter(found), None)

    def _mirror_folders(self) -> list[Path]:
        mirrors = (expand(mirror) for mirror in self.data.mirrors if not is_web_address(mirror))
        return [self.recipe_folder / mirror for mirror in mirrors]

    def _with_mirrors(self, wanted: Wanted) -> Wanted:
        for folder in self._mirror_folders():
            if not folder.is_dir():
                raise DataError(
                    f"data.mirrors: {folder} is no folder, and {wanted.name} is not here; correct it, or take it "
                    "out to fetch from the web"
                )
        mirrors = [
            f"{mirror.rstrip('/')}/{wanted.name}" for mirror in self.data.mirrors if is_web_address(mirror)
        ]
        return replace(wanted, urls=[*mirrors, *wanted.urls])

    def _teller(self, name: str) -> Callable[[int, int | None], None]:
        return lambda done, total: self.report(Progress("fetch", done, total or 0, "bytes", name))


def _other_file(path: Path, has: str, expected: str) -> DataError:
    return DataError(f"{path} has {has}, but {expected}; {how_to_fetch_again(path)}")


@dataclass(frozen=True)
class Sources:
    """All inputs of prepared data, located."""

    library: Library
    train: list[ParallelText]
    valid: ParallelText
    test: ParallelText | None
    tokeniser: Path | None
    names: dict[Path, str]
    """A file as the recipe names it."""

    def held_out(self) -> dict[str, ParallelText]:
        return {"valid": self.valid} if self.test is None else {"valid": self.valid, "test": self.test}

    def texts(self) -> dict[str, ParallelText]:
        return {**{f"train-{index}": text for index, text in enumerate(self.train)}, **self.held_out()}

    def files(self) -> list[Path]:
        return list(
            dict.fromkeys(place.path for text in self.texts().values() for place in text.places.values())
        )


def find_sources(library: Library, tokeniser: Path | None) -> Sources:
    """Find or download everything that the recipe's data names; `tokeniser` replaces the recipe's."""
    data = library.data
    names: dict[Path, str] = {}

    def find(name: str) -> Path:
        path = library.find(name)
        names[path] = name
        return path

    def open_text(corpus: schema.Corpus, split: EmbeddedSplit) -> ParallelText:
        if corpus.embedded:
            return EmbeddedText(split)

        def place(name: str) -> FileLocation:
            return (
                FileLocation(find(name))
                if corpus.archive is None
                else FileLocation(find(corpus.archive), name)
            )

        text: ParallelText
        if corpus.pairs is not None:
            first, second = corpus.columns
            languages = (data.source_language, data.target_language)
            text = PairFile(corpus.label, place(corpus.pairs), (first, second), languages)
        elif corpus.source is None or corpus.target is None:
            raise DataError(
                f"data.{split} needs both `source` and `target`, or `pairs`, or `embedded = true`"
            )
        else:
            text = FilePair(corpus.label, place(corpus.source), place(corpus.target))
        if corpus.pieces:
            return SubwordText(text)
        return text if corpus.accelerator is None else PlainLabels(text, corpus.accelerator)

    train = [open_text(corpus, "train") for corpus in data.train]
    valid = open_text(data.valid, "valid")
    test = None if data.test is None else open_text(data.test, "test")
    if tokeniser is None and data.tokeniser is not None:
        tokeniser = find(data.tokeniser)
    return Sources(library, train, valid, test, tokeniser, names)


def hash_inputs(sources: Sources) -> tuple[InputEntry, ...]:
    """A fingerprint of every input; a download must match the recipe."""
    memory = HashMemory(sources.library.cache / "hashes.json")
    files = sources.files()
    total = sum(path.stat().st_size for path in files)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        sources.library.report(Progress("hash", done, total, "bytes"))

    hashes = {path: memory.sha256(path, on_bytes) for path in files}
    if sources.tokeniser is not None:
        hashes[sources.tokeniser] = memory.sha256(sources.tokeniser)
    memory.save()
    for path, name in sources.names.items():
        sources.library.check(path, name, hashes[path])
    return tuple(_entries(sources, hashes))


def _entries(sources: Sources, hashes: dict[Path, str]) -> Iterator[InputEntry]:
    for name, text in sources.texts().items():
        for kind, place in text.places.items():
            member = "" if place.member is None else f"#{json.dumps(place.member)}"
            yield InputEntry(f"{name}.{kind}{member}", str(place), hashes[place.path])
        if isinstance(text, EmbeddedText):
            yield InputEntry(f"{name}.embedded", text.label, text.sha256)
    if sources.tokeniser is not None:
        yield InputEntry("tokeniser", str(sources.tokeniser), hashes[sources.tokeniser])
