"""`echelon evaluate`: its own sets and any others."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu
from rich.console import Console

from echelon import Classifier, Translator
from echelon.commands.evaluate import EvaluateOptions, evaluate
from echelon.commands.given_sets import SetOptions
from echelon.errors import DataError, UserError
from echelon.files.checkpoint_layout import (
    MODEL,
    STATE,
    Best,
    TrainingState,
    checkpoint_folder,
    write_sidecar,
    write_state,
)
from echelon.runfolder import RunFolder
from tests.small_image_run import CLASSES, make_small_image_run, picture
from tests.small_run import make_small_run, sentences

Echelon = Callable[..., subprocess.CompletedProcess[str]]


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("override", ["data.test.source=other.en", "model.d_model=64", "train.steps=3"])
def test_what_would_change_nothing_of_a_score_cannot_be_set(tmp_path: Path, override: str) -> None:
    run = make_small_run(tmp_path / "run")
    console = Console(file=io.StringIO())
    with pytest.raises(UserError, match=f"--set {override}: a run is scored as its own model"):
        evaluate(run, EvaluateOptions(overrides=["evaluate.beam=2", override]), console)
    assert shown(console) == ""


def test_a_run_that_was_never_scored_is_used_with_its_newest_checkpoint(
    tmp_path: Path, echelon: Echelon
) -> None:
    run = make_small_run(tmp_path / "run")
    folder = checkpoint_folder(run.checkpoints, 5)
    write_sidecar(folder, STATE, write_state(folder, TrainingState(step=5), [MODEL]))
    translated = echelon("translate", run.path, stdin="one two\n")
    assert "nothing was scored yet, so no checkpoint is the best; the newest is used" in translated.stderr
    assert translated.stdout.count("\n") == 1
    source, target = write_set(tmp_path, "news", 5)
    console = Console(file=io.StringIO())
    (result,) = evaluate(run, EvaluateOptions(sets=SetOptions(source, target)), console)
    assert (result["checkpoint"], "the newest is used" in shown(console)) == ("step-00000005", True)
    evaluate(run, EvaluateOptions("last", sets=SetOptions(source, target)), console)
    assert shown(console).count("the newest is used") == 1, "it was asked for"


def test_a_wrong_checkpoint_is_told_which_there_are(text_run: RunFolder, echelon: Echelon) -> None:
    refused = echelon("evaluate", text_run.path, "--checkpoint", "step-7", status=2)
    assert "step-7: is not a complete checkpoint" in refused.stderr
    assert refused.stderr.rstrip().endswith(": step-00000005")


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_small_run(tmp_path_factory.mktemp("text") / "run", steps=30)


def write_set(folder: Path, name: str, seed: int) -> tuple[Path, Path]:
    source, target = folder / f"{name}.en", folder / f"{name}.de"
    lines = sentences(12, seed)
    source.write_text("".join(f"{line}\n" for line in lines))
    target.write_text("".join(f"{line.upper()}\n" for line in reversed(lines)))
    return source, target


def test_any_set_is_scored_and_kept_by_name(text_run: RunFolder, tmp_path: Path) -> None:
    """With what sacreBLEU gives for the output of `translate`; the data of the training are not needed."""
    source, target = write_set(tmp_path, "news", 5)
    own = text_run.score_file("test").read_text()
    console = Console(file=io.StringIO())
    (result,) = evaluate(text_run, EvaluateOptions(sets=SetOptions(source, target)), console)
    assert shown(console) == "scoring news ...\n"
    outputs = text_run.outputs_file("news").read_text().splitlines()
    lines = source.read_text().splitlines()
    assert outputs == [str(one) for one in Translator.load(text_run.path).translate(lines)]
    bleu = sacrebleu.corpus_bleu(outputs, [target.read_text().splitlines()])
    assert result["bleu"] == pytest.approx(bleu.score, abs=1e-6)
    assert result["signature"].startswith("nrefs:1|case:mixed")
    kept = json.loads(text_run.score_file("news").read_text())
    assert (kept["split"], kept["bleu"], kept["step"]) == ("news", result["bleu"], 5)
    assert [Path(file["path"]).name for file in kept["files"]] == ["news.en", "news.de"]
    assert text_run.references_file("news").read_text() == target.read_text()
    assert text_run.score_file("test").read_text() == own


def test_a_trial_is_kept_beside_the_scores_of_the_run(text_run: RunFolder, tmp_path: Path) -> None:
    """`evaluate --checkpoint` or `--set` replaced the score that a run is known by."""
    sets = SetOptions(*write_set(tmp_path, "trial", 8))
    evaluate(text_run, EvaluateOptions(sets=sets))
    own = text_run.score_file("trial").read_text()
    evaluate(text_run, EvaluateOptions("step-00000005", sets=sets))
    assert text_run.score_file("trial").read_text() == own, "that is the run's own checkpoint"
    (result,) = evaluate(text_run, EvaluateOptions(sets=sets, overrides=["evaluate.beam=1"]))
    assert result["settings"] == ["evaluate.beam=1"]
    assert text_run.score_file("trial").read_text() == own
    kept = json.loads(text_run.score_file("trial-evaluate.beam-1").read_text())
    assert (kept["split"], kept["signature"]) == ("trial", result["signature"])
    assert result["outputs"] == str(text_run.outputs_file("trial-evaluate.beam-1"))


def test_another_checkpoint_is_a_trial(tmp_path: Path) -> None:
    run = make_small_run(tmp_path / "run")
    later = run.checkpoints / "step-00000009"
    shutil.copytree(run.checkpoints / "step-00000005", later)
    best = TrainingState(step=9, best=Best(5, "bleu", 1.0))
    write_sidecar(later, STATE, write_state(later, best, [MODEL]))
    sets = SetOptions(*write_set(tmp_path, "news", 5))
    (result,) = evaluate(run, EvaluateOptions("last", sets=sets))
    assert result["checkpoint"] == "step-00000009"
    assert [file.stem for file in sorted(run.scores.glob("news*.json"))] == ["news-step-00000009"]


def test_several_sets_are_scored_one_after_the_other(text_run: RunFolder, tmp_path: Path) -> None:
    one, two = write_set(tmp_path, "one", 6), write_set(tmp_path, "two", 7)
    pairs = tmp_path / "two.tsv"
    columns = zip(*(file.read_text().splitlines() for file in two), strict=True)
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in columns))
    tests = [f"one={one[0]},{one[1]}", f"two={two[0]},{two[1]}", f"pairs={pairs}"]
    first, second, third = evaluate(text_run, EvaluateOptions(sets=SetOptions(tests=tests)))
    assert (first["split"], second["split"], third["split"]) == ("one", "two", "pairs")
    assert (third["bleu"], third["loss"]) == (second["bleu"], second["loss"])
    assert first["loss"] != second["loss"]


def test_a_set_that_cannot_be_scored_is_refused_before_anything_is_said(
    text_run: RunFolder, tmp_path: Path
) -> None:
    source, target = write_set(tmp_path, "news", 5)
    target.write_text("one line\n")
    console = Console(file=io.StringIO())
    with pytest.raises(DataError, match=r"news\.en has 12 lines, but .*news\.de has 1"):
        evaluate(text_run, EvaluateOptions(sets=SetOptions(source, target)), console)
    with pytest.raises(UserError, match="--split test is one of the run's own sets"):
        evaluate(text_run, EvaluateOptions(split="test", sets=SetOptions(source, target)), console)
    assert shown(console) == ""


def test_a_folder_of_pictures_is_scored(tmp_path: Path) -> None:
    run = make_small_image_run(tmp_path / "run")
    files = [tmp_path / "photos" / CLASSES[seed % 3] / f"{seed}.png" for seed in range(9)]
    for seed, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(seed))
    (result,) = evaluate(run, EvaluateOptions(sets=SetOptions(images=[str(tmp_path / "photos")])))
    files.sort()
    guesses = [one[0].name for one in Classifier.load(run.path).classify(files, top=1)]
    assert run.outputs_file("photos").read_text().splitlines() == guesses
    assert run.references_file("photos").read_text().splitlines() == [file.parent.name for file in files]
    right = sum(guess == file.parent.name for guess, file in zip(guesses, files, strict=True))
    assert result["top1"] == pytest.approx(100 * right / 9, abs=1e-4)
    assert result["signature"] == "photos:9|classes:10|flip:no|shift:0"
    assert json.loads(run.score_file("photos").read_text())["top1"] == result["top1"]


def test_pictures_of_unknown_classes_and_damaged_ones_are_named(tmp_path: Path) -> None:
    run = make_small_image_run(tmp_path / "run")
    options = EvaluateOptions(sets=SetOptions(images=[str(tmp_path / "photos")]))
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match="photos: holds no images"):
        evaluate(run, options)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir()
        (tmp_path / "photos" / name / "bad.png").write_bytes(b"no picture")
    with pytest.raises(
        DataError, match=r"(?s)cat/bad\.png cannot be read as an image: .*dog/bad\.png cannot"
    ):
        evaluate(run, options)
    (tmp_path / "photos" / "dog").rename(tmp_path / "photos" / "unicorn")
    with pytest.raises(DataError, match="the model knows no class unicorn"):
        evaluate(run, options)
