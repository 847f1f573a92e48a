"""Append-only records: one JSON object a line, each with its `kind` and the `time` it was written.

Kinds: `start`, `step`, `host`, `valid`, `sample`, `checkpoint`, `event`, `score`, `benchmark`, `failure`, `end`. Every
process has a file of its own; a reader may follow a file while it grows.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, TypeGuard

from echelon.errors import RunError
from echelon.recipe.tasks import all_scores
from echelon.runfolder import open_no_link, open_regular, parse_json, require_regular, to_json

Record = dict[str, Any]
"""One line of a file of records: its kind, its time and its values."""

_STEP = b'{"kind": "step",'
"""How the line of a step begins."""
COMPLETE = ("finished", "stopped early")
"""Outcomes after which a run has no more steps to make."""
_MOST_BYTES = 2**32
"""The largest file of records that is read: ten million steps fit."""
_MOST_LINE_BYTES = 2**24
_BATCH_LINES, _BATCH_BYTES = 1000, 2**22
"""How much is parsed at a time: up to these bytes, and the line that exceeds them."""
_END_BYTES = 2**15
"""How much of each end of a file is read for its first and last records."""
_MOST_WAITING_BYTES = 2**26
"""Records that wait for a full disk; later ones are lost."""


class RecordWriter:
    """Writes one process's records. Steps reach the file with the first record that comes `flush_s` seconds after
    the last flush; other kinds at once. Any thread may write.

    A full disk must not end a training: records wait in memory until there is room.
    """

    def __init__(self, path: Path, flush_s: float = 0.5) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A killed process may have left half a line; the next record begins a line of its own.
        self._waiting = bytearray(b"\n" if _ends_within_a_line(path) else b"")
        self._file: FileIO = open(  # noqa: SIM115 - open as long as the worker lives
            path, "ab", buffering=0, opener=open_no_link
        )
        self._flush_s = flush_s
        self._last_flush = time.monotonic()
        self._turn = threading.Lock()

    def write(self, kind: str, **values: Any) -> None:
        """Append one record."""
        now = int(time.time() * 1000) / 1000  # cut, not rounded: never after whatever starts next
        line = to_json({"kind": kind, "time": now, **values}) + "\n"
        with self._turn:
            if len(self._waiting) < _MOST_WAITING_BYTES:
                self._waiting += line.encode()
            if time.monotonic() - self._last_flush > self._flush_s or kind != "step":
                self._write_waiting()

    def flush(self) -> None:
        """Write what waits, as far as the disk takes it."""
        with self._turn:
            self._write_waiting()

    def _write_waiting(self) -> None:
        self._last_flush = time.monotonic()
        with contextlib.suppress(OSError):
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]

    def close(self) -> None:
        self.flush()
        self._file.close()


class RecordReader:
    """Reads a records file that may still be growing; a file that is not there yet is empty."""

    def __init__(self, path: Path, from_end: bool = False) -> None:
        self._path = path
        self.position = path.stat().st_size if from_end and path.exists() else 0
        """Bytes that have been read."""
        self.num_ignored = 0
        """Lines of JSON that cannot be true: a step of -1, a loss of 10**400."""

    def is_behind(self) -> bool:
        """Whether the file has become shorter than what was read of it."""
        return self.position > 0 and (not self._path.exists() or self._path.stat().st_size < self.position)

    def read_batches(self, *, skip_steps: bool = False) -> Iterator[list[Record]]:
        """Like `read`, in lists of many records, which are parsed together: a long run has millions of steps."""
        lines = _complete_lines(self._path, self.position)
        while batch := _take_batch(lines):
            self.position += sum(map(len, batch))
            wanted = [line for line in batch if not line.startswith(_STEP)] if skip_steps else batch
            found = _parse_together(wanted)
            believed = list(filter(_is_believable, found))
            self.num_ignored += len(found) - len(believed)
            yield believed

    def read(self) -> Iterator[Record]:
        """The records that were completed since the last call. Lines that are not records are skipped."""
        for line in _complete_lines(self._path, self.position):
            self.position += len(line)
            record = _parse(line)
            if record is not None and _is_believable(record):
                yield record
            else:
                self.num_ignored += record is not None


def _take_batch(lines: Iterator[bytes]) -> list[bytes]:
    batch, size = list[bytes](), 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if len(batch) == _BATCH_LINES or size > _BATCH_BYTES:
            break
    return batch


def read_records(path: Path) -> list[Record]:
    """All complete records of a file."""
    return list(RecordReader(path).read())


def read_ends(path: Path) -> list[Record]:
    """The first and the last records of a file, however long it is."""
    try:
        size = require_regular(path, _MOST_BYTES)
        with open(path, "rb", opener=open_regular) as file:
            ends = file.read(_END_BYTES)
            if size > 2 * _END_BYTES:
                file.seek(size - _END_BYTES)
                ends = ends[: ends.rfind(b"\n") + 1] + file.read().partition(b"\n")[2]
            elif size > _END_BYTES:
                ends += file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read as records: {error.strerror}") from None
    lines = ends[: ends.rfind(b"\n") + 1].splitlines(keepends=True)
    return list(filter(_is_believable, _parse_together(lines)))


def skim_records(path: Path) -> list[Record]:
    """Like `read_records`, but only the last of consecutive steps: parsing a long run's millions takes long."""
    lines: list[bytes] = []
    for line in _complete_lines(path):
        if lines and line.startswith(_STEP) and lines[-1].startswith(_STEP):
            lines.pop()
        lines.append(line)
    return [record for record in map(_parse, lines) if record is not None and _is_believable(record)]


