"""Runs on a host that has no Echelon yet, as `python -c SOURCE ORDER`: makes the environment and installs into it.

Nothing but the standard library is there. The wheel comes through standard input; launch/install.py sends it.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

MARK = "echelon-answer "
"""A copy of launch/dialogue.py's, which this host does not have."""
SHOW_VERSIONS = (
    "import dataclasses, json; from echelon.launch.machine import own_versions;"
    " print(json.dumps(dataclasses.asdict(own_versions())))"
)
LOCK = "echelon/launch/locked.txt"
_LAST_LINES = 12


class StepError(Exception):
    """A step failed; the message holds the last lines of what it printed."""


def main() -> None:
    order = json.loads(sys.argv[1])
    wheel = sys.stdin.buffer.read(order["wheel_bytes"])
    try:
        answer = install(order, wheel)
    except StepError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename}: {error.strerror}"}
    sys.stdout.write(MARK + json.dumps(answer) + "\n")


def install(order: dict[str, Any], wheel: bytes) -> dict[str, Any]:
    """Make the environment what `order` says; does nothing if it is that already."""
    environment = Path(order["environment"]).expanduser()
    python = environment / "bin" / "python"
    environment.parent.mkdir(parents=True, exist_ok=True)
    with open(environment.with_name(f".{environment.name}.installing"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # hosts may share the home folder
        if _versions(python) == order["versions"]:
            return {"python": str(python), "was_there": True}
        if not _has_pip(python):  # nor has one whose making was interrupted
            venv = [sys.executable, "-m", "venv", "--clear", *order["venv_options"], str(environment)]
            _step("making the environment", venv)
        with tempfile.TemporaryDirectory() as folder:
            _fill(python, order, Path(folder), wheel)
        found = _versions(python)
        if found != order["versions"]:
            raise StepError(f"after installing, the versions are {found} instead of {order['versions']}")
    return {"python": str(python), "was_there": False}


def _has_pip(python: Path) -> bool:
    command = [str(python), "-m", "pip", "--version"]
    return python.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


def _fill(python: Path, order: dict[str, Any], folder: Path, wheel: bytes) -> None:
    package, itself = folder / order["wheel_name"], folder / "echelon.txt"
    package.write_bytes(wheel)
    itself.write_text(f"{package.as_uri()} --hash=sha256:{order['wheel_sha256']}\n")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    if order["checks_hashes"]:
        _install_locked(
            [*pip, "--require-hashes", "--requirement", str(itself)], folder / "locked.txt", package
        )
    else:
        _install_pinned(pip, order, folder / "constraints.txt", package)
    # The version may be the same while the code has changed.
    again = ["--no-deps", "--force-reinstall", "--require-hashes", "--requirement", str(itself)]
    _step("installing Echelon", [*pip, *again])


def _install_locked(pip: list[str], lock: Path, package: Path) -> None:
    """Install what the lock in the package lists; pip refuses a file with another hash, and what is not listed."""
    with zipfile.ZipFile(package) as archive:
        lock.write_bytes(archive.read(LOCK))
    _step("installing what Echelon needs, checking hashes", [*pip, "--requirement", str(lock)])


def _install_pinned(pip: list[str], order: dict[str, Any], constraints: Path, package: Path) -> None:
    """Install torch first, at exactly this version, so that other packages find it and pull no other."""
    constraints.write_text(order["constraints"])
    _step("installing torch", [*pip, "--constraint", str(constraints), order["torch"]])
    _step("installing what Echelon needs", [*pip, "--constraint", str(constraints), str(package)])


def _step(title: str, command: list[str]) -> None:
    sys.stdout.write(f"{title} ...\n")
    sys.stdout.flush()
    lines = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            sys.stdout.write(f"  {line}")
            sys.stdout.flush()
    if process.returncode:
        raise StepError(f"{title} failed:" + "".join(f"\n  {line}" for line in lines[-_LAST_LINES:]))


def _versions(python: Path) -> dict[str, Any] | None:
    """The installed versions, of the packages that `order` names."""
    if not python.exists():
        return None
    result = subprocess.run(
        [str(python), "-c", SHOW_VERSIONS], capture_output=True, text=True, check=False, cwd="/"
    )
    if result.returncode:
        return None
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return {
        "echelon": found["echelon"],
        "source": found["source"],
        "torch": str(found["torch"]).partition("+")[0],
    }


if __name__ == "__main__":
    main()
