"""Echelon as it runs here, packed so that pip can install it elsewhere, and the versions of everything it runs with.

A checkout with changes and an installed package are packed the same way: what runs here is what runs there.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import echelon

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip file can hold: the same files give the same wheel."""
_KEPT = (".py", ".typed", ".toml", ".css", ".js")


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory."""

    name: str
    content: bytes


def pack_wheel() -> Wheel:
    """The running package as a wheel."""
    stem = f"echelon-{echelon.__version__}"
    files = dict(_collect_files(stem))
    record = "".join(f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return Wheel(f"{stem}-py3-none-any.whl", buffer.getvalue())


def pin_versions() -> str:
    """Constraints for pip: the version of every package here; a build for another kind of machine is as good."""
    installed = {
        distribution.metadata["Name"]: distribution.version.partition("+")[0]
        for distribution in importlib.metadata.distributions()
    }
    pinned = {name: version for name, version in installed.items() if name and name.lower() != "echelon"}
    return "".join(f"{name}=={version}\n" for name, version in sorted(pinned.items(), key=str))


def find_requirements() -> list[str]:
    """What Echelon needs, from the checkout it runs from, or from the package that was installed."""
    project = _checkout() / "pyproject.toml"
    if project.is_file():
        return list(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"])
    requires = importlib.metadata.requires("echelon") or []
    return [requirement for requirement in requires if "extra ==" not in requirement]


def _collect_files(stem: str) -> Iterator[tuple[str, bytes]]:
    package = Path(echelon.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in _KEPT:
            yield f"echelon/{path.relative_to(package).as_posix()}", path.read_bytes()
    for folder in (_checkout() / "recipes", Path(sys.prefix) / "share" / "echelon" / "recipes"):
        recipes = sorted(folder.glob("*.toml"))
        for path in recipes:
            yield f"{stem}.data/data/share/echelon/recipes/{path.name}", path.read_bytes()
        if recipes:
            break
    requirements = "".join(f"Requires-Dist: {requirement}\n" for requirement in find_requirements())
    metadata = f"Metadata-Version: 2.1\nName: echelon\nVersion: {echelon.__version__}\n{requirements}"
    yield f"{stem}.dist-info/METADATA", metadata.encode()
    yield (
        f"{stem}.dist-info/WHEEL",
        b"Wheel-Version: 1.0\nGenerator: echelon\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    )
    yield f"{stem}.dist-info/entry_points.txt", b"[console_scripts]\nechelon = echelon.cli:main\n"


def _checkout() -> Path:
    """Where the checkout is, if this is one."""
    return Path(echelon.__file__).parents[2]


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
