"""The files of pinned versions that `make constraints` writes."""

from __future__ import annotations

from typing import Any

import pytest
from tools.pin_versions import (
    LockedFile,
    needed_glibc,
    read_report,
    render_constraints,
    render_lock,
    requirements,
)


def item(name: str, version: str, file: str, sha256: str) -> dict[str, Any]:
    """A package of pip's installation report."""
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {"url": f"https://example/{file}", "archive_info": {"hashes": {"sha256": sha256}}},
    }


def test_a_package_is_locked_once_with_the_hashes_of_all_its_files() -> None:
    older = {"install": [item("Some_Package", "1.0", "a.whl", "bb"), item("pure", "2.0", "p.whl", "cc")]}
    newer = {"install": [item("Some_Package", "1.0", "b.whl", "aa"), item("pure", "2.0", "p.whl", "cc")]}
    text = render_lock([*read_report(older), *read_report(newer)])
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        "pure==2.0 \\",
        "    --hash=sha256:cc",
        "some-package==1.0 \\",
        "    --hash=sha256:aa \\",
        "    --hash=sha256:bb",
    ]


def test_versions_that_differ_between_pythons_are_refused() -> None:
    with pytest.raises(SystemExit, match=r"one: 1\.0 for one Python, 1\.1 for another"):
        render_lock([LockedFile("one", "1.0", "a", "aa"), LockedFile("one", "1.1", "b", "bb")])


def test_a_file_for_newer_systems_than_torch_needs_is_refused() -> None:
    url = "one-1-cp311-cp311-manylinux_2_34_x86_64.whl"
    with pytest.raises(SystemExit, match="needs a newer glibc"):
        render_lock([LockedFile("one", "1", url, "aa")])
    assert needed_glibc("one-1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_34_x86_64.whl") == (2, 27)
    assert needed_glibc("one-1-py3-none-any.whl") == (0, 0)


def test_constraints_are_sorted_by_name() -> None:
    text = render_constraints({"b": "2", "a": "1"})
    assert [line for line in text.splitlines() if line[0] != "#"] == ["a==1", "b==2"]


def test_requirements_are_those_of_the_python_asked_for_not_of_the_one_that_runs() -> None:
    def needs_backport(python: str) -> bool:
        return any(each.startswith("backports-zstd") for each in requirements(python))

    assert needs_backport("3.13")
    assert not needs_backport("3.14")
