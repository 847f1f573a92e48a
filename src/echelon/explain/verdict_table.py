"""A verdict as the table of a paper, and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from echelon.explain.significance import Difference
from echelon.explain.verdict import Judgement, Verdict


def verdict_table(verdict: Verdict) -> list[list[str]]:
    """For people and papers: a row for each group, what differs significantly marked with an asterisk."""
    heading = ["model"]
    for name in verdict.metrics.values():
        heading += [name, f"difference [95%], {name}", "p"]
    rows = [heading]
    beside = [None, *verdict.judgements]
    for group, judgement in zip(verdict.groups, beside, strict=True):
        seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        row = [f"{group.name}{seeds}"]
        for metric in verdict.metrics:
            found = [each for each in judgement.differences if each.metric == metric] if judgement else []
            row += [_format_score(group.scores(metric)), *_format_difference(judgement, found)]
        rows.append(row)
    kept = [column for column in zip(*rows, strict=True) if any(cell for cell in column[1:])]
    return [list(row) for row in zip(*kept, strict=True)]


def _format_score(scores: Sequence[float]) -> str:
    spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{fmean(scores):.2f}{spread}"


def _format_difference(judgement: Judgement | None, found: Sequence[Difference]) -> list[str]:
    if judgement is None or not found:
        return ["", ""]
    (difference,) = found
    mark = "*" if difference.is_significant(judgement.level) else ""
    interval = f"[{difference.low:+.2f}, {difference.high:+.2f}]"
    return [f"{difference.size:+.2f}{mark} {interval}", f"{max(difference.p.values()):.2g}"]


def verdict_numbers(verdict: Verdict) -> list[list[str]]:
    """The same for programs: a row for each group and metric, the numbers in columns of their own."""
    rows = [
        ["model", "seeds", "metric", "score", "deviation", "difference", "low", "high", "p", "significant"]
    ]
    for group, judgement in zip(verdict.groups, [None, *verdict.judgements], strict=True):
        for metric in verdict.metrics:
            scores = group.scores(metric)
            row = [group.name, str(len(scores)), metric, str(fmean(scores))]
            row.append(str(stdev(scores)) if len(scores) > 1 else "")
            found = [each for each in judgement.differences if each.metric == metric] if judgement else []
            for each in found:
                assert judgement is not None
                numbers = (each.size, each.low, each.high, max(each.p.values()))
                row += [*map(str, numbers), "yes" if each.is_significant(judgement.level) else "no"]
            rows.append(row + [""] * (len(rows[0]) - len(row)))
    return rows
