"""A shared-out optimiser in checkpoints: whole tensors by their parameters' names, as without sharing.

Each of the workers that save into one folder writes some parameters, and gets the pieces of their state that others
keep. Between hosts that share no folder all of it travels, because every host's checkpoint is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from echelon.comm.group import Group, Sharers
from echelon.train.exchange.ownership import overlap
from echelon.train.flat import FlatParameters, Slice
from echelon.train.optimiser import FlatOptimiser


@dataclass(frozen=True)
class _Piece:
    """What one worker keeps of a parameter that another one, or itself, saves."""

    parameter: Slice
    span: slice
    """Of the flat buffers."""

    @property
    def place(self) -> slice:
        """Within the parameter."""
        return slice(self.span.start - self.parameter.start, self.span.stop - self.parameter.start)


class SavedParts:
    """Who saves what of the optimiser's state, and who keeps it."""

    def __init__(
        self,
        group: Group,
        flat: FlatParameters,
        optimiser: FlatOptimiser,
        spans: Sequence[Sequence[slice]],
    ) -> None:
        """`spans` is what each worker keeps. Collective."""
        self._group, self._flat, self._optimiser, self._spans = group, flat, optimiser, spans
        self._sharers = [
            Sharers(*each) for each in group.gather_json([group.sharers.rank, group.sharers.size])
        ]

    def collect(self) -> dict[str, Tensor]:
        """Everything that this worker saves: views of what it keeps, copies of what others do. Collective."""
        group, rank = self._group, self._group.rank
        kinds, scalars = self._agree()
        tensors = {
            f"{kind}/{s.name}": torch.empty_like(s.parameter, requires_grad=False)
            for s in self._saved_by(rank)
            if not self._is_kept_whole(s)
            for kind in kinds
        }
        for piece in self._pieces(rank, rank):
            for kind, kept in self._optimiser.vectors(piece.span).items():
                name = f"{kind}/{piece.parameter.name}"
                if name in tensors:
                    tensors[name].view(-1)[piece.place] = kept
                else:
                    tensors[name] = kept.view(piece.parameter.parameter.shape)
        others = [other for other in range(group.size) if other != rank]
        incoming = [
            (other, tensors[f"{kind}/{piece.parameter.name}"].view(-1)[piece.place])
            for other in others
            for piece in self._pieces(other, rank)
            for kind in kinds
        ]
        outgoing = [
            (other, self._optimiser.vectors(piece.span)[kind])
            for other in others
            for piece in self._pieces(rank, other)
            for kind in kinds
        ]
        group.swap(outgoing, incoming)
        return tensors | (scalars if group.keeps_folder else {})

    def _agree(self) -> tuple[list[str], dict[str, Tensor]]:
        """The kinds of vectors that the optimiser keeps, and the rest of its state: a worker may have no part of it."""
        spans = self._optimiser.spans
        kinds = sorted(self._optimiser.vectors(spans[0])) if spans else []
        scalars = {kind: value.item() for kind, value in self._optimiser.scalars().items()}
        answers = self._group.gather_json([kinds, scalars])
        kinds, scalars = max(answers, key=lambda answer: len(answer[0]))
        return kinds, {kind: torch.tensor(value) for kind, value in scalars.items()}

    def _saved_by(self, writer: int) -> Iterator[Slice]:
        """As many numbers as each of the others of its folder, about; those that it keeps, if they lie together."""
        sharers = self._sharers[writer]
        for s in self._flat.slices:
            if (s.start + s.end) // 2 * sharers.size // self._flat.size == sharers.rank:
                yield s

    def _is_kept_whole(self, s: Slice) -> bool:
        """Whether this worker keeps all of a parameter's state."""
        return any(span.start <= s.start and s.end <= span.stop for span in self._spans[self._group.rank])

    def _pieces(self, keeper: int, writer: int) -> Iterator[_Piece]:
        """What one worker keeps of the parameters that another saves."""
        for s in self._saved_by(writer):
            for span in self._spans[keeper]:
                shared = overlap(slice(s.start, s.end), span)
                if shared.start < shared.stop:
                    yield _Piece(s, shared)
