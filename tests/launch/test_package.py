"""The files that are sent to hosts and by which hosts are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.launch.package import list_files, source_digest


@pytest.mark.parametrize(
    "name", ["a.py", "kernels/rows.cpp", "page/index.html", "recipes/demo.toml", "py.typed"]
)
def test_any_change_of_any_file_changes_the_digest(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("x = 1")
    first = source_digest(tmp_path)
    assert source_digest(tmp_path) == first
    file.write_text("x = 2")
    second = source_digest(tmp_path)
    file.rename(file.with_stem("other"))
    assert len({first, second, source_digest(tmp_path)}) == 3


def test_bytecode_hidden_files_and_data_beside_recipes_are_left_out(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "__pycache__/a.cpython-311.pyc",
        "page/.index.html.swp",
        "page/index.html",
        ".cache/a.py",
        "recipes/demo.toml",
        "recipes/train.en.gz",
        "recipes/imagenet/val/labels.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_files(tmp_path) == ["a.py", "page/index.html", "recipes/demo.toml"]


def test_the_package_has_kernels_pages_prices_and_recipes() -> None:
    assert {
        "models/kernels/attention.cpp",
        "models/kernels/dropout.h",
        "serve/page/index.html",
        "serve/page/icon.svg",
        "explain/page.css",
        "dashboard/page/main.js",
        "cloud/prices.toml",
        "recipes/demo.toml",
        "py.typed",
    } <= set(list_files())
