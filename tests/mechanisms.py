"""Switch mechanisms off, one at a time, and see that their tests notice.

    python -m tests.mechanisms [--list FILE] [--only WORDS]

Each of tests/mechanisms.toml (docs/reliability.md) and tests/defences.toml (docs/security.md) is taken out of a copy of
the source. A mechanism whose tests pass without it is reported, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTS = ("mechanisms.toml", "defences.toml")
_LIMIT_S = 300
_TESTS_FAILED = 1
"""pytest's exit status; others mean that it did not get to the tests."""


@dataclass(frozen=True)
class Mechanism:
    """A piece of the source that a promise rests on, and the tests that must fail without it."""

    name: str
    file: str
    code: str
    without: str
    tests: Sequence[str]
    only: str

    def source(self, root: Path) -> Path:
        return root / "src" / "echelon" / self.file


def all_mechanisms(lists: Sequence[str] = LISTS) -> list[Mechanism]:
    listed = (tomllib.loads((ROOT / "tests" / name).read_text()) for name in lists)
    return [Mechanism(**each) for one in listed for each in one["mechanism"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--list", choices=LISTS, help="those of one list")
    given = parser.parse_args()
    lists = [given.list] if given.list else LISTS
    wanted = [each for each in all_mechanisms(lists) if given.only in each.name]
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "recipes", "docs", "pyproject.toml", "README.md", "LICENSE"):
            _copy(ROOT / name, copy / name)
        for mechanism in wanted:
            verdict = _try_without(mechanism, copy)
            unnoticed += verdict != "noticed"
            print(f"{verdict:<9} without: {mechanism.name}", flush=True)
    print(f"{len(wanted) - unnoticed} of {len(wanted)} noticed")
    return 1 if unnoticed else 0


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        shutil.copyfile(source, target)


def _try_without(mechanism: Mechanism, copy: Path) -> str:
    file = mechanism.source(copy)
    whole = file.read_text()
    file.write_text(whole.replace(mechanism.code, mechanism.without))
    selection = ["-k", mechanism.only] if mechanism.only else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *mechanism.tests,
        *selection,
    ]
    try:
        status = subprocess.run(
            command,
            check=False,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src")},
            stdout=subprocess.DEVNULL,
            timeout=_LIMIT_S,
        ).returncode
    except subprocess.TimeoutExpired:
        return "hung"
    finally:
        file.write_text(whole)
    return {0: "UNNOTICED", _TESTS_FAILED: "noticed"}.get(status, f"status {status}")


if __name__ == "__main__":
    sys.exit(main())
