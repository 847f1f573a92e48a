"""Results in words, whole texts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from echelon.commands.results import (
    format_benchmark,
    format_classification,
    format_demo,
    format_evaluation,
    format_prepared_text,
    format_runs,
    format_training,
)
from echelon.commands.runs import OwnScore, RunSummary
from echelon.data.cleaning import Dropped
from echelon.data.prepared import CorpusEntry, Manifest, PairStore, Prepared
from echelon.data.shards import SideCount

TEST = {
    "bleu": 31.416,
    "chrf": 55.0,
    "loss": 1.5,
    "perplexity": 4.48,
    "checkpoint": "step-00001000",
    "signature": "nrefs:1|case:mixed",
    "step": 1000,
    "split": "test",
    "outputs": "runs/demo/scores/test.txt",
}
TRAINED: dict[str, Any] = {"run": "runs/demo", "finished": True, "step": 1000, "test": TEST}


def test_a_finished_training_in_words() -> None:
    assert format_training(TRAINED) == (
        "runs/demo: 1000 steps, test BLEU 31.42  chrF 55.00  loss 1.5000  perplexity 4.48 (step-00001000)"
    )
    valid = {"step": 4, "bleu": 12.0}
    assert format_training({"run": "r", "finished": True, "step": 5, "valid": valid}) == (
        "r: 5 steps, best validation BLEU 12.00 (step 4)"
    )
    assert format_training({"run": "r", "finished": True, "step": 5}) == "r: 5 steps"


def test_an_interrupted_training_in_words() -> None:
    interrupted = {"run": "runs/demo", "finished": False, "step": 7, "saved_step": 7}
    words = "runs/demo: interrupted, saved at step 7; the same command resumes from there"
    assert format_training(interrupted) == words
    assert format_demo(interrupted | {"seconds": 3.0}) == words
    assert "before anything was saved" in format_training(interrupted | {"saved_step": 0})


def test_a_score_in_words() -> None:
    assert format_evaluation(TEST) == (
        "test: BLEU 31.42  chrF 55.00  loss 1.5000  perplexity 4.48\n"
        "checkpoint: step-00001000 (step 1000)\n"
        "signature: nrefs:1|case:mixed\n"
        "outputs: runs/demo/scores/test.txt"
    )


def test_the_demo_ends_with_translations_and_what_to_do_next() -> None:
    result = {**TRAINED, "test": None, "seconds": 185.0, "translations": {"A dog.": "Ein Hund."}}
    result["program"] = ".venv/bin/echelon"
    result["report"] = "runs/demo/report.html"
    assert format_demo(result) == (
        "\nDone in 3:05. runs/demo: 1000 steps\n\n"
        "  A dog.\n    Ein Hund.\n\n"
        "Where the time went, and what would make it faster: runs/demo/report.html\n"
        "Now try your own sentences: .venv/bin/echelon translate runs/demo"
    )


def test_runs_are_a_table() -> None:
    changed = time.mktime((2024, 5, 6, 7, 8, 0, 0, 0, -1))
    test, valid = {"bleu": OwnScore(31.416, "test")}, {"top1": OwnScore(93.456, "validation")}
    runs = [
        RunSummary(
            "a", "runs/a", "finished", 1000, 1000, 31.416, "test", 12_345_678, changed, own_scores=test
        ),
        RunSummary("b", "runs/b", "training", 5, 10, None, None, 900, changed, 93.456, "validation", valid),
        RunSummary("long-name", "runs/long-name", "not started", 0, None, None, None, 900, changed),
    ]
    assert format_runs(runs, Path("runs")) == (
        "RUN        STATE        STEP            SCORE                      SIZE     CHANGED\n"
        "a          finished     1,000 of 1,000  BLEU 31.42 (test)          12.3 MB  2024-05-06 07:08\n"
        "b          training     5 of 10         top-1 93.46% (validation)  0.0 MB   2024-05-06 07:08\n"
        "long-name  not started  0                                          0.0 MB   2024-05-06 07:08"
    )
    assert format_runs([], Path("runs")) == "no runs in runs"


def test_classified_pictures_in_words() -> None:
    guesses = [{"class": "cat", "probability": 0.9}, {"class": "dog", "probability": 0.0625}]
    pictures = [{"file": "a.png", "classes": guesses}, {"file": "long.png", "classes": guesses[:1]}]
    assert format_classification(pictures) == "a.png     cat 90.0%, dog 6.2%\nlong.png  cat 90.0%"


def test_the_classes_known_worst_are_named_with_what_they_are_taken_for() -> None:
    result = {
        "split": "test",
        "top1": 75.0,
        "top5": 100.0,
        "loss": 0.5,
        "checkpoint": "step-00000010",
        "step": 10,
        "signature": "test:4",
        "outputs": "test.txt",
        "classes": [
            {"name": "cat", "images": 2, "top1": 50.0},
            {"name": "dog", "images": 2, "top1": 100.0},
            {"name": "cow", "images": 0, "top1": None},
        ],
        "confused": [{"class": "cat", "taken_for": "dog", "images": 1}],
    }
    assert format_evaluation(result) == (
        "test: top-1 75.00%  top-5 100.00%  loss 0.5000\n"
        "checkpoint: step-00000010 (step 10)\n"
        "signature: test:4\n"
        "outputs: test.txt\n"
        "classes with the lowest accuracy:\n"
        "  cat                  50.00%  mistaken for 'dog' (once)\n"
        "  dog                 100.00%"
    )


def test_prepared_data_in_words(tmp_path: Path) -> None:
    side = SideCount(words=20_000, tokens=30_000)
    corpus = CorpusEntry("train-0", "a | b", 1500, 1200, side, side, Dropped(too_long=250, duplicate=50))
    manifest = Manifest(1, "key", "en", "de", 8000, (corpus,), (), {}, ())
    prepared = Prepared(tmp_path, manifest, [], PairStore(sides=()), None)  # type: ignore[arg-type]
    assert format_prepared_text(prepared) == (
        "train-0: 1,200 pairs of 1,500 lines, 30,000 source and 30,000 target tokens; "
        "dropped 250 too long, 50 duplicate\n"
        "vocabulary: 8,000 pieces\n"
        f"prepared data: {tmp_path}"
    )


def test_a_benchmark_in_words() -> None:
    result = {
        "tokens_per_second": 12345.6,
        "seconds_per_step": 0.1234,
        "steps": 30,
        "workers": 1,
        "precision": "bf16",
        "kernels": "own kernels",
        "flops_per_step": 1.5e11,
        "peak_share": 0.456,
        "peak_flops": 2e11,
        "breakdown": {
            "data": 0.001,
            "forward": 0.04,
            "backward": 0.07,
            "communication": 0.002,
            "optimiser": 0.01,
        },
    }
    assert format_benchmark(result) == (
        "12,346 target tokens/s, 123.4 ms a step (30 steps, 1 worker, bf16, own kernels)\n"
        "1.5e+11 FLOPs a step: 46% of the 200 GFLOP/s that matrix products reach here in bf16\n"
        "the rest: 43.5% what forward and backward do beside that, 8.1% the update, 1.6% the exchange, "
        "0.8% planning and loading batches, 0.3% other"
    )
    assert "(30 steps, 2 workers, bf16, own kernels)" in format_benchmark(result | {"workers": 2})
    assert "the rest: 0.0% what forward" in format_benchmark(result | {"peak_share": 0.95})
    assert "other programs were using the machine" in format_benchmark(result | {"peak_share": 1.0})
