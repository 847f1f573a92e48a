"""Files from the network: fetched once, from the first mirror that has them, resumed after a break, and checked.

NAME             the whole file; it has this name only when size and SHA-256 are right
NAME.partial     what has arrived so far; NAME.partial.json says where it comes from
fetched.json     size, SHA-256 and origin of every file at its first fetch
"""

from __future__ import annotations

import base64
import errno
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from echelon.addresses import fill_in, redact_url, take_out
from echelon.data.download_record import FETCHED, first_fetches
from echelon.data.exclusive_folder import OnWait, locked
from echelon.data.fingerprints import sha256_of_file
from echelon.data.formats import BYTE_ORDER_MARK
from echelon.data.streams import PACKED_SUFFIXES, is_packed
from echelon.errors import DataError
from echelon.runfolder import read_json, sync_to_disk, write_json

READ_BYTES = 1 << 18
TIMEOUT_S = 30.0
TRIES_WITHOUT_PROGRESS = 3
"""A mirror is given up after this many broken connections in a row without a byte."""
FIRST_PAUSE_S = 1.0
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""What only our own disk says, so that no other mirror would help."""

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes received and, if known, the total."""


@dataclass(frozen=True)
class Wanted:
    """A file to download, and what is known about it."""

    name: str
    urls: Sequence[str]
    """Where it is, the first choice first."""
    bytes: int | None = None
    sha256: str | None = None


class _WrongContentError(Exception):
    """A mirror has a different file under this name."""


class _BrokenError(Exception):
    """The connection ended before the file did."""


def fetch(
    wanted: Wanted,
    folder: Path,
    on_bytes: OnBytes = lambda done, total: None,
    on_wait: OnWait = lambda: None,
) -> Path:
    """The file, fetched now unless it is in the folder; DataError with every mirror's reason if none has it, OSError
    if the folder cannot take it.

    Killed at any moment, it resumes the next time. Two processes that want the same file take turns.
    """
    path = folder / wanted.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), on_wait):
        if path.exists():
            return path
        problems = []
        for url in wanted.urls:
            try:
                _fetch_from(url, wanted, folder, on_bytes)
                return path
            except (
                OSError,
                http.client.HTTPException,
                ValueError,
                _WrongContentError,
                _BrokenError,
            ) as error:
                if _is_ours(error):
                    raise
                problems.append(f"{redact_url(url)}: {take_out(_reason(error), url)}")
    raise DataError(
        f"{wanted.name} could not be fetched; put it into the folder that ECHELON_DATA names, or into {folder}"
        + "".join(f"\n  {problem}" for problem in problems)
    )


def _fetch_from(url: str, wanted: Wanted, folder: Path, on_bytes: OnBytes) -> None:
    path = folder / wanted.name
    partial = _Partial(path.with_name(f"{path.name}.partial"))
    tries = 0
    while True:
        size = partial.size
        try:
            _receive(url, wanted, partial, on_bytes)
            break
        except (_BrokenError, OSError, http.client.HTTPException) as error:
            if _is_ours(error):
                raise
            if isinstance(error, urllib.error.HTTPError) and error.code < http.client.INTERNAL_SERVER_ERROR:
                raise
            tries = tries + 1 if partial.size <= size else 1
            if tries >= TRIES_WITHOUT_PROGRESS:
                raise
            time.sleep(FIRST_PAUSE_S * 2 ** (tries - 1))
    try:
        _check(partial.path, wanted, folder, url)
    except _WrongContentError:
        partial.forget()
        raise
    partial.keep_as(path)


class _Partial:
    """The part of a file that has been fetched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path.with_name(f"{path.name}.json")
        known: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            known = read_json(self._note)
        self.url = known.get("url")
        self.validator: str | None = known.get("validator")
        """The server's validator (ETag) of the file's bytes, if it sent one."""

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, url: str, validator: str | None) -> None:
        self.url, self.validator = redact_url(url), validator
        write_json(self._note, {"url": self.url, "validator": validator})

    def keep_as(self, path: Path) -> None:
        """Give it its name once all of it is on disk: a named file is not checked again, even after a power cut."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.rename(path)
        sync_to_disk(path.parent)
        self.forget()

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _receive(url: str, wanted: Wanted, partial: _Partial, on_bytes: OnBytes) -> None:
    """Append what is missing; _BrokenError if the connection ends too early, _WrongContentError if the file is
    longer than it should be."""
    try:
        answer = _ask(url, partial, shows_mistakes=wanted.sha256 is not None)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not partial.size:
            raise
        if _total_of(error.headers.get("Content-Range")) == partial.size:
            return  # nothing is missing
        partial.forget()
        raise _BrokenError("the file is shorter than what was fetched of it") from None
    with answer:
        done = _place_of(answer, partial, shows_mistakes=wanted.sha256 is not None)
        length = answer.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        _check_length(total or done, wanted)
        on_bytes(done, total)
        first = answer.read(READ_BYTES)
        if not first and total != done:
            raise _BrokenError("the connection ended before a byte came")
        if not done:
            partial.forget()  # only now that there is something in its place
        partial.begin(url, _validator(answer.headers))
        with partial.path.open("ab") as file:
            for data in chain([first], iter(lambda: answer.read(READ_BYTES), b"")):
                done += len(data)
                try:
                    _check_length(done, wanted)
                except _WrongContentError:
                    partial.forget()
                    raise
                file.write(data)
                on_bytes(done, total)
    if total is not None and done < total:
        raise _BrokenError(f"the connection ended after {done:,} of {total:,} bytes")