def training_records(records: Sequence[Record], *, is_over: bool = False) -> list[Record]:
    """A worker's records without those of starts that found the training complete.

    `train` on a finished run starts its workers, which score the test set again and leave. What comes after a finished
    end counts only from a start that makes steps again, because the run was made longer. `is_over`: the run had
    finished before this worker's first record.
    """
    chosen = TrainingFilter(is_over=is_over)
    return [kept for record in records for kept in chosen.take(record)]


def standing_records(
    records: Sequence[dict[str, Any]], is_kept: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Some of a worker's records, in order: a restart discards those made after its checkpoint."""
    found: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] == "start" and isinstance(record.get("step"), int):
            found = [kept for kept in found if (kept.get("step") or 0) <= record["step"]]
        elif is_kept(record):
            found.append(record)
    return found


class TrainingFilter:
    """`training_records` for readers that see records as they come."""

    def __init__(self, *, is_over: bool = False) -> None:
        self.is_over = is_over
        self.repeated: list[Record] = []
        """Records since the last start of a run that is over."""

    def take(self, record: Record) -> list[Record]:
        """The records that are known to count now that this one has come."""
        if not self.is_over:
            self.is_over = record["kind"] == "end" and record.get("outcome", "finished") in COMPLETE
            self.repeated = []
            return [record]
        self.repeated = [record] if record["kind"] == "start" else [*self.repeated, record]
        if record["kind"] != "step":
            return []
        self.is_over = False
        return self.repeated


def _complete_lines(path: Path, position: int = 0) -> Iterator[bytes]:
    """The lines of a file from a position on; none if it is not there yet. RunError if it cannot be one of records."""
    if not path.exists():
        return
    try:
        require_regular(path, _MOST_BYTES)
        with open(path, "rb", opener=open_regular) as file:
            file.seek(position)
            while (line := file.readline(_MOST_LINE_BYTES)).endswith(b"\n"):
                yield line
    except OSError as error:
        raise RunError(f"{path}: cannot be read as records: {error.strerror}") from None
    if len(line) == _MOST_LINE_BYTES:
        raise RunError(f"{path}: cannot be read as records: a line has {_MOST_LINE_BYTES:,} bytes or more")


def _parse(line: bytes) -> Record | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _parse_together(lines: Sequence[bytes]) -> list[Record]:
    """The lines that are JSON; if one is not, all are parsed one by one."""
    try:
        records = parse_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        records = map(_parse, lines)
    return [record for record in records if isinstance(record, dict)]


def _is_believable(record: Record) -> bool:
    """Whether the values that our own readers use have possible types and sizes."""
    rules = _rules()
    return isinstance(record.get("kind"), str) and all(
        rules[name](value) for name, value in record.items() if name in rules
    )


_NUMBERS = (int, float)
"""Excludes bool, which Python counts as a number."""


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from a file is a number that can be shown, and taken for a time."""
    return type(value) in _NUMBERS and abs(value) < 1e11


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1e11


def _is_amount(value: Any) -> bool:
    """Whether a value is a number of bytes or of operations."""
    return type(value) in _NUMBERS and 0 <= value < 1e24


def _are_gpus(values: Any) -> bool:
    return isinstance(values, list) and all(map(_are_numbers, values))


def _are_cards(values: Any) -> bool:
    """Bytes received and sent, by network interface."""
    return isinstance(values, dict) and all(
        isinstance(both, list) and len(both) == 2 and all(map(_is_amount, both)) for both in values.values()
    )


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(map(is_number, values.values()))


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _named(names: str, is_right: Callable[[Any], bool]) -> dict[str, Callable[[Any], bool]]:
    return dict.fromkeys(names.split(), is_right)


_RULES = {
    **_named("time", _or_none(lambda value: is_number(value) and value >= 0)),
    **_named("step steps", _or_none(_is_count)),
    **_named("workers hosts hosts_given threads targets generation", _is_count),
    **_named("seconds learning_rate", is_number),
    **_named("loss gradient_norm perplexity cpu setup_seconds", _or_none(is_number)),
    **_named("parameters exchanged_bytes flops_per_step peak_flops bytes", _or_none(_is_amount)),
    **_named("received sent bytes_per_s latency_s", _or_none(_is_amount)),
    **_named("processors memory memory_total disk_read disk_written", _or_none(_is_amount)),
    **_named("host message source output split name", _is_text),
    **_named("phases", _are_numbers),
    **_named("gpus", _are_gpus),
    **_named("cards", _are_cards),
}
"""What a record's values must be, whatever its kind; values of other names may be anything."""


@cache
def _rules() -> dict[str, Callable[[Any], bool]]:
    """The rules, with those for the scores of all tasks."""
    return _RULES | {score.key: _or_none(is_number) for score in all_scores()}


def _ends_within_a_line(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with open(path, "rb", opener=open_no_link) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
