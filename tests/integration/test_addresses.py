"""Checkpoints and prepared data at an address, by the command line: a run goes on from the bucket on a new machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.cloud.server import REGION, moto_server

Echelon = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        boto3.client("s3").create_bucket(Bucket="mine")
        yield "s3://mine"


@pytest.mark.slow
def test_a_run_goes_on_from_its_mirror_with_data_from_an_address(
    bucket: str, toy_recipe: Path, tmp_path: Path, echelon: Echelon, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = json.loads(echelon("prepare", toy_recipe, "--to", f"{bucket}/data", "--json").stdout)
    mirror = f"checkpoint.mirror={bucket}/runs/toy"
    first = RunFolder(tmp_path / "first")
    sets = ["--set", mirror, "--set", "checkpoint.every=10", "--set", "checkpoint.keep=1"]
    echelon("train", toy_recipe, "--run", first.path, "--workers", "1", *sets)
    listing = boto3.client("s3").list_objects_v2(Bucket="mine", Prefix="runs/toy/")["Contents"]
    names = [entry["Key"] for entry in listing]
    steps = {name.split("/")[3] for name in names if "/checkpoints/" in name}
    assert "step-00000030" in steps
    assert "step-00000010" not in steps, "what the run folder no longer keeps is removed there too"
    assert {"runs/toy/recipe.toml", "runs/toy/tokeniser.model", "runs/toy/scores/test.json"} <= set(names)

    # A new machine: neither the run, nor the corpora, nor prepared data; the recipe is in the bucket.
    boto3.client("s3").upload_file(str(toy_recipe), "mine", "recipe.toml")
    shutil.rmtree(first.path)
    shutil.rmtree(toy_recipe.parent)
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "other-cache"))
    second = RunFolder(tmp_path / "second")
    more = ["--set", f"data.prepared={prepared['address']}", "--set", "train.steps=40"]
    echelon("train", f"{bucket}/recipe.toml", "--run", second.path, "--workers", "2", *sets, *more)
    records = read_records(second.worker_records(0))
    assert next(record["step"] for record in records if record["kind"] == "start") == 30
    assert any("was fetched from s3://mine/runs/toy" in str(record.get("message")) for record in records)
