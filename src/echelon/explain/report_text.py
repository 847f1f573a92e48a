"""A report as text for a terminal, and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from echelon.explain.report import Report

_WIDTH = 100
"""Columns in a file, or on a terminal with more."""


def score_lines(report: Report) -> list[str]:
    """The run's test score and best validation score."""
    history = report.history
    lines = [str(history.test)] if history.test else []
    best = history.best_validation()
    if best is not None:
        lines.append(f"best validation {history.metric[0]} {best['best']:.2f} (step {best['step']:,})")
    return lines


def report_text(report: Report, width: int | None = None) -> str:
    """Question by question, with the evidence indented, in lines that fit `width`."""
    history, columns = report.history, min(_WIDTH, width or _WIDTH)
    lines = [
        f"{report.name}: {history.outcome}, {len(history.steps):,} of {history.planned_steps:,} steps",
        *score_lines(report),
        "",
    ]
    for answer in report.answers:
        lines.append(answer.heading)
        lines += textwrap.wrap(answer.answer, columns, initial_indent="  ", subsequent_indent="  ")
        for evidence in answer.evidence:
            lines += textwrap.wrap(evidence, columns, initial_indent="    - ", subsequent_indent="      ")
        lines.append("")
    return "\n".join(lines).rstrip()


def report_markdown(report: Report, charts: Mapping[str, str] | None = None) -> str:
    """The same as Markdown; `charts` are the picture files by name."""
    history = report.history
    lines = [
        f"# {report.name}",
        "",
        f"{history.outcome.capitalize()}, {len(history.steps):,} of {history.planned_steps:,} steps.",
        "",
        *(f"- {_escaped(line)}" for line in score_lines(report)),
        "",
    ]
    for answer in report.answers:
        lines += [f"## {answer.heading}", "", _escaped(answer.answer), ""]
        lines += [f"- {_escaped(evidence)}" for evidence in answer.evidence]
        lines += [""] if answer.evidence else []
    for name, file in (charts or {}).items():
        lines += [f"![{report.charts[name].title}]({file})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _escaped(text: str) -> str:
    """Escape what Markdown would interpret."""
    return "".join(f"\\{letter}" if letter in "*_`[]<>#|" else letter for letter in text)
