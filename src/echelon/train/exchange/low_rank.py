"""PowerSGD: each matrix of the gradient as the product of two thin ones, with error feedback.

One step of subspace iteration a step: P = M Q, summed over the workers and made orthonormal, then Q = Mᵀ P, summed; the
sum of all workers' M is taken to be P Qᵀ. What that leaves out is owed and added the next time, and Q is where the next
iteration begins. The factors travel in few bytes: what their rounding leaves out is owed with the rest.

A table of embeddings is no such matrix: a step meets a few of its rows, each for a reason of its own, and the many rare
words may wait long behind the few common ones. It is summed in 8 bits, with error feedback too. Vectors, and
matrices too small to gain, are summed as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.shapes.factors import gains_by_factors
from echelon.train.exchange.codecs import Codec, Int8
from echelon.train.exchange.feedback import ErrorFeedback
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.line import Line
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits
from echelon.train.flat import Slice

_FACTORS = "q/"
_TABLES = "embeddings."


@dataclass
class _Factors:
    """One matrix of the gradient, what is owed of it, and its two thin factors, in the buffers that travel."""

    name: str
    matrix_NM: Tensor
    owed_NM: Tensor
    left_NR: Tensor
    right_MR: Tensor


class LowRank(GradientExchange):
    """Sums the flat gradient buffer over a group, matrices through factors of `rank` columns."""

    def __init__(self, group: Group, rank: int, codec: Codec, seed: int, num_local: int = 1) -> None:
        """`codec` is the factors'. Host by host if each has `num_local` workers."""
        super().__init__(group, ExchangeTraits("low_rank"))
        self._rank, self._codec, self._seed, self._num_local = rank, codec, seed, num_local
        self._factors: list[_Factors] = []

    def start(self) -> None:
        gradients = self.flat.gradients
        self._feedback = ErrorFeedback(self.group, gradients)
        if self.group.size == 1:
            return
        chosen = [s for s in self.flat.slices if self._gains(s)]
        self._left = gradients.new_empty(sum(_sides(s)[0] for s in chosen) * self._rank)
        self._right = gradients.new_empty(sum(_sides(s)[1] for s in chosen) * self._rank)
        left, right = 0, 0
        for s in chosen:
            n, m = _sides(s)
            self._factors.append(
                _Factors(
                    s.name,
                    gradients[s.start : s.end].view(n, m),
                    self._feedback.owed[s.start : s.end].view(n, m),
                    self._left[left : left + n * self._rank].view(n, self._rank),
                    self._right[right : right + m * self._rank].view(m, self._rank),
                )
            )
            left, right = left + n * self._rank, right + m * self._rank
        tables = [s for s in self.flat.slices if _is_table(s)]
        self._tables = [(gradients[s.start : s.end], self._feedback.owed[s.start : s.end]) for s in tables]
        plain = [s for s in self.flat.slices if not _is_table(s) and not self._gains(s)]
        self._plain = [*(gradients[s.start : s.end] for s in plain), self.flat.sums]
        self._factor_line = Line(self.group, self._codec, self._num_local)
        self._table_line = Line(self.group, Int8(), self._num_local)
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        dice = torch.Generator().manual_seed(self._seed)
        self._right.copy_(torch.randn(len(self._right), generator=dice))

    def _gains(self, s: Slice) -> bool:
        return not _is_table(s) and gains_by_factors(*_sides(s), self._rank)

    def add_up(self) -> None:
        if self.group.size > 1:
            self._reduce()
        else:
            self._feedback.pay_alone()

    def state(self) -> ExchangeState:
        return ExchangeState(
            shared={_FACTORS + f.name: f.right_MR for f in self._factors}, own=self._feedback.state()
        )

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._feedback.load_state(tensors)
        for f in self._factors:
            if _FACTORS + f.name in tensors:
                f.right_MR.copy_(tensors[_FACTORS + f.name])

    def _reduce(self) -> None:
        self.may_change()
        table_sums = [self._table_line.start_sum(table, owed) for table, owed in self._tables]
        plain = torch.cat(self._plain)
        plain_sum = self.group.start_all_reduce(plain)
        if self._factors:
            self._sum_matrices()
        for pending in (*table_sums, plain_sum):
            pending.wait()
        self._forget_what_is_not_finite()
        start = 0
        for part in self._plain:
            part.copy_(plain[start : start + len(part)])
            start += len(part)

    def _sum_matrices(self) -> None:
        for f in self._factors:
            f.owed_NM += f.matrix_NM
            torch.mm(f.owed_NM, f.right_MR, out=f.left_NR)
        self._factor_line.start_sum(self._left).wait()
        for f in self._factors:
            f.left_NR.copy_(_orthonormal(f.left_NR))
            torch.mm(f.owed_NM.T, f.left_NR, out=f.right_MR)
        self._factor_line.start_sum(self._right).wait()
        for f in self._factors:
            torch.mm(f.left_NR, f.right_MR.T, out=f.matrix_NM)
            f.owed_NM.sub_(f.matrix_NM, alpha=1 / self.group.size)

    def _forget_what_is_not_finite(self) -> None:
        """A step that is not finite is skipped; neither may it be owed for ever, nor spoil the next iteration."""
        if not bool(self._right.isfinite().all()):
            self._feedback.owed.nan_to_num_(0.0, 0.0, 0.0)
            self._begin_iteration()


def _is_table(s: Slice) -> bool:
    return s.name.startswith(_TABLES)


def _sides(s: Slice) -> tuple[int, int]:
    """A parameter as a matrix: its first dimension by all others."""
    shape = s.parameter.shape
    return shape[0], s.parameter.numel() // shape[0]


def _orthonormal(columns_NR: Tensor) -> Tensor:
    """Columns that span the same space; zeros stay finite."""
    return torch.linalg.qr(columns_NR).Q if bool(columns_NR.isfinite().all()) else columns_NR
