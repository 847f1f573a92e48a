"""Whether the model has converged, whether it overfits, and its learning rate schedule."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from echelon.explain.answers.case import Answer, Case
from echelon.explain.curves import find_rise, smooth
from echelon.explain.history import TWICE, History
from echelon.explain.outlook import Outlook, last_score, show_scorings, too_few_steps
from echelon.explain.units import show_count, show_share
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
from echelon.recipe.tasks import model_width

_MATTERS = 0.02
"""A loss that more training would lower by less than this share is as good as at its end."""
_MATTERING_POINTS = 0.5
"""The same of a score, in points out of 100."""
_WORSE = 0.02
"""By how much, relative to its best, the validation loss must have risen to speak of overfitting."""
_FEWEST_BENDS, _CLEAR_BENDS = 2, 1.5
"""A rise is clear that is more than so many times the usual bend of the last scorings. Of noise alone, a bend is 1.65
standard deviations, and the last value lies about 1.5 of them above the best."""
_LOST = 5
"""Steps at the end without a finite loss that are no accident; one or two may have been skipped."""


def is_it_trained(case: Case) -> Answer:
    history = case.history
    question = "Is the model fully trained?"
    setback, loss, score = find_setback(history), case.loss_outlook, case.score_outlook
    if setback is not None:
        return setback.answer("trained", question, _format_best(history))
    if loss is None:
        return Answer("trained", question, "unknown", too_few_steps(history), _format_best(history))
    evidence = [*_outlook_evidence(history, loss, score), *_format_best(history)]
    best = _best_valid(history)
    if best is not None and overfits(history):
        sentence = (
            f"It is past its best: the validation loss has risen since step {best['step']:,}, so more of the same will "
            "not help."
        )
        return Answer("trained", question, "past its best", sentence, evidence)
    verdict, sentence = _tell_outlook(history, loss, score)
    return Answer("trained", question, verdict, f"{sentence}{_format_unfinished(history)}", evidence)


def _format_unfinished(history: History) -> str:
    """That the run has not reached its planned end, if so."""
    if history.is_complete or history.last_step >= history.planned_steps:
        return ""
    return f" It stands at step {history.last_step:,} of the {history.planned_steps:,} that are planned."


def _outlook_evidence(history: History, loss: Outlook, score: Outlook | str) -> list[str]:
    """What more steps would bring, with 90% intervals."""
    later, steps = loss.later, show_count(loss.step - history.last_step)
    total = "twice as many in all" if history.ahead == TWICE else f"to step {loss.step:,}, the planned end"
    evidence = [
        f"another {steps} steps ({total}) would bring the smoothed training loss from {loss.now:.4g} "
        f"to about {later.expected:.4g} (90% interval: {later.low:.4g} to {later.high:.4g})",
    ]
    if isinstance(score, str):
        return [*evidence, score]
    if score.now >= 100:
        return evidence
    return [
        *evidence,
        f"and the validation {history.metric[0]} from {score.now:.2f} to {_format_later_score(score)}",
    ]


def _format_later_score(score: Outlook) -> str:
    """The score itself, as in the evidence: an interval of the gain would end at 0 and hide that it may also fall."""
    later = score.later
    return f"about {later.expected:.2f} (90% interval: {later.low:.2f} to {later.high:.2f})"


def _tell_outlook(history: History, loss: Outlook, score: Outlook | str) -> tuple[str, str]:
    """Verdict and sentence for a run that has not got worse. The score decides; without one, the loss."""
    relative = loss.gain.expected / max(loss.now, 1e-9)
    falls = f"lower the training loss by about {show_share(relative)}"
    more = "training twice as long" if history.ahead == TWICE else "training to the planned end"
    if isinstance(score, str):
        last = last_score(history)
        if last is not None and 100 - last < _MATTERING_POINTS:
            name = history.metric[0]
            return "yes", f"Yes, it is as good as it gets: the validation {name} is {last:.2f} of 100."
        unknown = "" if last is None else _format_unknown_score(history, last)
        if relative > _MATTERS:
            return "no", f"No: the loss is still falling, and {more} would {falls}{unknown}."
        return (
            "yes",
            f"Yes, nearly: {more} would lower the loss by only {show_share(relative)}{unknown}.",
        )
    reached = f"the validation {history.metric[0]} is {score.now:.2f}"
    if score.now >= 100:
        return "yes", f"Yes, it is as good as it gets: {reached}, the highest there is."
    longer = f"{reached}, and {more} would bring it to {_format_later_score(score)}"
    if score.gain.expected < _MATTERING_POINTS:
        return "yes", f"Yes, it is as good as it gets: {longer}."
    return "no", f"No: {longer} and {falls}."


def _format_unknown_score(history: History, last: float) -> str:
    """What the loss alone does not answer."""
    return f"; how the validation {history.metric[0]}, now {last:.2f}, would change is not known"


def _scored(history: History) -> list[dict[str, Any]]:
    """The scorings of the validation set that have a loss, by step."""
    return [record for record in history.valid if is_number(record.get("loss"))]


def _best_valid(history: History) -> dict[str, Any] | None:
    return min(_scored(history), key=lambda record: record["loss"], default=None)


def _format_best(history: History) -> list[str]:
    best = _best_valid(history)
    if best is None:
        return []
    return [
        f"the best validation loss was {best['loss']:.4g} at step {best['step']:,}, of "
        f"{show_scorings(len(history.valid))}"
    ]


def _has_risen(history: History) -> bool:
    """Whether the validation loss has risen clearly since its best: more than it bends from scoring to scoring."""
    best, losses = _best_valid(history), [float(record["loss"]) for record in _scored(history)]
    if best is None or losses[-1] <= (1 + _WORSE) * best["loss"]:
        return False
    late = losses[-max(_FEWEST_BENDS + 2, len(losses) // 2) :]
    bends = [abs(a - 2 * b + c) for a, b, c in zip(late, late[1:], late[2:], strict=False)]
    return len(bends) < _FEWEST_BENDS or losses[-1] - best["loss"] > _CLEAR_BENDS * statistics.median(bends)


def _is_past_best(history: History) -> bool:
    """Whether it has, and the score that people ask for has not stayed at its best: a model that is only less sure of
    what it gets right has lost nothing."""
    last = next(
        (r[history.metric[1]] for r in reversed(history.valid) if r.get(history.metric[1]) is not None), None
    )
    best = history.best_score()
    is_at_best = last is not None and best is not None and last > best - _MATTERING_POINTS
    return _has_risen(history) and not is_at_best


def overfits(history: History) -> bool:
    """Whether the validation loss has risen clearly since its best while the training loss kept falling."""
    best = _best_valid(history)
    if best is None or not _is_past_best(history):
        return False
    last = _scored(history)[-1]
    return _train_loss_near(history, last["step"]) < _train_loss_near(history, best["step"])


@dataclass(frozen=True)
class Setback:
    """How a run has got worse other than by overfitting."""

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
            f"since step {rise.step:,.0f} the training loss has risen {_format_rise(rise.lowest, rise.last)}"
        )
        seen = (
            f"smoothed training loss {rise.last:.4g} at step {rise.last_step:,.0f}; its lowest was "
            f"{rise.lowest:.4g} at step {rise.step:,.0f}"
        )
        return Setback("diverged", words, [seen], has_scores)
    if best is not None and _is_past_best(history) and not overfits(history):
        risen = _format_rise(best["loss"], _scored(history)[-1]["loss"])
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


def _format_rise(before: float, after: float) -> str:
    """The relative rise of a loss, as text."""
    return f"by {show_share(after / before - 1)}" if before else f"from 0 to {after:.4g}"


def is_it_overfitting(case: Case) -> Answer:
    history, question = case.history, "Is it overfitting?"
    best, scored, setback = _best_valid(history), _scored(history), find_setback(history)
    if best is None or len(scored) < 2:
        if setback is not None:
            return setback.answer("overfitting", question, _format_best(history))
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
    rise = _format_rise(best["loss"], last["loss"])
    if overfits(history):
        sentence = (
            f"Yes: since step {best['step']:,} the validation loss has risen {rise} "
            "while the training loss kept falling. The best checkpoint is from before that."
        )
        return Answer("overfitting", question, "yes", sentence, evidence)
    if setback is not None:
        return setback.answer("overfitting", question, evidence)
    sentence = "No: the validation loss is at or near its best at the end."
    if _has_risen(history):
        sentence = (
            f"No: the validation loss has risen {rise} since step {best['step']:,}, "
            f"but {history.metric[0]} has stayed at its best."
        )
    return Answer("overfitting", question, "no", sentence, evidence)


def what_rate(case: Case) -> Answer:
    recipe, history = case.history.recipe, case.history
    rate = rate_by_step(recipe, history.planned_steps)
    rates = {
        step: rate(step) for step in range(1, history.planned_steps + 1, max(1, history.planned_steps // 500))
    }
    used = dict(history.rates())
    last = max(used, default=0)
    rates = used | {step: value for step, value in rates.items() if step > last}
    peak = max(rates, key=lambda step: rates[step])
    return Answer(
        "schedule",
        "What is the learning-rate schedule?",
        recipe.schedule.kind,
        f"{format_schedule(recipe.schedule)} {_format_peak(rates, peak, rate(history.planned_steps))}",
        [f"at step s: {formula(recipe.schedule, model_width(recipe))}", *_changed_lengths(history, used)],
    )


def _changed_lengths(history: History, used: dict[int, float]) -> list[str]:
    """Where a start changed the run's length, and so its schedule."""
    found = []
    for before, start in itertools.pairwise(history.starts):
        old, new, step = before.get("steps"), start.get("steps"), start.get("step") or 0
        if not old or not new or old == new or not step:
            continue
        rate = ""
        if step in used and step + 1 in used:
            rate = f", and the rate went from {used[step]:.3g} to {used[step + 1]:.3g}"
        found.append(f"after step {step:,} the run's length changed from {old:,} to {new:,} steps{rate}")
    return found


