"""What the tests of the page have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.browsing import made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two learning rates with two seeds each."""
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    for rate in (0.001, 0.004):
        for seed in (1, 2):
            made(rate, seed).write(tmp_path / "runs" / f"rate{rate}-seed{seed}")
    return tmp_path / "runs"
