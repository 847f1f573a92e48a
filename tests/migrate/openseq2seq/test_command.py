from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from echelon.comm.group import Group
from echelon.commands.prepare import prepare_data
from echelon.commands.run_setup import write_run
from echelon.data.corpora import resolve
from echelon.errors import UserError
from echelon.migrate.old_command import Modern
from echelon.migrate.openseq2seq.command import translate
from echelon.monitor.records import RecordWriter, read_records
from echelon.recipe.loading import load_recipe, load_translation_recipe
from echelon.recipe.schema import Noam, TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.train.loop import Outcome, train
from echelon.train.worker import set_up
from tests.data.images.pictures import write_folder
from tests.migrate.openseq2seq.configs import RESNET, TRANSFORMER


def test_training_is_the_converted_recipe_beside_the_run(config: Path, tmp_path: Path) -> None:
    modern = translate(
        [f"--config_file={config}", "--mode=train_eval", f"--logdir={tmp_path}/run", "--max_steps=9"]
    )
    assert str(modern) == f"echelon train {tmp_path}/run.toml --run {tmp_path}/run"
    recipe = load_recipe(tmp_path / "run.toml")
    assert recipe.train.steps == 9
    assert any("batch_size_per_gpu counts pairs" in note for note in modern.notes)


def test_that_training_alone_scores_too_is_said(config: Path, tmp_path: Path) -> None:
    for mode, said in (("train", True), ("train_eval", False)):
        notes = translate([f"--config_file={config}", f"--logdir={tmp_path}/run", f"--mode={mode}"]).notes
        assert any("--mode=train scores the validation set too" in note for note in notes) == said


def test_the_batch_is_a_flag_too(config: Path, tmp_path: Path) -> None:
    translate(
        [
            f"--config_file={config}",
            f"--logdir={tmp_path}/run",
            "--batch_size_per_gpu=32",
            "--use_horovod=True",
        ]
    )
    recipe = load_recipe(tmp_path / "run.toml")
    assert isinstance(recipe, TranslationRecipe)
    assert recipe.train.batch_tokens == 32 * 32


def test_values_may_stand_after_a_space(config: Path, tmp_path: Path) -> None:
    flags = ["--batch_size_per_gpu", "32", "--use_horovod", "True", "--lr_policy_params/learning_rate", "0.5"]
    modern = translate([f"--config_file={config}", *flags, "--logdir", f"{tmp_path}/run", "--max_steps", "9"])
    recipe = load_recipe(tmp_path / "run.toml")
    assert isinstance(recipe, TranslationRecipe)
    assert (recipe.train.batch_tokens, recipe.train.steps) == (32 * 32, 9)
    assert isinstance(recipe.schedule, Noam)
    assert recipe.schedule.scale == 0.5
    assert any(note.startswith("--use_horovod is not needed") for note in modern.notes)


@pytest.mark.parametrize("value", [" ", "="])
def test_flags_without_an_equivalent_are_taken_in_every_form(
    config: Path, tmp_path: Path, value: str
) -> None:
    numbered = f"--bench_start{value}5 --debug_port{value}6009".split()
    flags = ["--enable_logs", "--use_xla_jit", *numbered, "--max_steps=9"]
    notes = translate([f"--config_file={config}", f"--logdir={tmp_path}/run", *flags]).notes
    for name in ("enable_logs", "use_xla_jit", "bench_start", "debug_port"):
        assert sum(note.startswith(f"--{name} ") for note in notes) == 1
    assert load_recipe(tmp_path / "run.toml").train.steps == 9


def test_the_folder_is_the_configuration_s_where_none_is_given(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        str(translate([f"--config_file={config}"]))
        == "echelon train transformer-small.toml --run transformer-small"
    )


