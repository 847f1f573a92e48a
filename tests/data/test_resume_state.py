from __future__ import annotations

import os
from pathlib import Path

from echelon.data.resume_state import CLEAN, ResumeState


def halfway(folder: Path) -> Path:
    """What was left in a folder many years ago."""
    folder.mkdir(parents=True)
    (folder / CLEAN).write_text("[]")
    os.utime(folder, (0, 0))
    return folder


def test_what_nobody_goes_on_with_is_removed(tmp_path: Path) -> None:
    left = halfway(tmp_path / "left")
    with ResumeState(tmp_path / "other"):
        assert not left.exists()


def test_what_is_gone_on_with_is_not_swept_away(tmp_path: Path) -> None:
    resumed = halfway(tmp_path / "resumed")
    with ResumeState(resumed), ResumeState(tmp_path / "other"):
        assert (resumed / CLEAN).exists()
