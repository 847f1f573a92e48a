"""Write constraints.txt and src/echelon/launch/locked.txt: run by `make constraints` with a fresh environment's Python.

constraints.txt has the version of everything in that environment. locked.txt has what Echelon needs on a rented
machine, without extras, with the SHA-256 of every file that pip may take: the default package index's own files for
Linux on x86_64, whatever index and files this machine's pip is set up with.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "src" / "echelon" / "launch" / "locked.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST_GLIBC = (2, 31)
"""Ubuntu 20.04's. An older system may take another file, whose hash the lock does not have."""
_CONSTRAINTS_HEAD = """\
# Exact versions of everything that `make setup` installs, with torch's build for CPUs or for NVIDIA's GPUs; `make
# constraints` writes this file.
"""
_LOCK_HEAD = """\
# What Echelon needs on a rented machine (Linux, x86_64, Python {pythons}) with the hashes of the package index's
# files, for pip's --require-hashes; `make constraints` writes this file.
"""
_PIP = (sys.executable, "-m", "pip", "--isolated", "install", "--quiet", "--disable-pip-version-check")


@dataclass(frozen=True)
class LockedFile:
    """A file that pip would install."""

    name: str
    version: str
    url: str
    sha256: str


def main() -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit("rented machines are Linux on x86_64: run this on such a machine")
    here = installed_versions()
    CONSTRAINTS.write_text(render_constraints(here))
    files = [file for python in PYTHONS for file in resolve(python)]
    LOCK.write_text(render_lock(files))
    # What torch's build for GPUs needs, should the one here be for CPUs.
    CONSTRAINTS.write_text(render_constraints({file.name: file.version for file in files} | here))


def installed_versions() -> dict[str, str]:
    """Return the packages of this environment; a local build such as 2.13.0+cpu counts as 2.13.0."""
    ignored = ("pip", PROJECT["name"])
    found = {
        canonicalize_name(each.metadata["Name"]): each.version.partition("+")[0]
        for each in importlib.metadata.distributions()
    }
    return {name: version for name, version in found.items() if name not in ignored}


def render_constraints(versions: dict[str, str]) -> str:
    return _CONSTRAINTS_HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def resolve(python: str) -> list[LockedFile]:
    """Ask pip what it would install for a Python; --isolated: from the default index, not from local files."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*_PIP, "--dry-run", "--ignore-installed", "--report", str(report), "--only-binary=:all:"]
        # fast-deps: metadata without downloading gigabytes of libraries for CUDA.
        command += ["--python-version", python, "--target", folder, "--use-feature=fast-deps"]
        command += ["--constraint", str(CONSTRAINTS), *requirements(python)]
        subprocess.run(command, check=True, cwd=ROOT)
        return read_report(json.loads(report.read_text()))


def requirements(python: str) -> list[str]:
    """Return Echelon's requirements for a Python: pip itself evaluates their markers for the Python it runs in."""
    found = map(Requirement, PROJECT["dependencies"])
    return [
        str(each) for each in found if not each.marker or each.marker.evaluate({"python_version": python})
    ]


def read_report(report: dict[str, Any]) -> list[LockedFile]:
    """Return the files of pip's installation report."""
    return [
        LockedFile(
            canonicalize_name(each["metadata"]["name"]),
            each["metadata"]["version"],
            each["download_info"]["url"],
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in report["install"]
    ]


def render_lock(files: Iterable[LockedFile]) -> str:
    """Return the requirements: each package once, with the hashes of its files for all Pythons."""
    hashes = dict[str, set[str]]()
    versions = dict[str, str]()
    for file in files:
        if versions.setdefault(file.name, file.version) != file.version:
            sys.exit(f"{file.name}: {versions[file.name]} for one Python, {file.version} for another")
        if needed_glibc(file.url) > OLDEST_GLIBC:
            sys.exit(f"{file.url}: needs a newer glibc than {OLDEST_GLIBC}, so not every host can use it")
        hashes.setdefault(file.name, set()).add(file.sha256)
    entries = [
        " \\\n    ".join([f"{name}=={versions[name]}", *(f"--hash=sha256:{each}" for each in sorted(found))])
        for name, found in sorted(hashes.items())
    ]
    head = _LOCK_HEAD.format(pythons=f"{PYTHONS[0]} to {PYTHONS[-1]}")
    return head + "".join(f"{entry}\n" for entry in entries)


def needed_glibc(url: str) -> tuple[int, int]:
    """Return the oldest glibc that a wheel's name claims to work with; (0, 0) if it names none."""
    claims = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", url)]
    return min(claims, default=(0, 0))


if __name__ == "__main__":
    main()
