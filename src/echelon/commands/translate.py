"""`translate`: lines in, lines out, from a terminal, a pipe or a file, by one process or several."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from echelon.data.corpora import LineReader
from echelon.errors import EchelonError, UserError
from echelon.inference.decoding import Translation
from echelon.inference.translator import LINES_AT_A_TIME, Translator, with_defaults
from echelon.monitor.bar import open_bars

_CHUNK = 256
"""Lines that one of several processes is given at a time."""


@dataclass(frozen=True)
class TranslateOptions:
    """Options of `translate`."""

    model: Path
    checkpoint: str | None
    changes: dict[str, Any]
    """Fields of `Decoding` in place of the recipe's; those that are None stay as they are."""
    prefix: str | None = None
    processes: int = 1


class Source:
    """Lines from stdin or from files, with their number if it is known."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.count = None if file is None or _is_stream(file) else sum(1 for _ in LineReader(file))
        self.is_terminal = file is None and sys.stdin.isatty()

    def __iter__(self) -> Iterator[str]:
        if self._file is None:
            sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")  # type: ignore[union-attr]
            return (line.rstrip("\n") for line in sys.stdin)
        lines = read_stream(self._file) if self.count is None else LineReader(self._file)
        return (line.decode("utf-8", "replace") for line in lines)


def read_stream(file: Path) -> Iterator[bytes]:
    """The lines of input that can be read only once, such as a shell's <(command)."""
    try:
        with open(file, "rb") as stream:
            for line in stream:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def _is_stream(file: Path) -> bool:
    """Whether it is a pipe or a device, not a file."""
    return file.is_fifo() or file.is_char_device()


def translate(options: TranslateOptions, source: Source, console: Console) -> Iterator[Translation]:
    """Translations in the order of the lines; a progress bar if the lines come from a file."""
    if source.count is None:
        yield from translate_all(options, source, _ignore)
        return
    with open_bars(console) as bars:
        task = bars.add_task(f"translating {source.count:,} lines", total=source.count)
        yield from translate_all(options, source, lambda lines: bars.update(task, completed=lines))


def _ignore(_: float) -> None:
    """Progress that is not shown."""


def translate_all(
    options: TranslateOptions, source: Source, show: Callable[[float], None]
) -> Iterator[Translation]:
    """The translations; `show` is called with the number of lines done, which counts batches of a chunk as they end."""
    if options.processes > 1:
        for number, translation in enumerate(translate_in_processes(options, source), start=1):
            yield translation
            show(number)
        return
    job, done = _TranslationJob(options, threads=None), 0
    for chunk in _in_chunks(source, 1 if source.is_terminal else LINES_AT_A_TIME):
        yield from job(chunk, partial(_show_within, show, done, len(chunk)))
        done += len(chunk)
        show(done)


def _show_within(show: Callable[[float], None], before: int, size: int, share: float) -> None:
    """Show progress within a chunk of `size` lines that has `before` lines before it."""
    show(before + share * size)


def translate_in_processes(options: TranslateOptions, lines: Iterable[str]) -> Iterator[Translation]:
    """Like `_translate_here`, by several processes, each with the model and its share of the cores."""
    from echelon.inference.model_folder import default_threads

    threads = max(1, default_threads() // options.processes)
    pool = ProcessPoolExecutor(
        options.processes, get_context("spawn"), initializer=_begin, initargs=(options, threads)
    )
    waiting: deque[Future[list[Translation]]] = deque()
    try:
        for batch in _in_chunks(lines, _CHUNK):
            waiting.append(pool.submit(_translate_chunk, batch))
            if len(waiting) > 2 * options.processes:  # a file without end must not be read to its end first
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise EchelonError(
            "a translating process has died, perhaps for want of memory; use fewer --processes"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _TranslationJob:
    """A loaded model with its options."""

    def __init__(self, options: TranslateOptions, threads: int | None) -> None:
        self._translator = Translator.load(options.model, checkpoint=options.checkpoint, threads=threads)
        self._decoding = with_defaults(self._translator.decoding, **options.changes)
        self._prefix = options.prefix

    def __call__(self, lines: list[str], on_batch: Callable[[float], None] = _ignore) -> list[Translation]:
        prefixes = None if self._prefix is None else [self._prefix] * len(lines)
        return self._translator.translate(lines, self._decoding, prefixes=prefixes, on_batch=on_batch)


_job: _TranslationJob | EchelonError | None = None
"""The loaded model of a pool's process."""


def _begin(options: TranslateOptions, threads: int) -> None:
    global _job
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        _job = _TranslationJob(options, threads)
    except EchelonError as error:  # an initialiser that raises would only be said to have died
        _job = error


def _translate_chunk(lines: list[str]) -> list[Translation]:
    if isinstance(_job, EchelonError):
        raise _job
    assert _job is not None
    return _job(lines)


def _in_chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    stream = iter(lines)
    while batch := list(islice(stream, size)):
        yield batch


def as_text(number: int, translation: Translation, *, with_scores: bool) -> str:
    """A line's translation; with scores every alternative on a line of its own: number, score, text."""
    if not with_scores:
        return f"{translation.text}\n"
    return "".join(f"{number}\t{one.score:.4f}\t{one.text}\n" for one in translation.alternatives)


def as_json(translation: Translation, *, with_scores: bool) -> Any:
    """The text alone, or the whole result."""
    if not with_scores and translation.alignment is None:
        return translation.text
    found: dict[str, Any] = {"text": translation.text, "score": translation.score}
    found["alternatives"] = [asdict(one) for one in translation.alternatives]
    if translation.alignment is not None:
        found["alignment"] = asdict(translation.alignment)
    return found


@contextlib.contextmanager
def open_output(file: Path | None) -> Iterator[TextIO]:
    """The output for translations: stdout, a pipe or device, or a file that appears only when complete."""
    if file is None:
        yield sys.stdout
        return
    if file.is_dir():
        raise UserError(f"{file}: is a folder; name a file in it")
    try:
        with _open_text(file) if _is_stream(file) else _open_whole(file.resolve()) as writer:
            yield writer
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _open_whole(file: Path) -> Iterator[TextIO]:
    """A file that gets its name at the end; its path is resolved, so a link to it stays a link."""
    part = file.with_name(f".{file.name}.part")
    try:
        with _open_text(part) as writer:
            yield writer
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _open_text(file: Path) -> TextIO:
    return open(file, "w", encoding="utf-8", newline="\n")
