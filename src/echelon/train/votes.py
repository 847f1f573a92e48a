"""What workers vote on in every step.

Votes ride at the end of the gradient buffer and are summed with it: they need no collective of their own, and no worker
leaves the loop, saves or goes back alone.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Votes:
    """What one worker wants, or, once counted, what at least one of them wants."""

    stop: bool
    """Leave the loop after this step."""
    save: bool
    """Save again, because the last save failed."""
    is_skipping: bool
    """The last update was skipped."""
    roll_back: bool
    """Go back to the newest checkpoint: too many updates in a row were skipped."""

    def cast(self, ballot: Tensor) -> None:
        """Put these votes where the exchange sums them."""
        ballot.copy_(torch.tensor(astuple(self)))


NUM_VOTES = len(fields(Votes))


def count_votes(ballot: Tensor) -> Votes:
    """The votes of all workers, from their sum."""
    return Votes(*(votes > 0 for votes in ballot.tolist()))


def with_own_view(counted: Votes, own: Votes) -> Votes:
    """The outcome for workers that share every update: all of them see this step's update fail, so they need not wait
    until that has been voted on."""
    return replace(counted, is_skipping=own.is_skipping, roll_back=own.roll_back)
