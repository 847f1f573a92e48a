"""The loop of a search with a stand-in for training: what is written down, resumed, retried and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from echelon.errors import TrainingError
from echelon.launch.stop_requests import StopRequests
from echelon.monitor.records import RecordWriter, read_records
from echelon.search import search_loop
from echelon.search.rungs import Halving
from echelon.search.search_loop import SearchLoop, TrialOutcome
from echelon.search.trials import RungResult, Trial, trials_in

STEPS = (10, 40, 160)
Answer = Callable[[Trial, int], TrialOutcome]


def arrive(trial: Trial, rung: int) -> TrialOutcome:
    return TrialOutcome("arrived", RungResult(trial.rungs[rung], 10.0 + trial.number - rung))


@dataclass
class StandInTraining:
    """A training that is over at the second look, unless it is stopped first."""

    outcome: TrialOutcome
    looks: int = 0
    stops: int = 0

    def poll(self) -> TrialOutcome | None:
        self.looks += 1
        if self.stops:
            return TrialOutcome("stopped")
        return self.outcome if self.looks > 1 else None

    def stop(self) -> None:
        self.stops += 1


@dataclass
class Bench:
    """A search whose file is real, and whose trainings are not."""

    path: Path
    count: int = 16
    parallel: int = 1
    allowed: int | None = None
    """How many settings there are, if they are fewer than trials."""
    answer: Answer = arrive
    begun: list[tuple[int, int]] = field(default_factory=list)
    most_at_once: int = 0
    told: list[str] = field(default_factory=list)
    trainings: list[StandInTraining] = field(default_factory=list)
    stops: StopRequests = field(default_factory=StopRequests)
    writer: RecordWriter | None = None

    def loop(self) -> SearchLoop:
        """A new start of the search, with the trials in its file."""
        self.begun.clear()
        if self.writer is not None:
            self.writer.close()
        self.writer = writer = RecordWriter(self.path)
        trials = trials_in(read_records(self.path))
        rules = Halving(self.count, 4, 2, lower_is_better=True)
        return SearchLoop(
            rules, trials, writer, self.begin, self.propose, self.told.append, self.parallel, self.stops
        )

    def begin(self, trial: Trial, rung: int, place: int) -> StandInTraining:
        assert place < self.parallel
        self.begun.append((trial.number, rung))
        self.trainings.append(StandInTraining(self.answer(trial, rung)))
        under_way = [each for each in self.trainings if each.looks < 2]
        self.most_at_once = max(self.most_at_once, len(under_way))
        return self.trainings[-1]

    def propose(self, number: int) -> Trial | None:
        return None if number == self.allowed else Trial(number, {"x": number}, STEPS, 10)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(search_loop, "_POLL_S", 0.0)
    made = Bench(tmp_path / "search.jsonl")
    yield made
    if made.writer is not None:
        made.writer.close()


def test_what_is_written_down_is_what_was_found(bench: Bench) -> None:
    loop = bench.loop()
    loop.run()
    assert loop.is_complete()
    assert sorted(rung for _, rung in bench.begun) == [0] * 16 + [1] * 4 + [2]
    assert trials_in(read_records(bench.path)) == loop.trials
    assert {trial.number for trial in loop.trials if 1 in trial.results} == {0, 1, 2, 3}
    assert loop.trials[0].results[2] == RungResult(160, 8.0)


def test_as_many_train_side_by_side_as_were_asked_for(bench: Bench) -> None:
    bench.parallel = 3
    loop = bench.loop()
    loop.run()
    assert bench.most_at_once == 3
    assert {trial.number for trial in loop.trials if 1 in trial.results} == {0, 1, 2, 3}


@pytest.mark.parametrize("kept", [0, 1, 7, 20, 33])
def test_a_search_cut_off_anywhere_loses_no_finished_trial(bench: Bench, kept: int) -> None:
    """Also within a line: what is written is used, what is not is done again, and the end is the same."""
    whole = bench.loop()
    whole.run()
    lines = bench.path.read_bytes().splitlines(keepends=True)
    bench.path.write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    known = {
        (record["trial"], record["rung"]) for record in read_records(bench.path) if record["kind"] == "rung"
    }
    again = bench.loop()
    again.run()
    assert not known & set(bench.begun), "nothing that was finished is trained again"
    assert again.trials == whole.trials
    assert trials_in(read_records(bench.path)) == whole.trials


def test_a_finished_search_trains_nothing_more(bench: Bench) -> None:
    bench.loop().run()
    again = bench.loop()
    assert again.is_complete()
    again.run()
    assert bench.begun == []


def test_a_stop_lets_trials_save_and_the_same_search_goes_on(bench: Bench) -> None:
    def stop_at_third(trial: Trial, rung: int) -> TrialOutcome:
        if len(bench.begun) == 3:
            bench.stops.ask()
        return arrive(trial, rung)

    bench.parallel, bench.answer = 2, stop_at_third
    loop = bench.loop()
    loop.run()
    assert not loop.is_complete()
    assert bench.trainings[-1].stops == 1
    assert bench.told[-1].startswith("stopping: the trials finish their step and save")
    bench.stops, bench.answer = StopRequests(), arrive
    again = bench.loop()
    again.run()
    assert again.is_complete()
    assert {trial.number for trial in again.trials if 1 in trial.results} == {0, 1, 2, 3}


def test_a_second_stop_is_passed_on(bench: Bench) -> None:
    def stop_twice(trial: Trial, rung: int) -> TrialOutcome:
        bench.stops.insist()
        return arrive(trial, rung)

    bench.answer = stop_twice
    bench.loop().run()
    assert bench.trainings[-1].stops == 1
    assert bench.begun == [(0, 0)]


def test_a_killed_trial_resumes_and_one_that_is_always_killed_fails(bench: Bench) -> None:
    def kill(trial: Trial, rung: int) -> TrialOutcome:
        times = bench.begun.count((trial.number, rung))
        if trial.number == 5 or (trial.number == 1 and times == 1):
            return TrialOutcome("killed", message="was killed (signal 9)")
        return arrive(trial, rung)

    bench.answer = kill
    loop = bench.loop()
    loop.run()
    assert bench.begun.count((1, 0)) == 2
    assert bench.begun.count((5, 0)) == 4
    assert loop.trials[5].failure == "was killed (signal 9)"
    assert loop.trials[1].failure is None
    assert loop.is_complete()


def test_a_failed_trial_ends_only_itself_and_is_tried_again_by_the_next_start(bench: Bench) -> None:
    def fail(trial: Trial, rung: int) -> TrialOutcome:
        if trial.number == 2:
            return TrialOutcome("failed", message="the disk is full")
        if trial.number == 9:
            bench.stops.ask()
        return arrive(trial, rung)

    bench.answer = fail
    bench.loop().run()
    bench.stops, bench.answer = StopRequests(), arrive
    again = bench.loop()
    assert again.trials[2].failure == "the disk is full"
    again.retry_failed()
    again.run()
    assert (2, 0) in bench.begun
    assert trials_in(read_records(bench.path)) == again.trials
    assert again.trials[2].failure is None


def test_failures_of_a_finished_search_stay(bench: Bench) -> None:
    def fail(trial: Trial, rung: int) -> TrialOutcome:
        return TrialOutcome("failed", message="diverged") if trial.number == 2 else arrive(trial, rung)

    bench.answer = fail
    bench.loop().run()
    again = bench.loop()
    again.retry_failed()
    again.run()
    assert bench.begun == []


def test_if_all_trials_fail_the_search_ends_and_says_why(bench: Bench) -> None:
    bench.answer = lambda _trial, _rung: TrialOutcome("failed", message="there is no such corpus")
    with pytest.raises(
        TrainingError, match="all 3 trials so far have failed; the last one: there is no such corpus"
    ):
        bench.loop().run()
    assert len(bench.begun) == 3


def test_an_error_lets_the_others_save_before_it_is_raised(bench: Bench) -> None:
    def break_at_third(trial: Trial, rung: int) -> TrialOutcome:
        if len(bench.begun) == 3:
            raise TrainingError("somebody has changed the recipe")
        return arrive(trial, rung)

    bench.parallel, bench.answer = 3, break_at_third
    with pytest.raises(TrainingError, match="somebody has changed the recipe"):
        bench.loop().run()
    assert [each.stops for each in bench.trainings] == [1, 1]


def test_a_trial_that_is_stopped_by_hand_is_left_for_the_next_start(bench: Bench) -> None:
    def stop(trial: Trial, rung: int) -> TrialOutcome:
        return TrialOutcome("stopped") if trial.number == 4 else arrive(trial, rung)

    bench.answer = stop
    loop = bench.loop()
    loop.run()
    assert bench.begun.count((4, 0)) == 1
    assert not loop.is_complete()
    assert "trial-04 was stopped by somebody else; the same command continues it" in bench.told
    bench.answer = arrive
    again = bench.loop()
    again.run()
    assert again.is_complete()


def test_a_trial_that_stops_early_by_its_recipe_is_at_the_end(bench: Bench) -> None:
    def stop_early(trial: Trial, rung: int) -> TrialOutcome:
        if trial.number == 3:
            return TrialOutcome("arrived", RungResult(7, 1.0), is_over=True)
        return arrive(trial, rung)

    bench.answer = stop_early
    loop = bench.loop()
    loop.run()
    assert bench.begun.count((3, 0)) == 1
    assert (3, 1) not in bench.begun
    assert loop.trials[3].results == {rung: RungResult(7, 1.0) for rung in range(3)}
    assert loop.is_complete()


@pytest.mark.parametrize("parallel", [1, 3])
def test_if_there_are_fewer_settings_than_trials_those_that_there_are_decide(
    bench: Bench, parallel: int
) -> None:
    bench.allowed, bench.parallel = 14, parallel
    loop = bench.loop()
    loop.run()
    assert loop.is_complete()
    assert len(loop.trials) == 14
    assert {trial.number for trial in loop.trials if 1 in trial.results} == {0, 1, 2}
    assert {trial.number for trial in loop.trials if 2 in trial.results} == {0}
