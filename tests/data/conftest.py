"""What the tests of this folder share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from echelon.data import download
from tests.data.corpus_files import MakeData, write_corpora


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, which lies outside the repository."""
    beside = [parent / "shared" / "data" for parent in Path(__file__).parents]
    for folder in [Path(os.environ.get("ECHELON_DATA") or "."), *beside]:
        if (folder / "multi30k").is_dir():
            return folder
    pytest.skip("real data sets are not here; set ECHELON_DATA to their folder")


@pytest.fixture
def make_data(tmp_path: Path) -> MakeData:
    """Writes corpora into tmp_path."""
    return write_corpora(tmp_path)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads are tried again at once, and no proxy stands between the tests and their own servers."""
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
