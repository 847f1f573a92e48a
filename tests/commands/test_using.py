"""`echelon evaluate`: what may be set for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.commands.using import evaluate
from echelon.errors import UserError
from tests.small_run import make_small_run


@pytest.mark.parametrize("override", ["data.test.source=other.en", "model.d_model=64", "train.steps=3"])
def test_what_would_change_nothing_of_a_score_cannot_be_set(tmp_path: Path, override: str) -> None:
    run = make_small_run(tmp_path / "run")
    with pytest.raises(UserError, match=f"--set {override}: a run is scored on its own data"):
        evaluate(run, checkpoint=None, split="test", overrides=["evaluate.beam=2", override])
