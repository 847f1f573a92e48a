from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.migrate import cifar10_command
from echelon.migrate.cifar10_command import translate
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import ClassificationRecipe, Piecewise
from tests.data.images.pictures import write_cifar


@pytest.fixture(autouse=True)
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10_command, "find_recipe", lambda name: f"recipes/{name}.toml")


def test_the_tutorial_s_first_command(tmp_path: Path) -> None:
    data = write_cifar(tmp_path / "d")
    modern = translate([f"--data-dir={data}", "--job-dir=/tmp/cifar10", "--num-gpus=0", "--train-steps=1000"])
    assert str(modern).startswith(
        "CUDA_VISIBLE_DEVICES= echelon train recipes/cifar10-resnet44.toml --run /tmp/cifar10 --workers 1 "
        "--set model.preset=resnet44 --set train.epochs= --set train.steps=1000 --set train.batch_images=128 "
        "--set train.slots=2 --set checkpoint.every=1000"
    )
    assert modern.words[-1] == f"data.path={data}"
    (note,) = modern.notes
    assert note.startswith("training is in bf16, which is faster, and starts with an epoch of warm-up")


def test_what_is_not_the_tutorial_s_is_undone_as_the_note_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    modern = translate(["--job-dir=j"])
    words = [*modern.words, *modern.notes[-1].split()]
    before, after = (load_recipe(Path(words[1]), settings_of(some)) for some in (modern.words, words))
    for recipe, expected in ((before, ("bf16", 351)), (after, ("float32", 0))):
        assert isinstance(recipe.schedule, Piecewise)
        assert (recipe.train.precision, recipe.schedule.warmup_steps) == expected


@pytest.mark.parametrize(
    ("gpus", "batch", "slots"), [(0, 125, 1), (1, 125, 1), (1, 128, 2), (2, 128, 2), (5, 125, 5)]
)
def test_any_batch_that_the_gpus_divide_is_trained_on(
    monkeypatch: pytest.MonkeyPatch, gpus: int, batch: int, slots: int
) -> None:
    monkeypatch.undo()
    words = translate(["--job-dir=j", f"--num-gpus={gpus}", f"--train-batch-size={batch}"]).words
    recipe = load_recipe(Path(words[1]), settings_of(words))
    assert isinstance(recipe, ClassificationRecipe)
    assert (recipe.train.batch_images, recipe.train.slots) == (batch, slots)


def test_with_gpus_the_environment_stays_as_it_is() -> None:
    assert translate(["--job-dir=j"]).environ == {}
    assert translate(["--job-dir=j", "--num-gpus=0"]).environ == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("holds", ["TFRecords", "nothing", "no folder"])
def test_without_cifar_10_s_files_the_data_are_fetched(tmp_path: Path, holds: str) -> None:
    data = tmp_path / "d"
    if holds != "no folder":
        data.mkdir()
    if holds == "TFRecords":
        (data / "train.tfrecords").touch()
    modern = translate(["--job-dir=j", f"--data-dir={data}"])
    assert not any(word.startswith("data.path") for word in modern.words)
    assert modern.notes[0].startswith(f"--data-dir {data} has neither CIFAR-10's .bin files nor")


