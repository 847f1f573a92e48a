"""Optimisers on the flat buffers: torch's own fused kernels, each over a few long vectors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from echelon.recipe import schema
from echelon.recipe.own_code import import_own
from echelon.train.flat import FlatParameters
from echelon.train.model_parts import rate_of

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


class FlatOptimiser:
    """A torch optimiser whose parameters are the decayed and the undecayed part of the flat weights, cut further where
    the rate changes."""

    def __init__(
        self, recipe: schema.Optimiser, flat: FlatParameters, layer_rates: Mapping[str, float] | None = None
    ) -> None:
        self._recipe, self._flat, self._layer_rates = recipe, flat, layer_rates or {}
        self._stretches = list(self._find_stretches())
        self.keep([slice(0, flat.size)])

    @property
    def stretches(self) -> list[slice]:
        """Parts of the flat weights that are each updated in one way; together all of them, whatever is kept here."""
        return [slice(stretch.start, stretch.end) for stretch in self._stretches]

    @property
    def spans(self) -> list[slice]:
        """Parts of the flat weights that are updated here, none of them beyond the end of a stretch."""
        return [slice(start, start + part.numel()) for start, part in self._with_starts()]

    def keep(self, spans: Sequence[slice]) -> None:
        """Update only these spans of the flat weights from now on, and begin anew."""
        stretches = [
            replace(stretch, start=max(stretch.start, span.start), end=min(stretch.end, span.stop))
            for span in spans
            for stretch in self._stretches
            if max(stretch.start, span.start) < min(stretch.end, span.stop)
        ]
        self._starts = [stretch.start for stretch in stretches]
        self._parts = [_part(self._flat, stretch.start, stretch.end) for stretch in stretches]
        groups = [
            {"params": [part], "weight_decay": stretch.decay, "rate": stretch.rate}
            for part, stretch in zip(self._parts, stretches, strict=True)
        ]
        self._optimiser = _build(self._recipe, groups) if groups else None

    def _find_stretches(self) -> Iterator[_Stretch]:
        """Neighbouring parameters with the same decay and rate, as one."""
        stretch: _Stretch | None = None
        for s in self._flat.slices:
            is_decayed = s.start < self._flat.num_decayed
            decay = self._recipe.weight_decay if is_decayed else 0.0
            rate = rate_of(s.name, self._layer_rates) * (1.0 if is_decayed else _vector_rate(self._recipe))
            new = _Stretch(s.start, s.end, is_decayed, decay, rate)
            if stretch is not None and stretch.fits(new):
                stretch = replace(stretch, end=s.end)
                continue
            if stretch is not None:
                yield stretch
            stretch = new
        if stretch is not None:
            yield stretch

    def step(self, learning_rate: float) -> None:
        """One update of the weights from the gradients, both in the flat buffers."""
        if self._optimiser is None:
            return
        for start, part in self._with_starts():  # the exchange may have moved the gradients
            part.grad = self._flat.gradients[start : start + part.numel()]
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate * group["rate"]
        with torch.no_grad():
            self._optimiser.step()

    def state(self) -> dict[str, Tensor]:
        """Every state tensor of whole parameters by name, e.g. `exp_avg/decoder.norm.weight`; independent of the flat
        layout."""
        tensors: dict[str, Tensor] = {}
        if self._optimiser is None:
            return tensors
        for start, part in self._with_starts():
            for kind, value in self._optimiser.state.get(part, {}).items():
                if not isinstance(value, Tensor):
                    continue
                if not _is_vector(value, part):
                    tensors[kind] = value
                    continue
                tensors |= {
                    f"{kind}/{s.name}": value[s.start - start : s.end - start].view(s.parameter.shape)
                    for s in self._flat.slices
                    if start <= s.start and s.end <= start + part.numel()
                }
        return tensors

    def scalars(self) -> dict[str, Tensor]:
        """The state that is the same for all parameters, such as Adam's `step`."""
        return {
            kind: value
            for part, state in self._states()
            for kind, value in state.items()
            if not _is_vector(value, part)
        }

    def vectors(self, span: slice) -> dict[str, Tensor]:
        """The state of a span that is kept here, by kind, as it lies in memory."""
        for start, part in self._with_starts():
            if start <= span.start and span.stop <= start + part.numel():
                return {
                    kind: value[span.start - start : span.stop - start]
                    for kind, value in self._states_of(part).items()
                    if _is_vector(value, part)
                }
        raise AssertionError(f"{span} is not kept here")

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned, perhaps in another process; nothing is a new start."""
        if self._optimiser is None:
            return
        self._optimiser.state.clear()
        kinds = sorted({name.partition("/")[0] for name in tensors})
        for start, part in self._with_starts():
            state = self._optimiser.state[part]
            for kind in kinds:
                if kind in tensors:
                    state[kind] = tensors[kind].to(part.device, copy=True)
                    continue
                value = torch.empty_like(part)
                for s in self._flat.slices:
                    first, last = max(s.start, start), min(s.end, start + part.numel())
                    if first < last:
                        whole = tensors[f"{kind}/{s.name}"].reshape(-1)
                        value[first - start : last - start] = whole[first - s.start : last - s.start]
                state[kind] = value

    def _with_starts(self) -> Iterator[tuple[int, Tensor]]:
        return zip(self._starts, self._parts, strict=True)

    def _states(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        return ((part, self._states_of(part)) for part in self._parts)

    def _states_of(self, part: Tensor) -> dict[str, Tensor]:
        if self._optimiser is None:
            return {}
        state = self._optimiser.state.get(part, {})
        return {kind: value for kind, value in state.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class _Stretch:
    """A part of the flat weights that is updated in one way."""

    start: int
    end: int
    is_decayed: bool
    decay: float
    rate: float

    def fits(self, other: _Stretch) -> bool:
        return (self.is_decayed, self.rate) == (other.is_decayed, other.rate)


def _is_vector(value: Tensor, part: Tensor) -> bool:
    """Whether this state has a number for each of a part's."""
    return value.ndim > 0 and value.numel() == part.numel()


def _vector_rate(recipe: schema.Optimiser) -> float:
    return recipe.vector_rate if isinstance(recipe, schema.Sgd) else 1.0


def _part(flat: FlatParameters, start: int, end: int) -> Tensor:
    return flat.weights[start:end].requires_grad_()


def _build(recipe: schema.Optimiser, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    match recipe:
        case schema.AdamW():  # before Adam, its base class
            return _without_compiler(torch.optim.AdamW)(
                groups, betas=(recipe.beta1, recipe.beta2), eps=recipe.epsilon, fused=True
            )
        case schema.Adam():
            return _without_compiler(torch.optim.Adam)(
                groups, betas=(recipe.beta1, recipe.beta2), eps=recipe.epsilon, fused=True
            )
        case schema.Sgd():
            return _without_compiler(torch.optim.SGD)(
                groups,
                lr=1.0,
                momentum=recipe.momentum,
                nesterov=recipe.nesterov and recipe.momentum > 0,
                fused=True,
            )
        case schema.OwnOptimiser():
            made: torch.optim.Optimizer = import_own(recipe.make)(groups, **(recipe.model_extra or {}))
            return made


def _without_compiler(kind: type[Kind]) -> type[Kind]:
    """This kind of optimiser, without what torch wraps round it for torch.compile.

    The wrappers import the compiler, which takes a worker longer than the rest of torch and is not used here. They also
    turn gradients off, which is now up to the caller.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "step")}
    return cast(type[Kind], type(kind.__name__, (kind,), plain))
