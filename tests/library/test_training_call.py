"""Training from Python: the command's engine, seen and stopped from the calling process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import echelon
from echelon.errors import HostsError, RecipeError, RunError, TrainingError, UserError
from echelon.files.checkpoint_layout import complete_folders
from echelon.library.columns import as_form
from echelon.library.events import Event
from echelon.library.training_hosts import as_hosts
from echelon.recipe.schema import ClassificationRecipe
from echelon.recipe.workers import parse_workers
from tests.sample_image_recipe import sample_image_recipe

FAST = ("train.steps=6", "evaluate.every=3", "track.tensorboard=false")


def recipe(*overrides: str) -> echelon.Recipe:
    return sample_image_recipe(*FAST, *overrides)


def weights(run: Path, step: int) -> dict[str, bytes]:
    tensors = load_file(run / "checkpoints" / f"step-{step:08}" / "model.safetensors")
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def saved_steps(run: echelon.Run) -> list[int]:
    return sorted(step for step, _ in complete_folders(run.path / "checkpoints"))


def run_script(text: str, folder: Path, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def test_python_trains_the_same_weights_as_the_command(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(echelon.dump_recipe(recipe()))
    command = [sys.executable, "-m", "echelon", "train", str(file), "--run", str(tmp_path / "command")]
    subprocess.run([*command, "--workers", "2"], check=True, capture_output=True)
    run = echelon.train(recipe(), workers=2, run=tmp_path / "python", show=False)
    assert run.state == "finished"
    assert weights(run.path, 6) == weights(tmp_path / "command", 6)
    found = {name: tensor.numpy().tobytes() for name, tensor in run.weights("last").items()}
    assert found == weights(run.path, 6)


@pytest.mark.slow
def test_hosts_train_the_same_weights_and_their_events_come_live(tmp_path: Path) -> None:
    """This machine is the only host, reached without ssh."""
    here = echelon.train(recipe(), workers=2, run=tmp_path / "here", show=False)
    seen: list[int | None] = []
    callbacks = echelon.Callbacks(step=lambda event: seen.append(event.step))
    hosts = echelon.Hosts(["localhost:2"], sync=True)
    there = echelon.train(recipe(), hosts=hosts, run=tmp_path / "there", callbacks=callbacks, show=False)
    assert there.state == "finished"
    assert weights(there.path, 6) == weights(here.path, 6)
    assert seen == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_ending_the_training_early_has_hosts_save(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if (event.step or 0) >= 2:
            raise echelon.StopTraining

    run = echelon.train(
        recipe("train.steps=100000"),
        hosts="localhost:1",
        run=tmp_path / "run",
        callbacks=echelon.Callbacks(step=stop),
        show=False,
    )
    assert run.state == "interrupted"
    assert saved_steps(run)[-1] == run.step >= 2


def test_hosts_are_named_as_on_the_command_line() -> None:
    cluster = as_hosts("alpha:2,beta").to_options(parse_workers(3))
    assert [str(host) for host in cluster.hosts] == ["alpha:2", "beta:3"]
    assert as_hosts(["alpha"]) == echelon.Hosts(["alpha"])
    with pytest.raises(HostsError):
        as_hosts(["-oProxyCommand=x"]).to_options(None)
    with pytest.raises(ValueError, match="hosts need wait=True"):
        echelon.train(recipe(), hosts="alpha", wait=False)


def test_events_come_live_by_callback_and_later_from_the_run(tmp_path: Path) -> None:
    seen: list[Event] = []
    callbacks = echelon.Callbacks(step=seen.append, score=seen.append, save=seen.append, end=seen.append)
    run = echelon.train(recipe(), run=tmp_path / "run", callbacks=callbacks, show=False)
    told = [event for event in run if event.kind not in ("start", "note")]
    assert seen == told
    assert [event.step for event in told if event.kind == "step"] == [1, 2, 3, 4, 5, 6]
    assert [event["split"] for event in told if event.kind == "score" and "split" in event.values] == ["test"]
    assert told[-1].kind == "end"
    assert run.metrics()["loss"] == [event["loss"] for event in told if event.kind == "step"]
    assert run.metrics("scores")["step"] == [3, 6]
    best = run.best()
    assert best is not None
    assert best["top1"] == max(run.metrics("scores")["top1"])


def test_a_callback_that_raises_is_told_of_once_and_breaks_nothing(tmp_path: Path) -> None:
    calls = []

    def fail(event: Event) -> None:
        calls.append(event)
        raise ZeroDivisionError("in my plot")

    with pytest.warns(RuntimeWarning, match="in my plot"):
        run = echelon.train(
            recipe(), run=tmp_path / "run", callbacks=echelon.Callbacks(step=fail), show=False
        )
    assert (run.state, len(calls)) == ("finished", 1)


def test_a_callback_can_end_the_training_and_the_same_call_resumes(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        raise echelon.StopTraining

    endless = recipe("train.steps=100000", "evaluate.every=100000")
    run = echelon.train(endless, run=tmp_path / "run", callbacks=echelon.Callbacks(step=stop), show=False)
    assert run.state == "interrupted"
    assert saved_steps(run)[-1] == run.step
    settings = {"train.steps": run.step + 1}
    resumed = echelon.train(endless, run=run.path, settings=settings, show=False)
    assert (resumed.state, resumed.step) == ("finished", settings["train.steps"])


def test_keyboard_interrupt_saves_before_it_is_raised(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        echelon.dump_recipe(recipe("train.steps=100000", "evaluate.every=100000"))
    )
    program = (
        "import echelon, sys\n"
        "calls = echelon.Callbacks(step=lambda event: print(event.step, flush=True))\n"
        "try:\n"
        "    echelon.train('recipe.toml', run='run', callbacks=calls, show=False)\n"
        "except KeyboardInterrupt:\n"
        "    print('raised', echelon.load_run('run').state)\n"
    )
    script = run_script(program, tmp_path)
    assert script.stdout is not None
    assert script.stdout.readline()
    script.send_signal(signal.SIGINT)
    rest, errors = script.communicate(timeout=60)
    assert rest.splitlines()[-1] == "raised interrupted", errors
    run = echelon.load_run(tmp_path / "run")
    assert saved_steps(run)[-1] == run.step


def test_sigterm_saves_and_returns_the_run(tmp_path: Path) -> None:
    endless = recipe("train.steps=100000", "evaluate.every=100000")

    def terminate(event: Event) -> None:
        if event.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    run = echelon.train(
        endless, run=tmp_path / "run", callbacks=echelon.Callbacks(step=terminate), show=False
    )
    assert run.state == "interrupted"


def test_a_run_in_the_background_is_followed_and_stopped(tmp_path: Path) -> None:
    endless = recipe("train.steps=100000", "evaluate.every=100000")
    run = echelon.train(endless, run=tmp_path / "run", wait=False, show=False)
    assert run.state == "training"
    assert next(event for event in run if event.kind == "step").step == 1
    run.stop()
    assert run.wait().state == "interrupted"


def test_any_thread_may_train(tmp_path: Path) -> None:
    found: list[echelon.Run] = []
    thread = threading.Thread(
        target=lambda: found.append(echelon.train(recipe(), run=tmp_path / "run", show=False))
    )
    thread.start()
    thread.join()
    assert found[0].state == "finished"


def test_a_failure_of_the_workers_is_raised(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="finite"):
        echelon.train(
            recipe("schedule.learning_rate=1e30", "train.steps=200"), run=tmp_path / "run", show=False
        )


def test_a_recipe_is_built_in_code_and_goes_through_toml_unchanged(tmp_path: Path) -> None:
    built = echelon.make_recipe(
        name="built",
        task="classification",
        data={"source": "digits"},
        train={"steps": 4, "batch_images": 8, "slots": 2},
        schedule={"kind": "fixed", "learning_rate": 0.1},
    )
    file = tmp_path / "built.toml"
    file.write_text(echelon.dump_recipe(built))
    assert echelon.load_recipe(file) == built
    given = {"train.steps": 5, "evaluate.every": 2, "train.clip_norm": 0.5}
    changed = echelon.load_recipe(file, given)
    assert isinstance(changed, ClassificationRecipe)
    assert (changed.train.steps, changed.evaluate.every, changed.train.clip_norm) == (5, 2, 0.5)
    assert echelon.load_recipe(file, {"model": {"preset": "resnet20", "width": 4}}).model.width == 4  # type: ignore[attr-defined]


def test_all_problems_of_a_built_recipe_are_told_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        echelon.make_recipe(name="bad", task="classification", train={"stepz": 4, "batch_images": -1})
    assert {"train.stepz", "train.batch_images", "data"} <= {problem.key for problem in caught.value.problems}


def test_a_missing_run_and_an_unknown_form_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing-here"):
        echelon.load_run(tmp_path / "nothing-here")
    with pytest.raises(UserError, match="pip install"):
        as_form({}, "polars")


def test_the_function_and_the_package_of_one_name_are_both_there() -> None:
    program = (
        "import sys, echelon\n"
        "assert 'torch' not in sys.modules and callable(echelon.train)\n"
        "import echelon.train.slots\n"
        "assert callable(echelon.train) and echelon.train.slots.slot_seed\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
