"""Compiling the kernels at first use, and finding them again."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
_X86_FLAGS = ("-mprefer-vector-width=512",)
_TIMEOUT_S = 120


class KernelsUnavailableError(Exception):
    """Why this machine has no kernels; training then uses plain PyTorch."""


@cache
def load_library() -> ctypes.CDLL:
    """The compiled kernels of this machine, from the cache if they are in it."""
    if platform.system() != "Linux":
        raise KernelsUnavailableError("own kernels are built on Linux only")
    folder, name, compiler = cache_folder(), fingerprint(), find_compiler()
    try:
        if compiler is None:
            return _load_another_s(folder, name)
        path = folder / f"{name}-{_digest([_run([compiler, '--version'])])}.so"
        return _load(path) or _compile_and_load(compiler, path)
    except OSError as error:
        raise KernelsUnavailableError(f"the kernels cannot be kept in {folder}: {error}") from None


def _load(path: Path) -> ctypes.CDLL | None:
    if path.exists():
        _check_only_ours(path.parent)
        with contextlib.suppress(OSError):  # one that cannot be loaded is compiled anew
            return ctypes.CDLL(str(path))
    return None


def _load_another_s(folder: Path, name: str) -> ctypes.CDLL:
    """What a compiler that is not here has made: of an image's builder, or a machine with the same home folder."""
    for path in sorted(folder.glob(f"{name}-*.so")):
        if library := _load(path):
            return library
    raise KernelsUnavailableError("no C++ compiler was found (Debian: apt install g++)")


def _compile_and_load(compiler: str, path: Path) -> ctypes.CDLL:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_only_ours(path.parent)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one compiles, the others wait for it
        if library := _load(path):
            return library
        compile_library(compiler, path)
        return ctypes.CDLL(str(path))


def find_compiler() -> str | None:
    """$CXX, or the machine's C++ compiler, if it has one."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "c++", "clang++"]:
        if found := shutil.which(name):
            return found
    if named:
        raise KernelsUnavailableError(
            f"no program is called {named}, as CXX has it; unset it or name a C++ compiler"
        )
    return None


def cache_folder() -> Path:
    """A folder of the user's own, whatever $ECHELON_CACHE is: code is not loaded from where others may write."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise KernelsUnavailableError("there is no home folder to keep them in; set XDG_CACHE_HOME") from None
    return folder / "echelon" / "kernels"


def fingerprint() -> str:
    """What compiled kernels must have been made from and for: source, flags and CPU."""
    return _digest([*_source_texts(), *_all_flags(), cpu_features()])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:24]


def compile_library(compiler: str, path: Path) -> None:
    """Compile all sources into `path`, which appears complete or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / "kernels.so"
        sources = [str(source) for source in sorted(SOURCES.glob("*.cpp"))]
        _run([compiler, *_all_flags(), *sources, "-o", str(built)])
        built.replace(path)


def cpu_features() -> str:
    """What tells CPUs apart that may not run each other's code."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    kept = ("model name", "flags", "Features", "CPU part", "isa")
    return "\n".join(line for line in lines if line.startswith(kept)) or platform.machine()


def _check_only_ours(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise KernelsUnavailableError(f"others may write to {folder}; make it yours alone (chmod 700)")


def _all_flags() -> tuple[str, ...]:
    return FLAGS + (_X86_FLAGS if platform.machine() == "x86_64" else ())


def _source_texts() -> list[str]:
    return [path.read_text() for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsUnavailableError(f"{command[0]} failed: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise KernelsUnavailableError(f"{command[0]} could not compile the kernels: {last}")
    return done.stdout
