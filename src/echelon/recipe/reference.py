"""The reference page of recipes, generated from the docstrings of the schema."""

from __future__ import annotations

import sys
import typing

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from echelon.recipe import image_sections, schema
from echelon.recipe.section import Section

_TABLES: list[tuple[str, type[Section]]] = [
    ("", schema.TranslationRecipe),
    ("data", schema.Data),
    ("data.train[]", schema.TrainingCorpus),
    ("data.valid, data.test", schema.Corpus),
    ("data.download[]", schema.Download),
    ("data.clean", schema.Clean),
    ("model", schema.Model),
    ("train", schema.TranslationTrain),
    ("exchange", schema.Exchange),
    ('optimiser, kind = "adam"', schema.Adam),
    ('optimiser, kind = "adamw"', schema.AdamW),
    ('optimiser, kind = "sgd"', schema.Sgd),
    ('schedule, kind = "transformer"', schema.Noam),
    ('schedule, kind = "inverse_sqrt"', schema.InverseSqrt),
    ('schedule, kind = "cosine"', schema.Cosine),
    ('schedule, kind = "one_cycle"', schema.OneCycle),
    ('schedule, kind = "polynomial"', schema.Polynomial),
    ('schedule, kind = "piecewise"', schema.Piecewise),
    ('schedule, kind = "exponential"', schema.Exponential),
    ('schedule, kind = "fixed"', schema.Fixed),
    ("evaluate", schema.Evaluate),
    ("checkpoint", schema.Checkpoint),
    ("early_stop[]", schema.EarlyStop),
    ("restart", schema.Restart),
    ("track", schema.Track),
]
_IMAGE_TABLES: list[tuple[str, type[Section]]] = [
    ("", schema.ClassificationRecipe),
    ("data", image_sections.ImageData),
    ("data.augment", image_sections.Augment),
    ("model", image_sections.ImageModel),
    ("train", schema.ImageTrain),
    ("evaluate", image_sections.ImageEvaluation),
    ("checkpoint", schema.ImageCheckpoint),
    ("early_stop[]", schema.ImageEarlyStop),
]

_PREAMBLE = """\
# Recipe reference

Generated from the schema by `make docs`; do not edit. A recipe is a TOML file; every key can be overridden on
the command line with `--set`, e.g. `--set train.steps=100` or `--set data.train.0.weight=2.0`; with nothing
after the `=`, as in `--set train.clip_norm=`, the key is left out.

A recipe's `task` is `"translation"`, which the first part describes, or `"classification"` of pictures, for which the
tables under [Classification](#classification) take the place of those of the same name.
"""
_CLASSIFICATION = """\
# Classification

Where `task = "classification"`. Optimisers, schedules and the tables that are not here are those above.
"""


def reference_page() -> str:
    """docs/recipe.md as Markdown."""
    translation = (_table(path, section) for path, section in _TABLES)
    classification = (
        _table(path, section, "The top of a classification recipe") for path, section in _IMAGE_TABLES
    )
    return "\n".join([_PREAMBLE, *translation, _CLASSIFICATION, *classification])


def _table(path: str, section: type[Section], top: str = "The top of the file") -> str:
    title = f"## `{path}`" if path else f"## {top}"
    rows = [_row(name, field) for name, field in section.model_fields.items()]
    return "\n".join(
        [
            title,
            "",
            _one_line(section.__doc__ or ""),
            "",
            "| key | value | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(name: str, field: FieldInfo) -> str:
    return f"| `{name}` | {_kind(field)} | {_default(field)} | {_one_line(field.description or '')} |"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _kind(field: FieldInfo) -> str:
    words = [_kind_of(kind) for kind in _alternatives(field.annotation)]
    return ", ".join(dict.fromkeys(word for word in words if word))


def _alternatives(annotation: object) -> list[object]:
    arguments = typing.get_args(annotation)
    is_choice = typing.get_origin(annotation) in (typing.Literal, list)
    if not arguments or is_choice:
        return [annotation]
    return [kind for argument in arguments for kind in _alternatives(argument)]


def _kind_of(kind: object) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice!r}`".replace("'", '"') for choice in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return f"list of {_kind_of(_alternatives(typing.get_args(kind)[0])[0])}s"
    if isinstance(kind, type) and issubclass(kind, Section):
        return "table"
    names = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return names.get(kind, "") if isinstance(kind, type) else ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "needed"
    if field.default is None or isinstance(field.default, Section) or field.default == []:
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default!r}`".replace("'", '"')


if __name__ == "__main__":
    sys.stdout.write(reference_page())
