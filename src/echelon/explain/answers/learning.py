"""Whether the model is trained, whether it overfits, and how its learning rate goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from echelon.explain.answers.case import Answer, Case
from echelon.explain.curves import find_rise, forecast, smooth
from echelon.explain.history import History
from echelon.explain.wording import show_count, show_share
from echelon.monitor.records import is_number
from echelon.recipe.schedule import formula, rate_by_step
from echelon.recipe.schema import (
    Cosine,
    Exponential,
    Fixed,
    InverseSqrt,
    Noam,
    OneCycle,
    Piecewise,
    Polynomial,
)
from echelon.recipe.sizes import model_width

_MATTERS = 0.02
"""A loss that more training would lower by less than this share is as good as at its end."""
_WORSE = 0.02
"""By how much, relative to its best, the validation loss must have risen to speak of overfitting."""
_LOST = 5
"""Steps at the end without a finite loss that are no accident; one or two may have been skipped."""


def is_it_trained(case: Case) -> Answer:
    history = case.history
    question = "Is the model fully trained?"
    setback, found = find_setback(history), forecast(*history.losses())
    if setback is not None:
        return setback.answer("trained", question, _best_words(history))
    if found is None:
        return Answer("trained", question, "unknown", "There are too few steps to tell.")
    more = max(1.0, found.last_step)
    gain, relative = found.gain(more), found.gain(more).expected / max(found.last, 1e-9)
    span = f"{gain.low:.3g} to {gain.high:.3g}"
    evidence = [
        f"the smoothed training loss is {found.last:.4g}, and falls by about the power "
        f"{sum(fit.power for fit in found.fits) / len(found.fits):.2g} of the step",
        f"another {show_count(more)} steps, as many again, would lower it by {gain.expected:.3g} ({span})",
        *_best_words(history),
    ]
    if overfits(history):
        best = _best_valid(history)
        return Answer(
            "trained",
            question,
            "past its best",
            "It is past its best: the validation loss has risen since step "
            f"{best['step'] if best else 0:,}, so more of the same will not help.",
            evidence,
        )
    if relative > _MATTERS:
        return Answer(
            "trained",
            question,
            "no",
            "No: the loss is still falling, and training twice as long would lower it by about "
            f"{show_share(relative)}.",
            evidence,
        )
    return Answer(
        "trained",
        question,
        "yes",
        f"Yes, nearly: training twice as long would lower the loss by only {show_share(relative)}.",
        evidence,
    )


def _scored(history: History) -> list[dict[str, Any]]:
    """The scorings of the validation set that have a loss, by step."""
    return [record for record in history.valid if is_number(record.get("loss"))]


def _best_valid(history: History) -> dict[str, Any] | None:
    return min(_scored(history), key=lambda record: record["loss"], default=None)


def _best_words(history: History) -> list[str]:
    best = _best_valid(history)
    if best is None:
        return []
    return [
        f"the best validation loss was {best['loss']:.4g} at step {best['step']:,}, of {len(history.valid)} scorings"
    ]


def _is_past_best(history: History) -> bool:
    """Whether the validation loss has risen clearly since its best."""
    best = _best_valid(history)
    return best is not None and bool(_scored(history)[-1]["loss"] > (1 + _WORSE) * best["loss"])


def overfits(history: History) -> bool:
    """Whether the validation loss has risen clearly since its best, while the training loss went on falling."""
    best = _best_valid(history)
    if best is None or not _is_past_best(history):
        return False
    last = _scored(history)[-1]
    return _train_loss_near(history, last["step"]) < _train_loss_near(history, best["step"])


@dataclass(frozen=True)
class Setback:
    """How a run has become worse in another way than by overfitting."""

    verdict: Literal["diverged", "past its best"]
    words: str
    evidence: list[str]
    has_scores: bool
    """Whether one of its checkpoints is the best."""

    def answer(self, key: str, question: str, evidence: list[str]) -> Answer:
        state = "it has diverged" if self.verdict == "diverged" else "it is past its best"
        remedy = "Try a lower learning rate or a longer warm-up"
        if self.has_scores:
            remedy += "; the weights to use are those of the best checkpoint (--checkpoint best)"
        sentence = f"No, {state}: {self.words}. {remedy}."
        return Answer(key, question, self.verdict, sentence, [*self.evidence, *evidence])


def find_setback(history: History) -> Setback | None:
    """Losses that are not finite any more, a training loss that has risen, or the validation loss without it."""
    steps, losses = history.losses()
    best, rise, has_scores = _best_valid(history), find_rise(steps, losses), bool(history.valid)
    if history.num_lost >= _LOST:
        words = f"the last {history.num_lost:,} steps have no finite loss"
        seen = "no step has a finite loss"
        if losses:
            seen = f"the last finite training loss was {losses[-1]:.4g} at step {steps[-1]:,.0f}"
        return Setback("diverged", words, [seen], has_scores)
    if rise is not None:
        words = (
            f"since step {rise.step:,.0f} the training loss has risen {_rise_words(rise.lowest, rise.last)}"
        )
        seen = (
            f"smoothed training loss {rise.last:.4g} at step {rise.last_step:,.0f}; its lowest was "
            f"{rise.lowest:.4g} at step {rise.step:,.0f}"
        )
        return Setback("diverged", words, [seen], has_scores)
    if best is not None and _is_past_best(history) and not overfits(history):
        risen = _rise_words(best["loss"], _scored(history)[-1]["loss"])
        words = f"since step {best['step']:,} the validation loss has risen {risen} with no fall of the training loss"
        return Setback("past its best", words, [], has_scores)
    return None


def _train_loss_near(history: History, step: int) -> float:
    """The smoothed training loss at a step."""
    steps, losses = history.losses()
    if not losses:
        return math.nan
    smoothed = smooth(losses)
    return float(smoothed[min(range(len(steps)), key=lambda index: abs(steps[index] - step))])


def _rise_words(before: float, after: float) -> str:
    """By what share a loss has risen; from nothing, there is none."""
    return f"by {show_share(after / before - 1)}" if before else f"from 0 to {after:.4g}"


def is_it_overfitting(case: Case) -> Answer:
    history, question = case.history, "Is it overfitting?"
    best, scored, setback = _best_valid(history), _scored(history), find_setback(history)
    if best is None or len(scored) < 2:
        if setback is not None:
            return setback.answer("overfitting", question, _best_words(history))
        return Answer(
            "overfitting",
            question,
            "unknown",
            "The validation set was scored too seldom to tell; evaluate.every says how often.",
        )
    last = scored[-1]
    train_loss = _train_loss_near(history, last["step"])
    evidence = [
        f"validation loss {last['loss']:.4g} at step {last['step']:,}; its best was {best['loss']:.4g} at step "
        f"{best['step']:,}",
        f"smoothed training loss at the same step: {train_loss:.4g}, a gap of {last['loss'] - train_loss:+.3g}",
    ]
    if overfits(history):
        sentence = (
            f"Yes: since step {best['step']:,} the validation loss has risen {_rise_words(best['loss'], last['loss'])} "
            "while the training loss went on falling. The best checkpoint is from before that."
        )
        return Answer("overfitting", question, "yes", sentence, evidence)
    if setback is not None:
        return setback.answer("overfitting", question, evidence)
    sentence = "No: the validation loss is at or near its best at the end."
    return Answer("overfitting", question, "no", sentence, evidence)


def what_rate(case: Case) -> Answer:
    recipe, history = case.history.recipe, case.history
    rate = rate_by_step(recipe, history.planned_steps)
    rates = {
        step: rate(step) for step in range(1, history.planned_steps + 1, max(1, history.planned_steps // 500))
    }
    peak = max(rates, key=lambda step: rates[step])
    return Answer(
        "schedule",
        "What is the learning-rate schedule?",
        recipe.schedule.kind,
        f"{schedule_words(recipe.schedule)} It is highest, {rates[peak]:.3g}, about step {peak:,}, and "
        f"{rate(history.planned_steps):.3g} at the last step.",
        [f"in the step s: {formula(recipe.schedule, model_width(recipe))}"],
    )


def schedule_words(schedule: Any) -> str:
    """What a schedule does, and why it is that way."""
    match schedule:
        case Noam() | InverseSqrt():
            return (
                f"The rate rises in a straight line for {schedule.warmup_steps:,} steps, while "
                "Adam's averages are still forming, and then falls with the square root of the step."
            )
        case Cosine():
            return "After a warm-up the rate follows half a cosine down: slowly, then quickly, then slowly again."
        case Polynomial():
            return f"After {schedule.warmup_steps:,} steps of warm-up the rate falls along a polynomial to its end."
        case OneCycle():
            return "The rate rises to a high peak and falls again to almost nothing: one cycle for the whole training."
        case Piecewise():
            return "The rate is constant and drops at given steps."
        case Exponential():
            return "The rate is multiplied by the same factor again and again."
        case Fixed():
            return "The rate stays the same."
    raise AssertionError(schedule)
