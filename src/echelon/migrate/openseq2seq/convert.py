"""A recipe from a configuration of OpenSeq2Seq, and what to know about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from echelon.errors import UserError
from echelon.migrate.openseq2seq.base_params import (
    RUN_REASONS,
    RUN_SILENT,
    Draft,
    convert_optimiser,
    convert_run,
    convert_schedule,
)
from echelon.migrate.openseq2seq.image2label import convert_images
from echelon.migrate.openseq2seq.settings import Settings, differing, merged
from echelon.migrate.openseq2seq.syntax import Named, Table, read_what_can_be
from echelon.migrate.openseq2seq.text2text import convert_text

MODES = ("train", "eval", "infer")
PARTS = {
    "Text2Text": {"encoder": "TransformerEncoder", "decoder": "TransformerDecoder"},
    "Image2Label": {"encoder": "ResNetEncoder"},
}
"""The models that have an equivalent, and what they must consist of."""
SCORING_REASONS = {
    "batch_size_per_gpu": "is left out: it makes no difference to the score",
    "data_dir": "is left out: data.path has what is trained on and what is scored",
}
SCORING_SILENT = {"shuffle", "repeat"}  # no difference to the score


@dataclass(frozen=True)
class Made:
    """What a configuration means."""

    table: dict[str, Any]
    """The recipe."""
    notes: list[str]
    """What has no equivalent, or means something else."""
    logdir: str | None
    infer_source: str | None


def convert(
    text: str, where: str, workers: int | None = None, changes: Mapping[str, str] = MappingProxyType({})
) -> Made:
    """The recipe that a configuration means.

    `workers` is how many processes or GPUs the configuration was used with, if the file does not say; `changes`
    replace settings of base_params. UserError if the file is not such a configuration, or has no equivalent.
    """
    variables, problem = read_what_can_be(text, where)
    model = variables.get("base_model")
    base = variables.get("base_params")
    if not isinstance(model, Named) or not isinstance(base, Table):
        raise problem or UserError(
            f"{where}: is no configuration of OpenSeq2Seq: it has no base_model or no base_params"
        )
    own_train = variables.get("train_params")
    used = merged(base, own_train) if isinstance(own_train, Table) else base
    _refuse_other_models(model.name, f"{where}:{variables.lines['base_model']}", Settings(used, where))
    if problem is not None:
        raise problem
    for key, value in changes.items():
        _change(base, key, value)
    own = {mode: table for mode in MODES if isinstance(table := variables.get(f"{mode}_params"), Table)}
    modes = {mode: Settings(merged(base, table), where) for mode, table in own.items()}
    train = modes.setdefault("train", Settings(base, where))
    draft = Draft()
    draft.table = {"version": 1, "name": _name(where)}
    slots = convert_run(train, draft, workers)
    if model.name == "Text2Text":
        convert_text(modes, draft, slots)
        convert_schedule(train, draft, None)
        scoring_read = {"data_layer", "data_layer_params"}
    else:
        convert_schedule(train, draft, convert_images(train, draft, slots))
        scoring_read = set()
    convert_optimiser(train, draft)
    draft.notes += train.left_over(RUN_REASONS, RUN_SILENT)
    draft.notes += _scoring_notes(own, merged(base, own.get("train", Table())), scoring_read)
    infer = modes.get("infer")
    source = infer.inner("data_layer_params").text("source_file") if infer is not None else None
    return Made(_in_order(draft.table), draft.notes, train.text("logdir"), source)


def _refuse_other_models(model: str, place: str, settings: Settings) -> None:
    """UserError if the model has no equivalent: nothing in such a file is worth mending."""
    if model not in PARTS:
        raise UserError(
            f"{place}: base_model is {model}, which has no equivalent; Text2Text (Transformer) and Image2Label "
            "(ResNet) have one"
        )
    for key, expected in PARTS[model].items():
        settings.require_part(key, expected)


def _scoring_notes(own: Mapping[str, Table], train: Table, read: Collection[str]) -> list[str]:
    """What eval_params and infer_params say that is neither as in training nor read."""
    unknown = "is left out: what is trained is scored with the same settings"
    return [
        f"line {line}: {place}{key} {SCORING_REASONS.get(key, unknown)}"
        for mode in ("eval", "infer")
        if mode in own
        for place, key, line in differing(own[mode], train, f"{mode}_params.")
        if key not in SCORING_SILENT and f"{place}{key}".split(".")[1] not in read
    ]


def _change(base: Table, key: str, text: str) -> None:
    """Set `a/b` in the tables, the value read as Python's if it is one."""
    *tables, last = key.split("/")
    place = base
    for name in tables:
        inner = place.get(name)
        if not isinstance(inner, Table):
            raise UserError(f"--{key}: the configuration has no dictionary {name}")
        place = inner
    if last not in place:
        raise UserError(f"--{key}: the configuration has no such setting in base_params")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = text
    place.put(last, value, place.lines[last])


def _name(where: str) -> str:
    """The file's name as a run's: every character that a run's name cannot have becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(where).stem).lstrip("._-") or "converted"


def _in_order(table: dict[str, Any]) -> dict[str, Any]:
    order = (
        "version",
        "name",
        "task",
        "seed",
        "data",
        "model",
        "train",
        "optimiser",
        "schedule",
        "evaluate",
        "checkpoint",
    )
    return {key: table[key] for key in order if table.get(key) not in (None, {})}
