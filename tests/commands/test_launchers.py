"""Which launcher is meant, what it would run, and which options make no sense together."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from echelon.commands.cluster_options import ClusterOptions
from echelon.commands.launch_options import LaunchOptions
from echelon.commands.launchers import launch
from echelon.commands.training import TrainOptions
from echelon.errors import RecipeError, UserError
from echelon.launch.hosts import Host
from echelon.recipe.toml import dump_recipe
from echelon.recipe.workers import WorkerRange
from tests.sample_recipe import sample_recipe

QUIET = Console(quiet=True)
BY_HAND = LaunchOptions(nodes=2, node_rank=1, master="127.0.0.1:29500", dry_run=True)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainOptions:
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "PET_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "sample.toml"
    recipe.write_text(dump_recipe(sample_recipe()))
    return TrainOptions(recipe, Path("runs/it"), WorkerRange(2, 2), ["train.steps=7"])


def environments(result: dict[str, Any]) -> list[dict[str, str]]:
    return [worker["environment"] for host in result["hosts"] for worker in host["workers"]]


def test_a_dry_run_here_shows_every_worker(options: TrainOptions, tmp_path: Path) -> None:
    planned = launch(options, LaunchOptions(dry_run=True), QUIET)
    assert planned.result["launcher"] == "local"
    assert [found["RANK"] for found in environments(planned.result)] == ["0", "1"]
    first, *workers = planned.words.splitlines()
    assert first == "this host:"
    assert len(workers) == 2
    assert "MASTER_PORT='(chosen at the start)'" in workers[0]
    assert workers[0].endswith("-m echelon.train.worker runs/it")
    assert list(tmp_path.iterdir()) == [tmp_path / "sample.toml"], "nothing was made"


def test_a_dry_run_by_hand_shows_what_is_typed_on_every_host(options: TrainOptions) -> None:
    result = launch(options, BY_HAND, QUIET).result
    assert [host["commands"] for host in result["hosts"]] == [
        [
            f"echelon train {options.recipe} --run runs/it --workers 2 --nodes 2 --node-rank {rank} "
            "--master 127.0.0.1:29500 --set train.steps=7"
        ]
        for rank in (0, 1)
    ]
    found = environments(result)
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert {each["WORLD_SIZE"] for each in found} == {"4"}
    assert found[2]["GLOO_SOCKET_IFNAME"] == "lo", "this host's card is known"
    assert found[0]["GLOO_SOCKET_IFNAME"] == "(the interface that leads to 127.0.0.1)"


def test_a_dry_run_inside_a_sites_launcher_shows_this_process(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    result = launch(replace(options, workers=None), LaunchOptions(dry_run=True), QUIET).result
    assert result["launcher"] == "mpirun"
    (environment,) = environments(result)
    assert (environment["RANK"], environment["LOCAL_RANK"], environment["WORLD_SIZE"]) == ("1", "1", "2")
    assert (environment["MASTER_ADDR"], environment["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    with pytest.raises(UserError, match="--workers: the 2 processes that mpirun has started are the workers"):
        launch(options, LaunchOptions(dry_run=True), QUIET)
    local = launch(options, LaunchOptions(launcher="local", dry_run=True), QUIET).result
    assert local["launcher"] == "local", "the user may want this host alone"


def test_a_dry_run_for_slurm_is_the_file(options: TrainOptions, tmp_path: Path) -> None:
    how = LaunchOptions("slurm", nodes=3, time="1:00", sbatch_option=["exclusive"], dry_run=True)
    planned = launch(options, how, QUIET)
    assert planned.words + "\n" == planned.result["text"]
    for line in ("--nodes=3", "--ntasks-per-node=2", "--time=1:00", "--exclusive"):
        assert f"#SBATCH {line}\n" in planned.result["text"]
    assert f"train {options.recipe} --run {tmp_path}/runs/it --set train.steps=7\n" in planned.result["text"]
    assert not (tmp_path / "runs").exists()


def test_slurm_gives_every_gpu_a_worker_unless_told_otherwise(options: TrainOptions) -> None:
    how = LaunchOptions("slurm", gpus_per_node=4, dry_run=True)
    assert "--ntasks-per-node=4\n" in launch(replace(options, workers=None), how, QUIET).result["text"]
    with pytest.raises(UserError, match="slurm gives every node the same number"):
        launch(replace(options, workers=WorkerRange(1, 2)), how, QUIET)


def test_manifests_are_printed_or_written_with_the_command_that_uses_them(
    options: TrainOptions, tmp_path: Path
) -> None:
    how = LaunchOptions("kubernetes", nodes=2, image="echelon:1")
    there = replace(options, run=None)
    printed = launch(there, how, QUIET)
    kinds = [document["kind"] for document in yaml.safe_load_all(printed.words)]
    assert kinds[-1] == "Job"
    (recipe,) = next(iter(yaml.safe_load_all(printed.words)))["data"].values()
    assert tomllib.loads(recipe) == tomllib.loads(options.recipe.read_text())
    written = launch(there, replace(how, to=tmp_path / "manifests"), QUIET)
    assert (tmp_path / "manifests" / "job.yaml").read_text() == printed.words + "\n"
    assert "kind: TrainJob" in (tmp_path / "manifests" / "trainjob.yaml").read_text()
    assert f"kubectl apply -f {tmp_path}/manifests/job.yaml" in written.words
    launch(there, replace(how, to=tmp_path / "not", dry_run=True), QUIET)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (LaunchOptions(partition="gpu"), "--partition goes with --launcher slurm, not with no --launcher"),
        (
            LaunchOptions("kubernetes", time="1:00"),
            "--time goes with --launcher slurm, not with --launcher kubernetes",
        ),
        (LaunchOptions("local", nodes=2), "--nodes goes with --launcher slurm or --launcher kubernetes"),
        (LaunchOptions("slurm", master="a:1"), "--master goes with hosts that are started by hand"),
        (LaunchOptions(sbatch_option=["x"]), "--sbatch-option goes with --launcher slurm"),
        (LaunchOptions("slurm", image="x"), "--image goes with --launcher kubernetes"),
        (
            LaunchOptions(gpus_per_node=2),
            "--gpus-per-node goes with --launcher slurm or --launcher kubernetes",
        ),
        (LaunchOptions(nodes=2), "--node-rank, --master missing"),
        (LaunchOptions("kubernetes", image="x"), "--run: on Kubernetes, runs lie on the volume"),
        (replace(BY_HAND, node_rank=2), "--node-rank 2: with --nodes 2 it must be from 0 to 1"),
    ],
)
def test_an_option_that_cannot_take_effect_is_an_error(
    options: TrainOptions, how: LaunchOptions, problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        launch(options, how, QUIET)
    assert problem in str(caught.value)


SEVERAL = {
    "hosts over SSH": (LaunchOptions(dry_run=True), {"cluster": ClusterOptions([Host("a", 4)])}),
    "hosts by hand": (BY_HAND, {}),
    "SLURM": (LaunchOptions("slurm", dry_run=True), {"workers": WorkerRange(2, 2)}),
    "Kubernetes": (LaunchOptions("kubernetes", nodes=2, image="x"), {"run": None}),
}


@pytest.mark.parametrize(("how", "there"), SEVERAL.values(), ids=SEVERAL)
def test_a_batch_that_one_machine_would_measure_for_others_is_refused_with_the_way_out(
    options: TrainOptions, how: LaunchOptions, there: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=r"echelon benchmark RECIPE --set train\.batch=auto --workers N"):
        launch(replace(options, overrides=["train.batch=auto"], **there), how, QUIET)


def test_a_batch_that_one_process_of_several_would_measure_is_refused(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("SIZE", "8"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "8")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with pytest.raises(UserError, match="is measured by one machine for its own workers"):
        launch(
            replace(options, workers=None, overrides=["train.batch=auto"]), LaunchOptions(dry_run=True), QUIET
        )


def test_a_job_of_one_worker_may_measure_its_batch(options: TrainOptions) -> None:
    alone = replace(options, workers=WorkerRange(1, 1), overrides=["train.batch=auto"])
    planned = launch(alone, LaunchOptions("slurm", dry_run=True), QUIET)
    assert "--set train.batch=auto" in planned.result["text"]


def test_pods_need_an_image(options: TrainOptions) -> None:
    with pytest.raises(UserError, match="--image: which container image"):
        launch(replace(options, run=None), LaunchOptions("kubernetes"), QUIET)


def test_every_plan_is_json(options: TrainOptions) -> None:
    for how in (LaunchOptions(dry_run=True), BY_HAND, LaunchOptions("slurm", dry_run=True)):
        assert json.loads(json.dumps(launch(options, how, QUIET).result))


def test_no_secret_gets_into_a_manifest(options: TrainOptions) -> None:
    """An address with a secret is refused, and comments stay at home."""
    how, there = LaunchOptions("kubernetes", image="echelon:1"), replace(options, run=None)
    with options.recipe.open("a") as file:
        file.write("# was https://me:s3cr3t@data.example/\n")
    assert "s3cr3t" not in launch(there, how, QUIET).words
    with pytest.raises(RecipeError):
        launch(replace(there, overrides=["data.prepared=sftp://me:s3cr3t@data.example/x"]), how, QUIET)


def test_a_secret_is_for_processes_that_meet_at_an_address(options: TrainOptions, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    result = launch(options, replace(BY_HAND, secret_file=secret), QUIET).result
    assert all(f"--secret-file {secret}" in host["commands"][0] for host in result["hosts"])
    with pytest.raises(UserError, match="--secret-file: only for processes that meet at --master"):
        launch(options, LaunchOptions(secret_file=secret, dry_run=True), QUIET)
