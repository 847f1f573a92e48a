"""Which classes are recognised well, which are not, and what those are confused with."""

from __future__ import annotations

from echelon.explain.answers.case import Answer, Case
from echelon.explain.class_accuracy import read_class_scores
from echelon.explain.units import show_count, show_times

_SHOWN = 5


def which_classes(case: Case) -> Answer | None:
    """None for runs that do not classify, or are not scored yet."""
    scores = read_class_scores(case.history.run)
    known = [entry for entry in scores.classes if entry.top1 is not None] if scores else []
    if scores is None or not known:
        return None
    order = sorted(known, key=lambda entry: (entry.top1 or 0.0, entry.name))
    worst, best = order[0], order[-1]
    evidence = [f"{entry.name}: {entry.top1:.1f}% of {show_count(entry.images)}" for entry in order[:_SHOWN]]
    evidence += [
        f"{pair.name} mistaken for {pair.taken_for}: {show_times(pair.images)}"
        for pair in scores.confused[:_SHOWN]
    ]
    return Answer(
        "classes",
        "Which classes are recognised best and worst, and which are confused?",
        worst.name,
        f"On the {scores.source}: {best.name} is recognised best ({best.top1:.1f}%), {worst.name} worst "
        f"({worst.top1:.1f}%)"
        + (
            f"; most often {scores.confused[0].name} is mistaken for {scores.confused[0].taken_for}."
            if scores.confused
            else "."
        ),
        evidence,
    )
