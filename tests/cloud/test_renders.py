"""What other providers are told: golden texts, and what their own packages make of them."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from echelon.cloud.bill import estimate
from echelon.cloud.cluster_spec import load_spec, parse_spec
from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import SkyProvider, TaskFiles, TaskSpec, limit_s, render_task
from echelon.cloud.vertex import VertexSpec
from echelon.commands.cloud_render import render_for
from echelon.commands.convert import convert_ai_platform
from echelon.commands.google_account import GoogleAccount
from echelon.errors import UserError
from echelon.migrate.ai_platform import convert
from echelon.recipe.toml import dump_table
from tests.cloud.clusters import sample_spec

IBM = {"name": "v100", "flavor": "AC2_16X120X100", "domain": "example.org", "image": 22, "key": 33}


def test_ibms_commands() -> None:
    text = render_commands(parse_spec(IBM, IbmSpec, "ibm.toml"))
    assert text == (
        "# Make the servers; each costs from now on.\n"
        "ibmcloud sl vs create --hostname v100-0 --domain example.org --datacenter dal10 --flavor AC2_16X120X100 "
        "--image 22 --billing hourly --network 1000 --key 33 --san --force\n"
        "ibmcloud sl vs create --hostname v100-1 --domain example.org --datacenter dal10 --flavor AC2_16X120X100 "
        "--image 22 --billing hourly --network 1000 --key 33 --san --force\n"
        "# Wait until they run, and see their addresses.\n"
        "ibmcloud sl vs list --domain example.org\n"
        "# Put their names into ~/.ssh/config, then:\n"
        "#   echelon train RECIPE --hosts root@v100-0.example.org,root@v100-1.example.org --install --sync\n"
        "# Cancel them; until then they cost.\n"
        "for id in $(ibmcloud sl vs list --hostname v100-0 --domain example.org --column id | grep -o '[0-9][0-9]*'); "
        'do ibmcloud sl vs cancel "$id" --force; done\n'
        "for id in $(ibmcloud sl vs list --hostname v100-1 --domain example.org --column id | grep -o '[0-9][0-9]*'); "
        'do ibmcloud sl vs cancel "$id" --force; done\n'
    )


@pytest.mark.parametrize("domain", ["x; rm -rf /", "x\nrm -rf /", "-x", ""])
def test_ibms_words_cannot_become_commands(domain: str) -> None:
    """The domain also stands in a comment, which a new line would end."""
    with pytest.raises(UserError, match="domain"):
        parse_spec({**IBM, "domain": domain}, IbmSpec, "ibm.toml")


SKYPILOT = """\
name: wmt
num_nodes: 2
resources:
  infra: gcp/us-central1
  instance_type: g2-standard-4
  use_spot: true
  disk_size: 150
  autostop:
    idle_minutes: 5
    down: true
  labels:
    team: nlp
workdir: /home/me/recipes
file_mounts:
  ~/echelon_train-1-py3-none-any.whl: /home/me/.cache/echelon_train-1-py3-none-any.whl
setup: |
  # The hours begin when the machines have started, once.
  [ -e ~/echelon-deadline ] || echo "$(($(date +%s) + 9600))" > ~/echelon-deadline
  python3 -m venv ~/echelon-env
  timeout 30m ~/echelon-env/bin/pip install ~/'echelon_train-1-py3-none-any.whl[gcp]'
run: |
  export ECHELON_CACHE=~/echelon-cache PATH=~/echelon-env/bin:$PATH
  left=$(($(cat ~/echelon-deadline) - $(date +%s)))
  if [ "$left" -le 0 ]; then
    echo "the hours of wmt are over; sky down it" >&2
    exit 1
  fi
  workers=$(nvidia-smi --list-gpus 2> /dev/null | wc -l)
  [ "$workers" -gt 0 ] || workers=1
  # Told to stop, it saves; every checkpoint is in the bucket before it ends, and before SkyPilot ends the machines.
  timeout --signal=TERM --kill-after=300 "$left" echelon train 'my recipe.toml' --run ~/runs/wmt \\
    --set checkpoint.mirror=gs://mine/runs/wmt \\
    --nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" \\
    --master "$(echo "$SKYPILOT_NODE_IPS" | head -n 1):29500" --workers "$workers"
