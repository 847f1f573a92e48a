"""What every table of a recipe has in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """A table of the recipe. Unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )


class Evaluation(Section):
    """When and how a model is scored, whatever it learns."""

    every: PositiveInt = 1000
    """Steps between two scorings of the validation set; the last step is always scored."""
    final: Literal["best", "last", "average"] = "best"
    """Which weights are scored at the end, and used by `translate`, `classify` and `serve`."""
