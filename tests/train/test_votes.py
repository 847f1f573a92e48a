"""What workers vote on: how votes are cast and counted."""

from __future__ import annotations

from dataclasses import replace

import torch

from echelon.train.votes import NUM_VOTES, Votes, count_votes, with_own_view

NOTHING = Votes(stop=False, save=False, is_skipping=False, roll_back=False)


def test_one_vote_is_enough_and_ballots_are_summed() -> None:
    ballots = torch.zeros(3, NUM_VOTES)
    NOTHING.cast(ballots[0])
    replace(NOTHING, stop=True).cast(ballots[1])
    replace(NOTHING, stop=True, roll_back=True).cast(ballots[2])
    assert count_votes(ballots.sum(0)) == replace(NOTHING, stop=True, roll_back=True)
    assert count_votes(ballots[0]) == NOTHING


def test_workers_that_share_every_update_know_at_once_what_became_of_it() -> None:
    """Their votes were cast before the update. What only one of them knows still has to be voted on."""
    counted = replace(NOTHING, save=True, is_skipping=True)
    own = replace(NOTHING, stop=True, roll_back=True)
    assert with_own_view(counted, own) == replace(NOTHING, save=True, roll_back=True)
