from __future__ import annotations

import math

from echelon.files.checkpoint_layout import Best, TrainingState
from echelon.recipe.schema import EarlyStop
from echelon.tasks.task import Scores
from echelon.train.evaluation import improves, is_patience_over, note_best, should_stop_early


def _scores(**metrics: float) -> Scores:
    return Scores(metrics, "signature")


def test_losses_improve_downwards_and_scores_upwards() -> None:
    assert improves("bleu", 20.0, 19.0)
    assert not improves("bleu", 19.0, 19.0)
    assert improves("loss", 1.0, 2.0)
    assert not improves("perplexity", 3.0, 2.0)
    assert not improves("bleu", 19.4, 19.0, min_delta=0.5)


def test_the_best_score_is_remembered_with_its_step() -> None:
    state = TrainingState(step=10)
    assert note_best(state, "bleu", _scores(bleu=5.0))
    state.step = 20
    assert not note_best(state, "bleu", _scores(bleu=5.0)), "an equal score is not better"
    assert state.best == Best(10, "bleu", 5.0)
    assert note_best(state, "bleu", _scores(bleu=6.0))
    assert state.best == Best(20, "bleu", 6.0)


def test_another_metric_begins_anew() -> None:
    state = TrainingState(step=10, best=Best(5, "bleu", 3.0))
    assert note_best(state, "perplexity", _scores(perplexity=200.0))
    assert state.best == Best(10, "perplexity", 200.0)


def test_a_score_that_is_not_a_number_is_the_worst() -> None:
    assert improves("loss", 5.0, math.nan)
    assert not improves("loss", math.nan, 5.0)
    assert not improves("bleu", math.nan, math.nan)


def test_more_patience_lets_a_stopped_run_go_on() -> None:
    state = TrainingState(waits={"bleu": {"best": 5.0, "scorings": 2}})
    assert is_patience_over(state, [EarlyStop(metric="bleu", patience=2)])
    assert not is_patience_over(state, [EarlyStop(metric="bleu", patience=3)])
    assert not is_patience_over(state, [EarlyStop(metric="loss", patience=1)])
    assert not is_patience_over(state, [])


def test_training_stops_when_patience_runs_out() -> None:
    state, rules = TrainingState(), [EarlyStop(metric="bleu", patience=2)]
    stops = [should_stop_early(state, rules, _scores(bleu=value)) for value in (5.0, 4.0, 6.0, 6.0, 5.0)]
    assert stops == [False, False, False, False, True]


def test_with_several_metrics_all_must_have_stopped_improving() -> None:
    state = TrainingState()
    rules = [EarlyStop(metric="bleu", patience=1), EarlyStop(metric="loss", patience=1)]
    values = [(5.0, 3.0), (5.0, 2.0), (5.0, 1.0), (5.0, 1.0)]
    stops = [should_stop_early(state, rules, _scores(bleu=bleu, loss=loss)) for bleu, loss in values]
    assert stops == [False, False, False, True]


def test_without_rules_nothing_stops() -> None:
    assert not should_stop_early(TrainingState(), [], _scores(bleu=0.0))
