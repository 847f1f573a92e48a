from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from echelon.lab.surroundings import find_surroundings


def test_this_python_comes_first_and_a_development_tree_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    found = find_surroundings({"PATH": "/usr/bin", "PYTHONPATH": f"src::{tmp_path}/gone", "HOME": "/root"})
    assert found.environment == {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin",
        "PYTHONPATH": f"{tmp_path}/src:{tmp_path}/gone",
    }
    assert {Path(sys.prefix), Path(sys.base_prefix), tmp_path / "src"} <= set(found.visible)
    assert tmp_path / "gone" not in found.visible


def test_data_is_passed_on_and_visible(tmp_path: Path) -> None:
    found = find_surroundings({"ECHELON_DATA": str(tmp_path), "LANG": "C.UTF-8", "ECHELON_LAUNCHER": "1"})
    assert found.environment["ECHELON_DATA"] == str(tmp_path)
    assert found.environment["LANG"] == "C.UTF-8"
    assert "ECHELON_LAUNCHER" not in found.environment
    assert "PYTHONPATH" not in found.environment
    assert found.environment["PATH"].endswith(f":{os.defpath}")
    assert tmp_path in found.visible
