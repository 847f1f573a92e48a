"""Recipes of a user's own tasks."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from echelon.recipe.own_recipe import OwnEvaluation


@pytest.mark.parametrize("name", ["step", "seconds"])
def test_a_score_is_not_named_like_what_a_record_says_besides(name: str) -> None:
    with pytest.raises(ValidationError, match="choose another name"):
        OwnEvaluation(scores=["loss", name])