def _format_peak(rates: dict[int, float], peak: int, last: float) -> str:
    """Where the rate is highest; a run may be too short for it to fall."""
    if len(set(rates.values())) == 1:
        return f"It is {last:.3g} in every step."
    if last >= rates[peak]:
        return f"This run ends with the highest rate, {last:.3g}: it is too short for the rate to fall."
    return f"It peaks at {rates[peak]:.3g} near step {peak:,} and is {last:.3g} at the last step."


def format_schedule(schedule: Any) -> str:
    """What a schedule does, and why."""
    match schedule:
        case Noam() | InverseSqrt():
            return (
                f"The rate rises in a straight line for {schedule.warmup_steps:,} steps, while "
                "Adam's averages are still forming, and then falls with the square root of the step."
            )
        case Cosine():
            return "After a warm-up the rate follows half a cosine down: slowly, then quickly, then slowly again."
        case Polynomial():
            return f"After {schedule.warmup_steps:,} steps of warm-up the rate decays polynomially to its final value."
        case OneCycle():
            return "The rate rises to a high peak and falls again to almost nothing: one cycle for the whole training."
        case Piecewise():
            return "The rate is constant and drops at given steps."
        case Exponential():
            return "The rate decays exponentially: it is multiplied by the same factor at regular intervals."
        case Fixed():
            return "The rate is constant."
    raise AssertionError(schedule)
