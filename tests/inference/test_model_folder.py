"""How models are opened."""

from __future__ import annotations

import pytest

from echelon.inference import model_folder
from echelon.inference.model_folder import default_threads


def test_threads_are_the_users_number_or_what_the_container_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "available_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert default_threads() == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_threads() == 3
