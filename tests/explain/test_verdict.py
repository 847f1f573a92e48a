"""What runs that were scored on the same set are said to have in common, or not."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from echelon.commands.compare import choose_comparison_form, compare_runs, render_comparison
from echelon.errors import UserError
from echelon.explain.significance import compare_seeds, compare_translations
from echelon.explain.verdict import LONGEST_LINE, MOST_EXAMPLES, Verdict, find_verdict
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from tests.explain.made_runs import MadeRun
from tests.explain.scored_runs import sentences, write_scored
from tests.sample_image_recipe import sample_image_recipe

HOSTILE = "a_b&c%$#{~^\\"


def verdict_on(*runs: RunFolder) -> Verdict:
    found = find_verdict([(run.name, run) for run in runs], "test")
    assert isinstance(found, Verdict), found
    return found


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_two_models_are_compared_by_their_outputs(tmp_path: Path) -> None:
    one, two = write_scored(tmp_path / "one", 0.3), write_scored(tmp_path / "two", 0.1, "train.steps=40")
    found = verdict_on(one, two)
    (judgement,) = found.judgements
    expected = compare_translations(
        lines(one.outputs_file("test")), lines(two.outputs_file("test")), lines(one.references_file("test"))
    )
    assert judgement.differences == expected
    assert (found.examples, found.metrics) == (150, {"bleu": "BLEU", "chrf": "chrF"})
    bleu = expected[0]
    assert found.sentences[0] == "one and two differ: two is better by BLEU and chrF."
    assert found.sentences[1].startswith(f"two has {bleu.size:.2f} BLEU more than one: ")
    assert "compares models, not recipes" in found.sentences[-1]
    (told,) = found.to_json()["comparisons"]
    assert told["differs"]
    assert [each["metric"] for each in told["metrics"]] == ["bleu", "chrf"]


def test_a_set_that_is_too_small_is_said_to_be(tmp_path: Path) -> None:
    runs = [write_scored(tmp_path / "one", 0.30), write_scored(tmp_path / "two", 0.29, "train.steps=40")]
    bleu, _ = verdict_on(*runs).judgements[0].differences
    assert not bleu.is_significant()
    assert "Can't tell" in verdict_on(*runs).sentences[0]


def test_the_same_outputs_score_the_same(tmp_path: Path) -> None:
    one, two = write_scored(tmp_path / "one", 0.3), write_scored(tmp_path / "two", 0.3, "train.steps=40")
    same, bleu, *_ = verdict_on(one, two).sentences
    assert same == "one and two score the same."
    assert re.match(r"one and two have the same BLEU, \d+\.\d\d: 95% interval ", bleu)


def test_runs_that_differ_only_in_the_seed_are_one_group(tmp_path: Path) -> None:
    ones = [write_scored(tmp_path / f"one-seed{seed}", 0.3, seed=seed) for seed in (1, 2, 3)]
    twos = [write_scored(tmp_path / f"two-seed{seed}", 0.1, "train.steps=40", seed=seed) for seed in (1, 2)]
    ones[1].recipe.write_text(ones[1].recipe.read_text().replace('name = "made"', 'name = "other"'))
    found = verdict_on(ones[0], twos[0], *ones[1:], *twos[1:])
    assert [(group.name, len(group.runs)) for group in found.groups] == [("one", 3), ("two", 2)]
    scores = [
        [json.loads(run.score_file("test").read_text())["bleu"] for run in runs] for runs in (ones, twos)
    ]
    assert found.judgements[0].differences[0] == compare_seeds("bleu", *scores)
    assert found.sentences[0] == "one and two differ: two is better by BLEU."
    assert "on average over 2 seeds against 3" in found.sentences[1]
    assert not any("another seed" in sentence for sentence in found.sentences)


def test_it_says_how_many_more_seeds_would_tell(tmp_path: Path) -> None:
    ones = [write_scored(tmp_path / f"one-{seed}", 0.30, seed=seed) for seed in (1, 2)]
    twos = [write_scored(tmp_path / f"two-{seed}", 0.27, "train.steps=40", seed=seed) for seed in (1, 2)]
    for run, bleu in zip((*ones, *twos), (40.0, 41.0, 41.0, 42.0), strict=True):
        change(run, bleu=bleu)
    found = verdict_on(*ones, *twos)
    # Means 1.0 apart, deviations 0.707: an effect of 1.41, for which tables have 9 of each.
    assert found.judgements[0].more_seeds == 7
    assert (
        found.sentences[0]
        == "Can't tell yet whether one and two differ; about 7 more seeds of each would tell."
    )


def change(run: RunFolder, **scores: float) -> None:
    write_json(run.score_file("test"), json.loads(run.score_file("test").read_text()) | scores)


def test_runs_of_one_recipe_show_what_a_seed_does(tmp_path: Path) -> None:
    found = verdict_on(*(write_scored(tmp_path / f"one-{seed}", 0.3, seed=seed) for seed in (1, 2, 3)))
    assert [len(group.runs) for group in found.groups] == [1, 1, 1]
    assert found.sentences[-1].startswith("The recipes are the same but for the seed")
    assert found.judgements[0].level == pytest.approx(0.025), "two comparisons share what may be wrong"


def test_a_run_that_was_stopped_early_is_not_another_seed_of_the_finished_one(tmp_path: Path) -> None:
    stopped = [write_scored(tmp_path / f"half-{n}", 0.3, "train.stop_at=10", seed=n) for n in (1, 2)]
    finished = [write_scored(tmp_path / f"whole-{n}", 0.1, seed=n) for n in (1, 2)]
    found = verdict_on(*stopped, *finished)
    assert [[run.name for run in group.runs] for group in found.groups] == [
        ["half-1", "half-2"],
        ["whole-1", "whole-2"],
    ]
    assert "whole is better by BLEU" in found.sentences[0]


def test_of_several_runs_the_pair_of_the_same_seed_is_compared(tmp_path: Path) -> None:
    ones = [write_scored(tmp_path / f"one-{seed}", 0.3, seed=seed) for seed in (1, 2)]
    two = write_scored(tmp_path / "two", 0.1, "train.steps=40", seed=2)
    (judgement,) = verdict_on(*ones, two).judgements
    assert (judgement.first, judgement.second) == ("one-2", "two")


def test_there_is_no_verdict_without_the_same_set(tmp_path: Path) -> None:
    one = write_scored(tmp_path / "one", 0.3)
    unscored = MadeRun(steps=20).write(tmp_path / "unscored")
    other = write_scored(tmp_path / "other", 0.3, "train.steps=40", references=sentences(150, seed=9))
    old = write_scored(tmp_path / "old", 0.3, "train.steps=40")
    old.references_file("test").unlink()
    damaged = write_scored(tmp_path / "damaged", 0.3, "train.steps=40")
    damaged.outputs_file("test").write_bytes(b"\xff\n")
    for run, words in (
        (unscored, "unscored was not scored on the test set"),
        (other, "the test set of other is not that of one"),
        (old, "old was not scored"),
        (damaged, "damaged was not scored"),
    ):
        found = find_verdict([("one", one), (run.name, run)], "test")
        assert isinstance(found, str)
        assert words in found


@pytest.mark.parametrize("content", ["\n" * (MOST_EXAMPLES + 1), "a" * (LONGEST_LINE + 1) + "\n"])
def test_there_is_no_verdict_on_what_would_take_all_memory(tmp_path: Path, content: str) -> None:
    one, two = write_scored(tmp_path / "one", 0.3), write_scored(tmp_path / "two", 0.1, "train.steps=40")
    for file in (one.outputs_file("test"), one.references_file("test")):
        file.write_text(content)
    found = find_verdict([("one", one), ("two", two)], "test")
    assert isinstance(found, str)
    assert found.startswith(
        "No verdict: the test set has more than 100,000 examples, or outputs of more than"
    )


def test_classifiers_are_compared_by_mcnemar_s_test(tmp_path: Path) -> None:
    right = ["cat", "dog"] * 100
    guesses = (["cat"] * 40 + right[40:], ["dog"] * 8 + right[8:])
    runs = []
    for number, guessed in enumerate(guesses):
        run = RunFolder(tmp_path / f"run{number}")
        run.create()
        run.recipe.write_text(dump_recipe(sample_image_recipe(f"train.steps={20 + number}")))
        top1 = 100 * sum(a == b for a, b in zip(guessed, right, strict=True)) / 200
        write_json(run.score_file("test"), {"top1": top1, "top5": 100.0, "split": "test", "signature": "s"})
        run.outputs_file("test").write_text("".join(f"{line}\n" for line in guessed))
        run.references_file("test").write_text("".join(f"{line}\n" for line in right))
        runs.append(run)
    (difference,) = verdict_on(*runs).judgements[0].differences
    assert (difference.first, difference.second) == (90.0, 98.0)
    # Of the first 8, one is wrong about the 4 dogs and the other about the 4 cats; of 8 to 39, only the first errs.
    assert difference.p["McNemar"] == pytest.approx(2 * sum_of_tail(24, 4))
    assert verdict_on(*runs).sentences[0] == "run0 and run1 differ: run1 is better by top-1."
    assert "has 8.00 top-1 more" in verdict_on(*runs).sentences[1]


def sum_of_tail(throws: int, heads: int) -> float:
    return math.ldexp(sum(math.comb(throws, each) for each in range(heads + 1)), -throws)


def test_a_comparison_has_the_verdict_in_every_form(tmp_path: Path) -> None:
    one = write_scored(tmp_path / "one", 0.3)
    two = write_scored(tmp_path / HOSTILE, 0.1, "train.steps=40")
    comparison = compare_runs([one.path, two.path])
    assert isinstance(comparison.verdict, Verdict)
    bleu = comparison.verdict.judgements[0].differences[0]

    def rendered(name: str) -> str:
        return render_comparison(comparison, choose_comparison_form(None, Path(name)))

    for name in ("c.txt", "c.md", "c.html"):
        assert f"{bleu.size:+.2f}*" in rendered(name)
        assert " is better by BLEU and chrF." in rendered(name)
    told: dict[str, Any] = json.loads(rendered("c.json"))["verdict"]
    assert told["comparisons"][0]["metrics"][0]["p"] == dict(bleu.p)
    rows = list(csv.DictReader(io.StringIO(rendered("c.csv"))))
    assert [(row["model"], row["metric"], row["significant"]) for row in rows] == [
        *(("one", "bleu", ""), ("one", "chrf", "")),
        *((HOSTILE, "bleu", "yes"), (HOSTILE, "chrf", "yes")),
    ]
    assert float(rows[2]["difference"]) == bleu.size
    latex = rendered("c.tex").splitlines()
    assert latex[0] == r"\begin{tabular}{lrrrrrr}"
    assert latex[2].startswith(r"model & BLEU & difference [95\%], BLEU & p & chrF & ")
    assert latex[5].startswith(r"a\_b\&c\%\$\#\{\textasciitilde{}\textasciicircum{}\textbackslash{} & ")
    assert f"${'+'}${bleu.size:.2f}$^{{*}}$" in latex[5]
    assert all(line.startswith("%") for line in latex[8:])


def test_a_paper_s_table_has_means_and_deviations_over_seeds(tmp_path: Path) -> None:
    runs = [write_scored(tmp_path / f"one-{seed}", 0.3, seed=seed) for seed in (1, 2)]
    runs += [write_scored(tmp_path / f"two-{seed}", 0.1, "train.steps=40", seed=seed) for seed in (1, 2)]
    scores = [json.loads(run.score_file("test").read_text())["bleu"] for run in runs[:2]]
    latex = render_comparison(compare_runs([run.path for run in runs]), "latex")
    assert rf"one (2 seeds) & {fmean(scores):.2f} $\pm$ {stdev(scores):.2f} & " in latex


def test_a_table_of_scores_needs_scores(tmp_path: Path) -> None:
    runs = [MadeRun(steps=20).write(tmp_path / name).path for name in ("one", "two")]
    with pytest.raises(UserError, match="one, two were not scored on the test set"):
        render_comparison(compare_runs(runs), "csv")
