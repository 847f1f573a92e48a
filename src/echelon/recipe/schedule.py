"""The learning rate as a function of the step, in plain Python: `describe` shows it, training follows it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from echelon.recipe.own_code import import_own
from echelon.recipe.schema import (
    Cosine,
    Exponential,
    Fixed,
    InverseSqrt,
    Noam,
    OneCycle,
    OwnSchedule,
    Piecewise,
    Polynomial,
    Recipe,
    Schedule,
)
from echelon.recipe.tasks import model_width


def learning_rate(schedule: Schedule, step: int, *, steps: int, d_model: int) -> float:
    """The rate of update number `step`; the first update is 1, the last is `steps`."""
    assert step >= 1, "updates are counted from 1"
    match schedule:
        case Noam():
            return (
                schedule.scale
                / math.sqrt(d_model)
                * min(1 / math.sqrt(step), step / math.pow(schedule.warmup_steps, 1.5))
            )
        case InverseSqrt():
            warm_up = step / schedule.warmup_steps
            return schedule.learning_rate * min(warm_up, 1 / math.sqrt(warm_up))
        case Cosine():
            return _warm_up(schedule, step) or _between(
                schedule.learning_rate, schedule.final_learning_rate, _cosine(_decayed(schedule, step, steps))
            )
        case Polynomial():
            return _warm_up(schedule, step) or _between(
                schedule.final_learning_rate,
                schedule.learning_rate,
                (1 - _decayed(schedule, step, steps)) ** schedule.power,
            )
        case OneCycle():
            return _one_cycle(schedule, step, steps)
        case Piecewise():
            first, piece = schedule.learning_rates[0], bisect.bisect_right(schedule.boundaries, step)
            return _ramp(first, schedule.warmup_steps, step) or schedule.learning_rates[piece]
        case Exponential():
            return _warm_up(schedule, step) or _exponential(schedule, step)
        case Fixed():
            return _warm_up(schedule, step) or schedule.learning_rate
        case OwnSchedule():
            return schedule.learning_rate * float(import_own(schedule.rate)(step, steps))


def rate_by_step(recipe: Recipe, steps: int) -> Callable[[int], float]:
    """The recipe's learning rate as a function of the update's number, for a training of `steps` updates."""
    d_model = model_width(recipe)
    return lambda step: learning_rate(recipe.schedule, step, steps=steps, d_model=d_model)


def formula(schedule: Schedule, d_model: int) -> str:
    """The schedule as a formula in the step s, with the recipe's numbers."""
    match schedule:
        case Noam(scale=scale, warmup_steps=warm_up):
            return f"{scale:g} x {d_model}^-0.5 x min(s^-0.5, s x {warm_up}^-1.5)"
        case InverseSqrt(learning_rate=peak, warmup_steps=warm_up):
            return f"{peak:g} x min(s / {warm_up}, ({warm_up} / s)^0.5)"
        case Cosine(learning_rate=peak, final_learning_rate=last):
            return f"{_format_warm_up(schedule)}half a cosine from {peak:g} to {last:g}"
        case Polynomial(learning_rate=peak, final_learning_rate=last, power=power):
            return f"{_format_warm_up(schedule)}from {peak:g} to {last:g}, (1 - progress)^{power:g}"
        case OneCycle(learning_rate=peak, rise=rise):
            first = peak / schedule.start_divisor
            last = first / schedule.final_divisor
            return f"{first:g} up to {peak:g} over {rise:.0%} of the steps, then down to {last:g}"
        case Piecewise(learning_rates=rates, boundaries=boundaries):
            later = "".join(
                f", {rate:g} from step {at}" for rate, at in zip(rates[1:], boundaries, strict=True)
            )
            return f"{_format_warm_up(schedule)}{rates[0]:g}{later}"
        case Exponential(learning_rate=rate, decay=decay, decay_steps=every, staircase=staircase):
            periods = f"(s - {max(schedule.warmup_steps, 1)}) / {every}"
            return (
                f"{_format_warm_up(schedule)}{rate:g} x {decay:g}^{'floor' if staircase else ''}({periods})"
            )
        case Fixed(learning_rate=rate):
            return f"{_format_warm_up(schedule)}{rate:g}"
        case OwnSchedule(learning_rate=peak, rate=path):
            return f"{peak:g} x {path}(s)"


def warm_up_note(recipe: Recipe, steps: int | None) -> str | None:
    """What to tell the user if the learning rate never reaches its peak; `steps` is None if it is not known yet."""
    warm_up = getattr(recipe.schedule, "warmup_steps", 0)
    if steps is None or warm_up < steps:
        return None
    return (
        f"note: the warm-up ({warm_up:,} steps) takes up the whole training ({steps:,} steps), so the learning rate "
        "stays small; lower schedule.warmup_steps, or train longer"
    )


def _format_warm_up(schedule: Cosine | Polynomial | Piecewise | Exponential | Fixed) -> str:
    return f"{schedule.warmup_steps} steps of linear warm-up, then " if schedule.warmup_steps else ""


def _ramp(peak: float, warmup_steps: int, step: int) -> float | None:
    """The rate during the warm-up, None after it."""
    return peak * step / warmup_steps if step < warmup_steps else None


def _warm_up(schedule: Cosine | Polynomial | Exponential | Fixed, step: int) -> float | None:
    return _ramp(schedule.learning_rate, schedule.warmup_steps, step)


def _decayed(schedule: Cosine | Polynomial, step: int, steps: int) -> float:
    """How much of the decay lies behind, from 0 at the peak to 1 at the last step."""
    first = max(schedule.warmup_steps, 1)
    return min((step - first) / max(steps - first, 1), 1.0)


def _between(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def _cosine(progress: float) -> float:
    """0 to 1 along half a cosine."""
    return (1 - math.cos(math.pi * progress)) / 2


def _one_cycle(schedule: OneCycle, step: int, steps: int) -> float:
    first = schedule.learning_rate / schedule.start_divisor
    done, last = step - 1, steps - 1
    top = max(schedule.rise * steps - 1, 0.0)
    if done < top:
        return _between(first, schedule.learning_rate, _cosine(done / top))
    fallen = (done - top) / (last - top) if last > top else 0.0
    return _between(schedule.learning_rate, first / schedule.final_divisor, _cosine(fallen))


def _exponential(schedule: Exponential, step: int) -> float:
    periods = (step - max(schedule.warmup_steps, 1)) / schedule.decay_steps
    return schedule.learning_rate * schedule.decay ** (math.floor(periods) if schedule.staircase else periods)
