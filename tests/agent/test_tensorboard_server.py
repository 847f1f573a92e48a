"""TensorBoard on loopback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from echelon.agent.tensorboard_server import serve_tensorboard
from echelon.errors import RunError
from echelon.runfolder import RunFolder


def test_a_tensorboard_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with (
        pytest.raises(RunError, match="TensorBoard does not start"),
        serve_tensorboard(RunFolder(tmp_path), 1),
    ):
        pass
