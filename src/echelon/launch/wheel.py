"""The running Echelon as a wheel that pip can install elsewhere.

A checkout, changed or not, is packed by its own build backend. An installed package is packed from the list of its
files that pip keeps.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from echelon.errors import UserError
from echelon.extras import DISTRIBUTION
from echelon.launch.package import FOLDER, list_files

_EPOCH = 315532800
"""1 January 1980 in seconds, the earliest time a zip file can hold: the same files give the same wheel."""
_BUILD = """
import importlib, sys
importlib.import_module(sys.argv[1]).build_wheel(sys.argv[2])
"""
_BUILD_INPUTS = ("pyproject.toml", "README.md", "LICENSE")
_LAST_LINES = 12
_WRITTEN_BY_PIP = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Files beside the package's metadata that were not in the wheel, or (RECORD) are written anew."""


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """The hash by which pip checks it."""
        return hashlib.sha256(self.content).hexdigest()


def pack_wheel() -> Wheel:
    """Pack the running package; UserError if it is neither a checkout nor whole as pip installed it."""
    checkout = find_checkout()
    return build_wheel(checkout) if checkout else rebuild_wheel(_find_distribution())


def find_checkout() -> Path | None:
    """Return the folder with the pyproject.toml that this package is the source of; None for an installed package."""
    root = FOLDER.parent.parent
    is_checkout = FOLDER.parent.name == "src" and (root / "pyproject.toml").is_file()
    return root if is_checkout and read_project(root)["project"]["name"] == DISTRIBUTION else None


def read_project(checkout: Path) -> dict[str, Any]:
    """Return the tables of a checkout's pyproject.toml."""
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def build_wheel(checkout: Path) -> Wheel:
    """Build a checkout with the backend that its pyproject.toml names, in a copy: the checkout stays as it is."""
    build = read_project(checkout)["build-system"]
    _require_installed(build["requires"])
    with tempfile.TemporaryDirectory(prefix="echelon-wheel-") as folder:
        source, result = Path(folder) / "source", Path(folder) / "wheel"
        _copy_source(checkout, source)
        completed = subprocess.run(
            [sys.executable, "-c", _BUILD, build["build-backend"], str(result)],
            cwd=source,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)},
            umask=0o022,  # files' permissions are in the wheel
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if completed.returncode:
            lines = completed.stdout.splitlines()[-_LAST_LINES:]
            raise UserError(
                f"{checkout}: no wheel could be built:" + "".join(f"\n  {line}" for line in lines)
            )
        (wheel,) = result.glob("*.whl")
        return Wheel(wheel.name, wheel.read_bytes())


def _copy_source(checkout: Path, target: Path) -> None:
    package = checkout / "src" / "echelon"
    names = [*_BUILD_INPUTS, *(f"src/echelon/{name}" for name in list_files(package))]
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / name, copy)
        copy.chmod(0o644)


def _require_installed(requirements: list[str]) -> None:
    for text in requirements:
        requirement = Requirement(text)
        try:
            found = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found = ""
        if not found or not requirement.specifier.contains(found, prereleases=True):
            raise UserError(
                f"packing this checkout for other hosts needs {text}, "
                f"{f'and {found} is installed' if found else 'which is not installed'}: pip install '{text}'"
            )


def _find_distribution() -> importlib.metadata.Distribution:
    try:
        found = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is None or Path(str(found.locate_file("echelon"))).resolve() != FOLDER.resolve():
        raise UserError(
            f"{FOLDER}: neither a checkout nor what pip installed as {DISTRIBUTION}, so it cannot be packed for "
            f"other hosts; install {DISTRIBUTION} with pip"
        )
    return found


def rebuild_wheel(distribution: importlib.metadata.Distribution) -> Wheel:
    """Pack an installed distribution: the files of its RECORD, as they are now."""
    stem = f"{DISTRIBUTION.replace('-', '_')}-{distribution.version}"
    listed = {file.as_posix(): file for file in distribution.files or ()}
    about = [name for name in listed if name.startswith(f"{stem}.dist-info/")]
    package = [name for name in listed if name.startswith("echelon/") and "__pycache__" not in name]
    _require_whole(Path(str(distribution.locate_file("echelon"))), package)
    kept = [*package, *(name for name in about if name.rpartition("/")[2] not in _WRITTEN_BY_PIP)]
    files = {name: Path(str(listed[name].locate())).read_bytes() for name in sorted(kept)}
    return Wheel(f"{stem}-py3-none-any.whl", _zip_wheel(files, f"{stem}.dist-info/RECORD"))


def _require_whole(package: Path, listed: list[str]) -> None:
    """Refuse a package whose folder has other files than pip installed: hosts would get other code than runs here."""
    there = {f"echelon/{name}" for name in list_files(package)}
    if differing := sorted(there ^ set(listed)):
        raise UserError(
            f"{package.parent / differing[0]}: {'added' if differing[0] in there else 'missing'} since pip installed "
            f"{DISTRIBUTION}, so it cannot be packed for other hosts; install it again"
        )


def _zip_wheel(files: dict[str, bytes], record: str) -> bytes:
    lines = [f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items()]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, record: f"{''.join(lines)}{record},,\n".encode()}.items():
            entry = zipfile.ZipInfo(name)  # of 1980, like the backend's with SOURCE_DATE_EPOCH
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
