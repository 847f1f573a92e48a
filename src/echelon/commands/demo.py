"""`demo`: the embedded job, from nothing to translations and a report."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.training import TrainOptions, remove_run, train
from echelon.recipe.shipped import find_recipe
from echelon.runfolder import RunFolder

SENTENCES = (
    "She does not open the window because it is cold.",
    "We do not know whether the train arrives at nine o'clock.",
    "The small dog sleeps under the table because it is tired.",
    "My grandmother has not read the letter yet.",
)
"""Sentences of the grammar that are not in the training set; tests/commands/test_demo.py checks that."""


def demo(run: Path, fresh: bool, overrides: list[str], console: Console) -> dict[str, Any]:
    """Make the corpus, train on 2 workers, score, translate, report; returns what `demo --json` prints."""
    started = time.monotonic()
    if fresh and RunFolder(run).recipe.exists():
        remove_run(RunFolder(run))
    is_resumed = RunFolder(run).recipe.exists()
    options = TrainOptions(find_recipe("demo"), run, overrides=overrides, as_before=is_resumed)
    result = train(options, console)
    result["seconds"] = round(time.monotonic() - started, 1)
    if not result["finished"]:
        return result
    from echelon.commands.report import write_report
    from echelon.explain.page import report_page
    from echelon.explain.report import build_report
    from echelon.inference.translator import Translator

    translations = [str(found) for found in Translator.load(run).translate(SENTENCES)]
    translated = dict(zip(SENTENCES, translations, strict=True))
    folder = RunFolder(run)
    write_report(folder.report, report_page(build_report(folder)))
    return {**result, "translations": translated, "report": str(folder.report), "program": _program()}


def _program() -> str:
    """How to call `echelon` here: `make demo` does not put the virtual environment on the PATH."""
    return "echelon" if shutil.which("echelon") else sys.argv[0]
