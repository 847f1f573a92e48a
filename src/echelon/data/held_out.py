"""Validation and test sets: what their scores leave out, and what a user should know about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echelon.data import stages
from echelon.data.cleaning import NormalForm
from echelon.data.corpora import ParallelText
from echelon.data.prepared import InputEntry, PairStore, Prepared, open_store
from echelon.data.subwords import check_plain
from echelon.recipe import schema

LONGEST_SCORED = 1024
"""Tokens that a side of any pair may have and still count in the loss: attention's memory grows with their square."""


def longest_scored(data: schema.Data) -> int:
    """The most tokens, EOS included, that a side may have for its pair to count in the loss."""
    return max(data.max_tokens, LONGEST_SCORED)


def longest_part(recipe: schema.TranslationRecipe) -> int:
    """Tokens, EOS included, above which lines are translated in parts."""
    return recipe.evaluate.split_above or recipe.data.max_tokens


def longer_sides(store: PairStore, count: int | None = None) -> NDArray[np.uint32]:
    """Tokens of the longer side of the first `count` pairs, EOS included."""
    return np.maximum(store.source_lengths[:count], store.target_lengths[:count])


def encode_set(name: str, text: ParallelText, form: NormalForm, tokeniser: Path, folder: Path) -> PairStore:
    """A set that is not part of prepared data, encoded into files in `folder`; DataError if it cannot be used."""
    stages.check_held_out([text])
    check_plain([text])
    encoded = stages.encode_text(name, text, form, tokeniser, folder)
    return open_store(folder, encoded.entry, encoded.files)


def notes_on(prepared: Prepared, recipe: schema.TranslationRecipe) -> list[str]:
    """Notes on what is allowed in validation and test sets but seldom intended."""
    sets = {"valid": prepared.valid} | ({"test": prepared.test} if prepared.test is not None else {})
    long = (_note_long_lines(name, store, recipe) for name, store in sets.items())
    same = (_note_same_text(name, prepared.manifest.inputs) for name in sets)
    return [note for note in (*same, *long) if note is not None]


def _note_long_lines(name: str, store: PairStore, recipe: schema.TranslationRecipe) -> str | None:
    limit, lengths = longest_scored(recipe.data), longer_sides(store)
    longer = np.flatnonzero(lengths > limit)
    if not len(longer):
        return None
    worst = int(lengths.argmax())
    return (
        f"note: data.{name}: {describe_left_out(len(longer), limit)} (line {worst + 1:,} has {int(lengths[worst]):,}); "
        f"lines are translated in parts of at most {longest_part(recipe):,}. Is the file right?"
    )


def describe_left_out(count: int, limit: int) -> str:
    """A note that some pairs do not count in a loss, and why."""
    pairs = "1 pair has a side" if count == 1 else f"{count:,} pairs have a side"
    return f"{pairs} of more than {limit:,} tokens and {'does' if count == 1 else 'do'} not count in the loss"


def _note_same_text(name: str, inputs: tuple[InputEntry, ...]) -> str | None:
    """A key made of the inputs' hashes and the archive member or columns that are read."""
    contents = {_part(entry): entry for entry in inputs if entry.name.startswith("train-")}
    for entry in inputs:
        is_file = not entry.name.endswith(".embedded")  # whose splits all have the hash of the whole
        if is_file and entry.name.startswith(f"{name}.") and _part(entry) in contents:
            return (
                f"note: data.{name} is trained on: {entry.origin} has the same content as "
                f"{contents[_part(entry)].origin} in data.train, so its score says nothing about other text"
            )
    return None


def _part(entry: InputEntry) -> tuple[str, str]:
    return entry.name.partition(".")[2], entry.sha256