"""
TASK = {"name": "wmt", "type": "g4dn.2xlarge", "bucket": "s3://mine/runs"}
WHEEL = Path("/home/me/.cache/echelon_train-1-py3-none-any.whl")


def task_spec(**changes: Any) -> TaskSpec:
    return parse_spec({**TASK, **changes}, TaskSpec, "cluster.toml")


def test_skypilots_task() -> None:
    google = {
        "provider": "gcp",
        "type": "g2-standard-4",
        "region": "us-central1",
        "bucket": "gs://mine/runs/",
    }
    spec = task_spec(**google, count=2, spot=True, hours=3, tags={"team": "nlp"})
    text = render_task(spec, TaskFiles("my recipe.toml", Path("/home/me/recipes"), WHEEL))
    assert text == SKYPILOT
    assert yaml.safe_load(text)["run"].startswith("export")


def test_skypilot_keeps_hours_and_budget() -> None:
    assert limit_s(task_spec(hours=2)) == 7200
    on_demand = task_spec(hours=12, budget=3, region="us-east-1")
    hourly = estimate(sample_spec(count=1, shared=False)).hourly
    assert limit_s(on_demand) == int(3 / hourly * 3600)
    assert limit_s(task_spec(hours=12, budget=3, region="us-east-1", spot=True)) == limit_s(on_demand)
    with pytest.raises(UserError, match="too few"):
        limit_s(task_spec(hours=0.9))
    for changes in (
        {"provider": "lambda", "region": "x"},
        {"type": None, "gpus": "A100:8", "region": "x"},
        {},
    ):
        with pytest.raises(UserError, match="budget: only AWS's and Google's prices"):
            limit_s(task_spec(budget=100, **changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ssh_from": "203.0.113.7", "vpc": "vpc-1"}, "SkyPilot decides about ssh_from, vpc itself"),
        ({"shared": True}, "SkyPilot decides about shared"),
        ({"bucket": "azure://mine"}, "s3://BUCKET/FOLDER"),
        ({"provider": "elsewhere"}, "provider"),
        ({"gpus": "A100"}, "one of them"),
        ({"type": None}, "one of them"),
        ({"name": ".."}, "name"),
    ],
)
def test_what_skypilot_would_drop_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        task_spec(**changes)


def test_skypilots_machines_do_not_end_with_the_only_model() -> None:
    with pytest.raises(UserError, match="bucket is needed"):
        parse_spec({"name": "wmt", "type": "g4dn.2xlarge"}, TaskSpec, "cluster.toml")


@pytest.mark.parametrize("provider", get_args(SkyProvider))
def test_every_provider_of_skypilots_can_be_rendered(provider: str) -> None:
    text = render_task(task_spec(provider=provider), TaskFiles("recipe.toml", Path("/r"), WHEEL))
    assert yaml.safe_load(text)["resources"]["infra"] == provider


def test_skypilot_gets_the_recipe_and_echelon_as_they_are_here(
    tmp_path: Path, toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "cluster.toml"
    file.write_text(dump_table(TASK))
    task = yaml.safe_load(render_for("skypilot", file, toy_recipe))
    assert (task["workdir"], toy_recipe.name in task["run"]) == (str(toy_recipe.parent), True)
    ((there, here),) = task["file_mounts"].items()
    with zipfile.ZipFile(here) as wheel:
        assert "echelon/cloud/skypilot.py" in wheel.namelist()
    assert shlex.split(task["setup"])[-1] == f"{there}[aws]"
    with pytest.raises(UserError, match="needs --recipe"):
        render_for("skypilot", file, None)
    outside = tmp_path / "elsewhere" / "recipe.toml"
    outside.parent.mkdir()
    outside.write_text(toy_recipe.read_text())
    text = outside.read_text()
    corpus = next(path for path in toy_recipe.parent.iterdir() if path.name in text)
    outside.write_text(text.replace(corpus.name, str(corpus)))
    with pytest.raises(UserError, match="only the recipe's folder is copied"):
        render_for("skypilot", file, outside)


def test_a_container_of_skypilots_brings_echelon_with_it() -> None:
    task = yaml.safe_load(render_task(task_spec(container="team/echelon:1"), TaskFiles("s3://mine/r.toml")))
    assert task["resources"]["image_id"] == "docker:team/echelon:1"
    assert "pip" not in task["setup"]
    assert not {"file_mounts", "workdir"} & set(task)


@pytest.mark.parametrize(("left_s", "status"), [(100, 0), (-1, 1)])
def test_skypilots_script_trains_while_there_is_time(tmp_path: Path, left_s: int, status: int) -> None:
    """The task's own shell, with a stand-in for echelon that tells how it was called."""
    task = yaml.safe_load(render_task(task_spec(), TaskFiles("r.toml", tmp_path, WHEEL)))
    programs = tmp_path / "echelon-env" / "bin"
    programs.mkdir(parents=True)
    (programs / "echelon").write_text('#!/bin/sh\necho "$@"\n')
    (programs / "echelon").chmod(0o755)
    (tmp_path / "echelon-deadline").write_text(str(int(time.time()) + left_s))
    variables = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    }
    environment = {**os.environ, **variables, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", task["run"]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    called = (
        "--set checkpoint.mirror=s3://mine/runs/wmt --nodes 2 --node-rank 1 --master 10.0.0.1:29500 --workers"
    )
    assert (called in done.stdout) == (status == 0)
    assert ("the hours of wmt are over" in done.stderr) == (status == 1)


def to_vertex(document: Any) -> tuple[VertexSpec, list[str]]:
    spec, notes = convert(document)
    head = {"name": "old", "project": "p", "image": "i", "bucket": "gs://mine"}
    return parse_spec({**head, **spec}, VertexSpec, "old.toml"), notes


def custom(kind: str) -> dict[str, Any]:
    types = {f"{role}Type": kind for role in ("master", "worker", "parameterServer")}
    return {"trainingInput": {"scaleTier": "CUSTOM", **types, "workerCount": 1}}


