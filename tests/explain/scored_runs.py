"""Run folders with scores and outputs on a test set, as `evaluate` keeps them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from echelon.runfolder import RunFolder, write_json
from echelon.tasks.translation_scoring import score_translations
from tests.explain.made_runs import MadeRun

WORDS = [
    "der",
    "die",
    "ein",
    "hund",
    "katze",
    "kind",
    "haus",
    "wiese",
    "springt",
    "läuft",
    "sieht",
    "über",
    "heute",
]


def sentences(count: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(4, 12))) for _ in range(count)]


def with_errors(lines: Sequence[str], share: float, seed: int) -> list[str]:
    """Translations in which some words are wrong."""
    dice = random.Random(seed)
    return [
        " ".join(dice.choice(WORDS) if dice.random() < share else word for word in line.split())
        for line in lines
    ]


REFERENCES = sentences(150)


def write_scored(
    folder: Path, errors: float, *overrides: str, seed: int = 1, references: Sequence[str] = REFERENCES
) -> RunFolder:
    """A translation run, some of whose words on the test set are wrong."""
    run = MadeRun(steps=20, overrides=(f"seed={seed}", *overrides)).write(folder)
    outputs = with_errors(references, errors, 1000 * seed + round(100 * errors))
    metrics, signature = score_translations(outputs, references)
    kept = {**metrics, "signature": signature, "checkpoint": "best", "step": 20, "split": "test"}
    write_json(run.score_file("test"), kept)
    run.outputs_file("test").write_text("".join(f"{line}\n" for line in outputs))
    run.references_file("test").write_text("".join(f"{line}\n" for line in references))
    return run
