"""Building the kernels, and doing without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from echelon.models.kernels import build
from echelon.models.kernels.build import KernelsUnavailableError, load_library
from echelon.models.kernels.selection import choose_kernels

CPU = torch.device("cpu")


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


@pytest.fixture(autouse=True)
def forget_library() -> Iterator[None]:
    load_library.cache_clear()
    yield
    load_library.cache_clear()


@needs_compiler
def test_kernels_are_used_where_they_can_be_built() -> None:
    choice = choose_kernels("auto", CPU, "bf16")

    assert choice.kernels is not None
    assert choice.words == "own kernels, compiled for this CPU"


@needs_compiler
def test_they_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_all_flags", lambda: ("-std=c++17", "-O0", "-fopenmp", "-shared", "-fPIC"))
    load_library()
    (library,) = (tmp_path / "echelon" / "kernels").glob("*.so")
    built = library.stat().st_mtime_ns

    load_library.cache_clear()
    load_library()

    assert library.stat().st_mtime_ns == built
    assert library.stem.startswith(f"{build.fingerprint()}-")


@needs_compiler
def test_what_was_compiled_is_used_where_nothing_can_be_written_and_no_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "_all_flags", lambda: ("-std=c++17", "-O0", "-fopenmp", "-shared", "-fPIC"))
    load_library()
    load_library.cache_clear()

    def may_not(compiler: str, path: Path) -> None:
        raise PermissionError("a file system that is read only")

    monkeypatch.setattr(build, "_compile_and_load", may_not)
    assert load_library().embed_forward
    load_library.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert load_library().embed_forward


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_all_flags", lambda: ("-std=c++17", "-O0", "-fopenmp", "-shared", "-fPIC"))
    load_library()
    (library,) = build.cache_folder().glob("*.so")
    load_library.cache_clear()
    library.unlink()  # not written over: it is mapped
    library.write_bytes(b"no library")

    assert load_library().embed_forward


def test_without_a_home_folder_plain_pytorch_trains_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(build, "find_compiler", lambda: "g++")

    choice = choose_kernels("auto", CPU, "bf16")

    assert choice.kernels is None
    assert choice.words.endswith("there is no home folder to keep them in; set XDG_CACHE_HOME")


def test_without_a_compiler_plain_pytorch_trains_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)

    choice = choose_kernels("auto", CPU, "bf16")

    assert choice.kernels is None
    assert choice.words.startswith("plain PyTorch, which is slower: no C++ compiler was found")


@needs_compiler
def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_all_flags", lambda: ("--no-such-flag",))

    with pytest.raises(KernelsUnavailableError, match=r"could not compile the kernels: .*no-such-flag"):
        load_library()


def test_code_is_not_loaded_from_a_folder_that_others_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build.cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o777)

    with pytest.raises(KernelsUnavailableError, match="others may write"):
        load_library()


def test_they_can_be_turned_off() -> None:
    assert choose_kernels("off", CPU, "bf16").words == "plain PyTorch (train.kernels is off)"


def test_what_they_cannot_compute_is_said() -> None:
    choice = choose_kernels("auto", CPU, "fp16")

    assert choice.kernels is None
    assert choice.words == "plain PyTorch: the own kernels know float32 and bf16, not fp16"


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echelon").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", lambda: "true")

    with pytest.raises(KernelsUnavailableError, match="the kernels cannot be kept in"):
        load_library()


def test_another_cpu_has_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = set()
    for flags in ("flags : sse", "flags : sse avx512f"):
        monkeypatch.setattr(build, "cpu_features", lambda flags=flags: flags)
        fingerprints.add(build.fingerprint())

    assert len(fingerprints) == 2


def test_a_compiler_that_was_named_and_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(
        KernelsUnavailableError, match=r"no program is called no-such-compiler, as CXX has it"
    ):
        build.find_compiler()