def _check_length(size: int, wanted: Wanted) -> None:
    if wanted.bytes is not None and size > wanted.bytes:
        raise _WrongContentError(f"has {size:,} bytes, or more, instead of {wanted.bytes:,}")


def _ask(url: str, partial: _Partial, *, shows_mistakes: bool) -> Any:
    """The server's answer, which begins where the partial file ends if server and file allow it.

    `shows_mistakes`: halves that do not belong together would be noticed, so any two may be joined.
    """
    headers = {"User-Agent": "echelon", "Accept-Encoding": "identity"}
    validator = partial.validator if partial.url == redact_url(url) else None
    if partial.size and (validator or shows_mistakes):
        headers["Range"] = f"bytes={partial.size}-"
        if validator:
            headers["If-Range"] = validator
    return urllib.request.urlopen(_request(fill_in(url), headers), timeout=TIMEOUT_S)


def _request(url: str, headers: dict[str, str]) -> urllib.request.Request:
    """Ask with the address's user and password, which are not for servers that it redirects to."""
    parts = urllib.parse.urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers=headers)
    if login:
        encoded = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return request


def _validator(headers: Message) -> str | None:
    """What distinguishes this version of the file: its ETag, unless that is a weak one, which does not promise the
    same bytes; else its date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _place_of(answer: Any, partial: _Partial, *, shows_mistakes: bool) -> int:
    """The offset at which the response begins: that of the missing part, or 0."""
    if answer.status != http.client.PARTIAL_CONTENT:
        return 0
    if not shows_mistakes and _validator(answer.headers) not in (None, partial.validator):
        partial.forget()  # the server, or a proxy on the way, does not know If-Range
        raise _BrokenError("the file has changed since a part of it was fetched")
    if not answer.headers.get("Content-Range", "").startswith(f"bytes {partial.size}-"):
        partial.forget()
        raise _BrokenError("the server sent another part than it was asked for")
    return partial.size


def _total_of(content_range: str | None) -> int | None:
    """The N of `bytes */N`."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def _check(path: Path, wanted: Wanted, folder: Path, url: str) -> None:
    """Compare with the recipe, else with the first fetch; record the first fetch."""
    size = path.stat().st_size
    if wanted.bytes is not None and size != wanted.bytes:
        raise _WrongContentError(f"has {size:,} bytes instead of {wanted.bytes:,}")
    sha256 = sha256_of_file(path)
    if wanted.sha256 is not None and sha256 != wanted.sha256:
        raise _WrongContentError(f"has SHA-256 {sha256} instead of {wanted.sha256}")
    if wanted.sha256 is None:
        _check_kind(path, wanted.name)
    with locked(folder / f"{FETCHED}.lock"):
        _compare_and_record(wanted, folder, {"bytes": size, "sha256": sha256, "url": redact_url(url)})


def _check_kind(path: Path, name: str) -> None:
    """_WrongContentError if the content cannot be what the name says: portals answer every request with a page."""
    with path.open("rb") as file:
        start = file.read(512)
    suffix = PurePosixPath(name).suffix.lower()
    is_page = start.removeprefix(BYTE_ORDER_MARK).lstrip().lower().startswith((b"<!doctype html", b"<html"))
    if is_page and suffix not in (".html", ".htm"):
        raise _WrongContentError(
            f"sent a web page ({start[:60]!r}) instead of {name}; does it, or a proxy on the way, want a login?"
        )
    if suffix in PACKED_SUFFIXES and not is_packed(start):
        raise _WrongContentError(f"sent what is no {suffix} file: it begins with {start[:60]!r}")


def _compare_and_record(wanted: Wanted, folder: Path, fetched: dict[str, Any]) -> None:
    known, sha256 = first_fetches(folder), fetched["sha256"]
    first = known.get(wanted.name)
    if wanted.sha256 is None and first is not None and first["sha256"] != sha256:
        raise _WrongContentError(
            f"has SHA-256 {sha256}, but had {first['sha256']} when it was first fetched, on {first['on']}; if that is "
            f"right, take it out of {folder / FETCHED}"
        )
    today = datetime.now(UTC).date().isoformat()
    write_json(folder / FETCHED, {**known, wanted.name: {**fetched, "on": today}})


def forget(name: str, folder: Path) -> None:
    """Remove a file's first fetch from the folder's record."""
    with locked(folder / f"{FETCHED}.lock"):
        known = first_fetches(folder)
        if known.pop(name, None) is not None:
            write_json(folder / FETCHED, known)


def _is_ours(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, http.client.InvalidURL | ValueError):  # its text may have a part of a password
        return "is no valid address; in a user or password, / is written as %2F, @ as %40 and : as %3A"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason) or type(reason).__name__
