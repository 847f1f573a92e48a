"""`compare`: runs side by side in the requested format, scored first where their outputs were not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from echelon.commands.report import ReportForm, choose_form, make_reports
from echelon.console import tell
from echelon.errors import EchelonError, UserError
from echelon.explain.comparison import Comparison, compare_reports, comparison_markdown, comparison_text
from echelon.explain.page import comparison_page
from echelon.explain.tables import csv_table, latex_table
from echelon.explain.verdict import has_outputs
from echelon.explain.verdict_table import verdict_numbers, verdict_table
from echelon.files.checkpoint_layout import complete_folders
from echelon.runfolder import RunFolder, to_json

ComparisonForm = ReportForm | Literal["csv", "latex"]
_TABLES: dict[str, Literal["csv", "latex"]] = {".csv": "csv", ".tex": "latex"}
_OWN_SETS: dict[str, Literal["test", "valid"]] = {"test": "test", "valid": "valid"}


def compare_runs(runs: list[Path], hourly: float | None = None, set_name: str = "test") -> Comparison:
    """Runs side by side, each compared with the first, by their scores on a set of that name."""
    if len(runs) < 2:
        raise UserError("compare needs two runs or more; `echelon report` explains one")
    return compare_reports(make_reports(runs, hourly, None), set_name)


def score_missing(runs: list[Path], set_name: str, console: Console) -> None:
    """Score runs on a set of their own if what they answer was not kept; not those that are being trained."""
    split = _OWN_SETS.get(set_name)
    for run in map(RunFolder, runs):
        is_ready = not run.is_locked() and complete_folders(run.checkpoints)
        if split is None or not is_ready or has_outputs(run, set_name):
            continue
        from echelon.commands.evaluate import EvaluateOptions, evaluate

        tell(console, f"{run.path}: no outputs for the {set_name} set were kept")
        try:
            evaluate(run, EvaluateOptions(split=split), console)
        except EchelonError as error:
            tell(console, f"{run.path}: cannot be scored: {error}")


def choose_comparison_form(form: ReportForm | None, to: Path | None) -> ComparisonForm:
    """Like `choose_form`, with the tables of a paper as well."""
    table = _TABLES.get(to.suffix.lower()) if to and form is None else None
    return table or choose_form(form, to)


def render_comparison(comparison: Comparison, form: ComparisonForm, width: int | None = None) -> str:
    """A comparison in the given form; tables of text fit `width`. UserError for a table of scores if there is none."""
    match form:
        case "text":
            return comparison_text(comparison, width) + "\n"
        case "markdown":
            return comparison_markdown(comparison)
        case "json":
            return to_json(comparison.to_json(), indent=2) + "\n"
        case "html":
            return comparison_page(comparison)
    if isinstance(comparison.verdict, str):
        raise UserError(comparison.verdict)
    if form == "csv":
        return csv_table(verdict_numbers(comparison.verdict))
    note = [*comparison.verdict.sentences, comparison.verdict.signature]
    return latex_table(verdict_table(comparison.verdict), "\n".join(note))