def test_an_old_configuration_of_plain_machines() -> None:
    spec, notes = to_vertex(custom("n1-standard-16"))
    pools = [pool for pool in spec.pools() if pool]
    assert [(pool.machine, pool.count, pool.accelerator) for pool in pools] == [
        ("n1-standard-16", 1, None)
    ] * 3
    assert any("parameter servers take part" in note for note in notes)


def test_the_file_made_from_an_old_configuration_is_read_by_cloud_render(tmp_path: Path) -> None:
    old, new = tmp_path / "cmle_config.yaml", tmp_path / "job.toml"
    old.write_text(yaml.safe_dump(custom("complex_model_m_gpu")))
    text, _ = convert_ai_platform(old, GoogleAccount("mine", "gs://my-bucket"))
    new.write_text(text)
    spec = load_spec(new, VertexSpec)
    assert (spec.name, spec.chief.accelerators) == ("cmle-config", 4)


def test_what_an_old_configuration_does_not_say_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    old = tmp_path / "cmle_config.yaml"
    old.write_text(yaml.safe_dump(custom("standard")))
    with pytest.raises(UserError, match="add --project NAME and --bucket gs://NAME"):
        convert_ai_platform(old, GoogleAccount())
    old.write_text(yaml.safe_dump({**custom("standard"), "jobDir": "gs://old-bucket/runs"}))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-the-shell")
    with pytest.raises(UserError, match="add --bucket gs://NAME"):
        convert_ai_platform(old, GoogleAccount())
    document = custom("standard")
    document["trainingInput"]["jobDir"] = "gs://old-bucket/runs"
    old.write_text(yaml.safe_dump(document))
    text, notes = convert_ai_platform(old, GoogleAccount())
    assert 'bucket = "gs://old-bucket/runs"' in text
    assert 'image = "us-central1-docker.pkg.dev/from-the-shell/echelon/echelon"' in text
    assert any("--image gives another" in note for note in notes)


def test_old_gpus_that_are_gone_become_ones_that_are_there() -> None:
    spec, notes = to_vertex(custom("complex_model_m_gpu"))
    assert (spec.chief.machine, spec.chief.accelerator, spec.chief.accelerators) == (
        "n1-standard-16",
        "NVIDIA_TESLA_T4",
        4,
    )
    assert any("no K80 any more" in note for note in notes)


@pytest.mark.parametrize(
    ("tier", "counts"),
    [("BASIC", [1]), ("BASIC_GPU", [1]), ("STANDARD_1", [1, 4, 3]), ("PREMIUM_1", [1, 19, 11])],
)
def test_every_scale_tier(tier: str, counts: list[int]) -> None:
    spec, _ = to_vertex({"trainingInput": {"scaleTier": tier}})
    assert [pool.count for pool in spec.pools() if pool] == counts


def test_an_accelerator_of_its_own_a_region_and_a_time_limit() -> None:
    given = {
        "scaleTier": "CUSTOM",
        "masterType": "n1-highmem-8",
        "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
        "region": "europe-west4",
        "scheduling": {"maxRunningTime": "7200s"},
        "surprise": 1,
    }
    spec, notes = to_vertex(given)
    assert (spec.region, spec.hours) == ("europe-west4", 2)
    assert (spec.chief.accelerator, spec.chief.accelerators) == ("NVIDIA_TESLA_V100", 2)
    assert notes == ["surprise is not understood, and left out"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "no AI Platform configuration"),
        ([1], "no AI Platform configuration"),
        ({"a": 1}, "no AI Platform configuration"),
        ({"scaleTier": "BASIC_TPU"}, "BASIC_TPU"),
        ({"scaleTier": "CUSTOM"}, "needs a masterType"),
        ({"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": 2}, "workerType is missing"),
        ({"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": "x"}, "not a number"),
        ({"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": "9" * 5000}, "not a number"),
        (
            {"scaleTier": "CUSTOM", "masterType": "x", "masterConfig": {"acceleratorConfig": {"count": []}}},
            "acceleratorConfig.count is .*, not a number",
        ),
        ({"scaleTier": "BASIC", "scheduling": [1]}, "scheduling has no keys"),
    ],
)
def test_what_is_no_such_configuration_is_refused(document: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        convert(document)


def test_keys_that_are_no_text_are_left_out() -> None:
    _, notes = convert({"scaleTier": "BASIC", 1: 2, None: 3, "x": 4})
    assert [note.split()[0] for note in notes] == ["1", "None", "x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scaleTier: BASIC\nregion: &a [x]\njobDir: *a\n", r"line 3 has an alias \(\*name\)"),
        ("[" * 20_000 + "]" * 20_000, "nested too deeply"),
        ("scaleTier: 2020-99-99", "is not YAML: month must be"),
    ],
)
def test_yaml_that_stands_for_more_than_it_is_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Aliases of aliases: 421 bytes stood for ten billion entries, and asking for their text never ended."""
    old = tmp_path / "config.yaml"
    old.write_text(text)
    with pytest.raises(UserError, match=words):
        convert_ai_platform(old, GoogleAccount("mine", "gs://my-bucket"))
