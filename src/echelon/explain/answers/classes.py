"""Which classes are recognised well, which are not, and what those are confused with."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.explain.answers.case import Answer, Case
from echelon.explain.class_accuracy import ClassScore, read_class_scores
from echelon.explain.units import show_count, show_times

_SHOWN = 5
_NAMED = 3


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
        f"On the {scores.source}: {_name_all(known, best)} recognised best ({best.top1:.1f}%), "
        f"{_name_all(known, worst)} worst ({worst.top1:.1f}%)"
        + (
            f"; most often {scores.confused[0].name} is mistaken for {scores.confused[0].taken_for}."
            if scores.confused
            else "."
        ),
        evidence,
    )


def _name_all(known: Sequence[ClassScore], one: ClassScore) -> str:
    """A class, with the others that do as well as it."""
    names = [entry.name for entry in known if entry.top1 == one.top1]
    if len(names) > _NAMED:
        return f"{len(names)} classes are"
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"
