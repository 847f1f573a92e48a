"""Folders at addresses like s3://bucket/folder and gs://bucket/folder, through fsspec.

An object store has no rename and no folders, so a folder there counts when its manifest does: it is written last, and
names every file with its size and SHA-256. A folder that is fetched is checked and appears under its name at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from echelon.addresses import fill_in, take_out
from echelon.errors import StoreError, UserError
from echelon.extras import install_hint
from echelon.runfolder import sync_to_disk

MANIFEST = "echelon-manifest.json"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+")
_EXTRAS = {"s3": "aws", "gs": "gcp", "gcs": "gcp"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_BLOCK_BYTES = 1 << 22
Beat = Callable[[], None]


@dataclass(frozen=True)
class StoredFile:
    """A file's entry in the manifest."""

    bytes: int
    sha256: str


_MANIFEST = TypeAdapter(dict[str, StoredFile])


def is_address(text: str) -> bool:
    """Whether a text names a place that fsspec finds, rather than a path."""
    return _ADDRESS.fullmatch(text) is not None


def address_of(path: Path) -> str | None:
    """The address that was given in place of a path, as which it has lost a slash; None if it is a path."""
    match = re.fullmatch(r"([a-z][a-z0-9+.-]*):/([^/].*)", str(path))
    return f"{match[1]}://{match[2]}" if match is not None else None


def put_folder(folder: Path, address: str, beat: Beat = lambda: None) -> bool:
    """Copy a folder's files, and then the manifest that makes them count. A folder that is there whole stays: whether
    it was not."""
    with _explaining(address):
        system, path = _open(address)
        if _read_manifest(system, path) is not None:
            return False
        files: dict[str, StoredFile] = {}
        for file in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            name = file.relative_to(folder).as_posix()
            files[name] = StoredFile(file.stat().st_size, _sha256(file))
            system.put_file(str(file), f"{path}/{name}")
            beat()
        system.pipe_file(f"{path}/{MANIFEST}", _MANIFEST.dump_json(files, indent=1))
    return True


def get_folder(address: str, folder: Path, beat: Beat = lambda: None) -> None:
    """Fetch a whole folder, checked; StoreError if it is not whole or not right. One that is here already stays.
    Each part of a file that arrives or is checked beats."""
    if folder.exists():
        return
    with _explaining(address):
        system, path = _open(address)
        files = _read_manifest(system, path)
        if files is None:
            raise StoreError(f"{address}: there is no whole folder here")
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.fetching")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            for name, file in files.items():
                target = unfinished / name
                target.parent.mkdir(exist_ok=True)
                system.get_file(f"{path}/{name}", str(target), callback=_calling(beat))
                if StoredFile(target.stat().st_size, _sha256(target, beat)) != file:
                    raise StoreError(
                        f"{address}/{name}: is not what its manifest says; remove the folder there"
                    )
            _publish(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _publish(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise
    sync_to_disk(folder.parent)


def list_folders(address: str, *, whole: bool = True) -> list[str]:
    """The names of the whole folders below an address, or of everything there, in order."""
    with _explaining(address):
        system, path = _open(address)
        try:
            entries = system.ls(path, detail=False)
        except FileNotFoundError:
            return []
        names = sorted({str(entry).rstrip("/").rpartition("/")[2] for entry in entries})
        return [name for name in names if not whole or system.exists(f"{path}/{name}/{MANIFEST}")]


def remove_folder_at(address: str) -> None:
    """Remove a folder: its manifest first, so that no half of it ever counts."""
    with _explaining(address):
        system, path = _open(address)
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(f"{path}/{MANIFEST}")
        with contextlib.suppress(FileNotFoundError):
            system.rm(path, recursive=True)


def remove_unfinished(address: str) -> None:
    """Remove what an upload that broke off has left of a folder; one that is whole stays."""
    if not has_file(f"{address}/{MANIFEST}"):
        remove_folder_at(address)


def put_file(file: Path, address: str) -> None:
    with _explaining(address):
        system, path = _open(address)
        system.put_file(str(file), path)


def has_file(address: str) -> bool:
    with _explaining(address):
        system, path = _open(address)
        return bool(system.exists(path))


def get_file(address: str, target: Path) -> None:
    """Fetch one file; it appears at once."""
    with _explaining(address):
        system, path = _open(address)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}.fetching")
        try:
            system.get_file(path, str(unfinished))
            unfinished.replace(target)
        except FileNotFoundError:
            raise UserError(f"{address}: there is no such file") from None
        finally:
            unfinished.unlink(missing_ok=True)


def _open(address: str) -> tuple[Any, str]:
    """The file system of an address, without what it remembers of earlier looks, and the path there."""
    scheme = address.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(fill_in(address).rstrip("/"))
    except ImportError:
        extra = _EXTRAS.get(scheme)
        how = install_hint(extra) if extra else f"install fsspec's package for {scheme}"
        raise UserError(f"{address}: {scheme}:// needs a package that is not here: {how}") from None
    except ValueError as error:
        raise UserError(f"{address}: {error}") from None
    system.invalidate_cache()
    return system, str(path)


def _read_manifest(system: Any, path: str) -> dict[str, StoredFile] | None:
    try:
        files = _MANIFEST.validate_json(system.cat_file(f"{path}/{MANIFEST}"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise StoreError(f"{path}/{MANIFEST}: is damaged; remove the folder there") from None
    if not all(_NAME.fullmatch(name) for name in files):
        raise StoreError(f"{path}/{MANIFEST}: names files that no folder of ours has")
    return files


def _calling(beat: Beat) -> Any:
    """What has fsspec's packages beat at each part of a file."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"beat": lambda *_place, **_more: beat()})


def _sha256(file: Path, beat: Beat = lambda: None) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
            beat()
    return digest.hexdigest()


@contextlib.contextmanager
def _explaining(address: str) -> Iterator[None]:
    """Whatever a file system's package raises, as one of our errors, without the address's secrets."""
    try:
        yield
    except (StoreError, UserError) as error:
        raise type(error)(take_out(str(error), address)) from None
    except FileNotFoundError as error:
        reason = f"{error.strerror or 'is not there'} {error.filename or ''}".rstrip()
        raise StoreError(take_out(f"{address}: {reason}", address)) from None
    except PermissionError as error:
        reason = f"your credentials do not allow this ({error})"
        raise StoreError(take_out(f"{address}: {reason}", address)) from None
    except Exception as error:  # the packages have no common error of their own
        raise StoreError(take_out(f"{address}: {type(error).__name__}: {error}", address)) from error