def test_a_folder_at_an_address_is_refused_before_anything_is_made(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cloudy = tmp_path / "cloudy.py"
    cloudy.write_text(config.read_text().replace('"transformer-small"', '"gs://bucket/x"'))
    for flags in ([f"--config_file={config}", "--logdir=gs://bucket/x"], [f"--config_file={cloudy}"]):
        with pytest.raises(UserError, match="--logdir gs://bucket/x: a run's folder is on this machine"):
            translate(flags)
    assert not (tmp_path / "gs:").exists()


def test_under_mpirun_the_batch_has_a_slot_for_every_process(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "4")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    translate([f"--config_file={config}", f"--logdir={tmp_path}/run"])
    assert load_recipe(tmp_path / "run.toml").train.slots == 4


@pytest.fixture
def used(tmp_path: Path) -> RunFolder:
    """A folder that holds a run already."""
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.write_text("x")
    return run


def test_a_folder_with_a_run_needs_continue_learning(config: Path, used: RunFolder) -> None:
    run = used
    arguments = [f"--config_file={config}", f"--logdir={run.path}"]
    with pytest.raises(UserError, match="give --continue_learning"):
        translate(arguments)
    assert translate([*arguments, "--continue_learning"]).words[0] == "train"
    assert translate([*arguments, "--mode=eval"]).words == ["evaluate", str(run.path), "--split", "valid"]
    assert translate([*arguments, "--mode=interactive_infer"]).words == ["translate", str(run.path)]
    assert translate([*arguments, "--benchmark", "--bench_steps=7"]).words[-2:] == ["--steps", "7"]


def test_under_mpirun_only_the_first_asks_whether_the_folder_is_new(
    config: Path, used: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may have made it by the time that the others look."""
    arguments = [f"--config_file={config}", f"--logdir={used.path}"]
    for rank in ("0", "1"):
        for name, value in (("RANK", rank), ("SIZE", "2"), ("LOCAL_RANK", rank), ("LOCAL_SIZE", "2")):
            monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
        if rank == "0":
            with pytest.raises(UserError, match="give --continue_learning"):
                translate(arguments)
    assert translate(arguments).words[0] == "train"


def test_only_training_writes_the_converted_recipe(config: Path, tmp_path: Path) -> None:
    arguments = [f"--config_file={config}", f"--logdir={tmp_path}/run"]
    for mode in ("eval", "infer", "interactive_infer"):
        translate([*arguments, f"--mode={mode}"])
    assert not (tmp_path / "run.toml").exists()
    translate([*arguments, "--benchmark"])
    assert (tmp_path / "run.toml").exists()


def test_a_configuration_s_relative_paths_begin_where_the_user_is(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config.write_text(TRANSFORMER.format(data="."))
    arguments = [f"--config_file={config}", "--logdir=runs/a"]
    translate(arguments)
    recipe = load_recipe(tmp_path / "runs" / "a.toml")
    assert isinstance(recipe, TranslationRecipe)
    assert recipe.data.train[0].source is not None
    assert resolve(recipe.data.train[0].source, tmp_path / "runs").read_text()
    assert "a.infer.txt has it as plain text" in translate([*arguments, "--mode=infer"]).notes[-1]


def test_a_recipe_s_test_set_is_found_beside_it(
    toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    test = load_translation_recipe(toy_recipe).data.test
    assert test is not None
    assert test.source is not None
    modern = translate([f"--config_file={toy_recipe}", "--mode=infer"])
    source = toy_recipe.parent / test.source
    assert modern.words == ["translate", "runs/toy", "--input", str(source)]
    assert not Path("runs").exists(), "plain text is translated where it is"


def test_inference_reads_pieces_as_text(config: Path, tmp_path: Path) -> None:
    modern = translate(
        [f"--config_file={config}", f"--logdir={tmp_path}/run", "--mode=infer", "--infer_output_file=o"]
    )
    text = tmp_path / "run.infer.txt"
    assert modern.words == ["translate", f"{tmp_path}/run", "--input", str(text), "--output", "o"]
    assert text.read_bytes() == (tmp_path / "test.en").read_bytes()


def test_a_recipe_is_a_configuration_too(tmp_path: Path, toy_recipe: Path) -> None:
    assert translate([f"--config_file={toy_recipe}"]).words == ["train", str(toy_recipe), "--run", "runs/toy"]
    with pytest.raises(UserError, match="--max_steps: a recipe's keys are changed with"):
        translate([f"--config_file={toy_recipe}", "--max_steps=3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode=train"], "the following arguments are required: --config_file"),
        (["--config_file=x.py", "--mode=fly"], "invalid choice: 'fly'"),
        (["--config_file=x.py"], "x.py: cannot be read: No such file"),
        (["--config_file=x.py", "stray"], "stray: write settings of the configuration as --name=value"),
        (
            ["--config_file=x.py", "--max_steps"],
            "--max_steps: write settings of the configuration as --name=",
        ),
        (["--config_file=x.py", "--max_steps", "--x=1"], "--max_steps: write settings of the configuration"),
    ],
)
def test_mistakes_are_the_user_s(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        translate(arguments)


def losses_of(modern: Modern, *settings: str) -> list[float]:
    """Do what the modern command does, in this process: the loss of every step."""
    verb, recipe_file, _, folder = modern.words
    assert verb == "train"
    recipe = load_recipe(Path(recipe_file), ["track.tensorboard=false", *settings])
    run = RunFolder(Path(folder))
    run.create()
    write_run(run, recipe, prepare_data(recipe, Path(recipe_file).parent, Console(quiet=True)))
    records = RecordWriter(run.worker_records(0))
    training = set_up(run, Group(0, 1), records)
    assert train(training) is Outcome.FINISHED
    training.prefetch.close()
    records.close()
    return [record["loss"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"]


def test_a_transformer_s_configuration_trains_two_steps(config: Path, tmp_path: Path) -> None:
    flags = ["--max_steps=2", "--eval_steps=2", "--batch_size_per_gpu=4"]
    modern = translate([f"--config_file={config}", f"--logdir={tmp_path}/run", *flags])
    losses = losses_of(modern, "train.kernels=off", "evaluate.sentences=4")
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


def test_a_resnet_s_configuration_trains_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    config = tmp_path / "resnet.py"
    small = RESNET.replace('"resnet_size": 18', '"resnet_size": 18, "first_num_filters": 4')
    config.write_text(small.format(data=write_folder(tmp_path / "pictures")))
    flags = ["--num_epochs=1", "--num_gpus=1", "--batch_size_per_gpu=4", "--data_layer_params/image_size=32"]
    modern = translate([f"--config_file={config}", f"--logdir={tmp_path}/run", *flags])
    losses = losses_of(modern)
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


@pytest.mark.slow
def test_the_old_commands_train_go_on_score_and_translate(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As users typed them, from a configuration in OpenSeq2Seq's style to translations."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "echelon.run",
            f"--config_file={config}",
            f"--logdir={tmp_path}/run",
            *arguments,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ, timeout=280
        )
        assert done.returncode == status, done.stderr
        return done

    shown = run("--mode=train_eval", "--max_steps=12").stderr
    assert f"today this is: echelon train {tmp_path}/run.toml --run {tmp_path}/run" in shown
    assert "step 12" in shown or (tmp_path / "run" / "scores").exists()
    assert "--continue_learning" in run("--mode=train", "--max_steps=14", status=2).stderr
    run("--mode=train", "--max_steps=14", "--continue_learning")
    assert "BLEU" in run("--mode=eval").stdout
    run("--mode=infer", f"--infer_output_file={tmp_path}/out.txt")
    assert len((tmp_path / "out.txt").read_text().split("\n")) == 21


@pytest.mark.slow
def test_a_resnet_s_configuration_trains(
    tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    config = tmp_path / "resnet.py"
    pictures = real_data / "tiny-imagenet-sample.tar"
    config.write_text(RESNET.format(data=pictures).replace('"image_size": 64', '"image_size": 32'))
    command = [sys.executable, "-m", "echelon.run", f"--config_file={config}", f"--logdir={tmp_path}/run"]
    done = subprocess.run(
        [*command, "--num_epochs=1"], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/run: 10 steps" in done.stdout