def test_the_archive_is_found_in_the_folder(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.touch()
    for given in (tmp_path, archive):
        assert translate(["--job-dir=j", f"--data-dir={given}"]).words[-1] == f"data.path={archive}"


def test_a_job_dir_at_an_address_is_a_run_here_that_is_mirrored_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    modern = translate(["--job-dir=gs://bucket/model_dirs/x/"])
    assert modern.words[3] == "runs/x"
    recipe = load_recipe(Path(modern.words[1]), settings_of(modern.words))
    assert recipe.checkpoint.mirror == "gs://bucket/model_dirs/x"
    assert any("the run is in runs/x here" in note for note in modern.notes)


def test_its_other_flags() -> None:
    modern = translate(
        [
            "--job-dir=j",
            "--num-gpus=4",
            "--checkpoint-num-steps=500",
            "--num-layers=20",
            "--learning-rate=0.2",
            "--use-distortion-for-training=False",
            "--data-format=channels_last",
        ]
    )
    words = set(modern.words)
    assert {
        "4",
        "train.slots=4",
        "checkpoint.every=500",
        "model.preset=resnet20",
        "data.augment.pad=0",
    } <= words
    assert "schedule.learning_rates=[0.2, 0.02, 0.002, 0.0004]" in words
    assert modern.notes[0].startswith("--data-format is left out")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--variable-strategy=GPU", "--sync"], {"4"}),
        (
            ["--variable-strategy", "CPU", "--sync"],
            {"5", "train.exchange=parameter_server", "exchange.synchronous=true"},
        ),
        (["--sync=False"], {"5", "train.exchange=parameter_server", "exchange.synchronous=false"}),
    ],
)
def test_its_parameter_server_is_ours_and_as_many_workers_train(flags: list[str], expected: set[str]) -> None:
    words = translate(["--job-dir=j", "--num-gpus=4", *flags]).words
    assert {word for word in words if word in ("4", "5") or "exchange" in word} == expected


def settings_of(words: list[str]) -> list[str]:
    return [word for before, word in pairwise(words) if before == "--set"]


@pytest.mark.parametrize(
    ("batch", "boundaries", "warmup_steps"),
    [(128, [28782, 43173, 105300], 351), (64, [57646, 86469, 210900], 703), (10_000, [328, 492, 1200], 4)],
)
def test_the_rate_falls_after_the_tutorial_s_epochs(
    monkeypatch: pytest.MonkeyPatch, batch: int, boundaries: list[int], warmup_steps: int
) -> None:
    monkeypatch.undo()
    words = translate(["--job-dir=j", f"--train-batch-size={batch}"]).words
    schedule = load_recipe(Path(words[1]), settings_of(words)).schedule
    assert isinstance(schedule, Piecewise)
    assert (schedule.boundaries, schedule.warmup_steps) == (boundaries, warmup_steps)


def test_mistakes_are_the_user_s() -> None:
    with pytest.raises(UserError, match="must be from 1 to 45,000"):
        translate(["--job-dir=j", "--train-batch-size=0"])
    with pytest.raises(UserError, match="required: --job-dir"):
        translate([])
    with pytest.raises(UserError, match="--num-gpus must be 0"):
        translate(["--job-dir=j", "--num-gpus=-1"])
    with pytest.raises(UserError, match="invalid choice: 43"):
        translate(["--job-dir=j", "--num-layers=43"])


def test_the_recipe_takes_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    recipes = Path("recipes").absolute()
    monkeypatch.setattr(cifar10_command, "find_recipe", lambda name: recipes / f"{name}.toml")
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "d")
    flags = [
        "--train-steps=1000",
        "--train-batch-size=64",
        "--learning-rate=0.2",
        "--use-distortion-for-training=False",
    ]
    words = translate(["--job-dir=j", "--data-dir=d", *flags]).words
    recipe = load_recipe(Path(words[1]), settings_of(words))
    assert isinstance(recipe, ClassificationRecipe)
    assert (recipe.train.steps, recipe.train.epochs, recipe.train.batch_images) == (1000, None, 64)
    assert (recipe.data.path, recipe.data.augment.pad, recipe.model.norm_momentum) == (
        str(tmp_path / "d"),
        0,
        0.003,
    )


@pytest.mark.slow
def test_what_it_becomes_trains_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    data, job = write_cifar(tmp_path / "data"), tmp_path / "job"
    flags = [f"--data-dir={data}", f"--job-dir={job}", "--num-layers=20", "--train-batch-size=8"]
    for steps in (2, 3):
        words = translate([*flags, f"--train-steps={steps}"]).words
        small = ["--set", "data.verify=false", "--set", "data.valid_images=20"]
        command = [sys.executable, "-m", "echelon", *words, *small]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
        assert done.returncode == 0, done.stderr
        assert f"{job}: {steps} steps" in done.stdout
