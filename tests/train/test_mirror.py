from __future__ import annotations

import contextlib
from pathlib import Path

import fsspec
import torch
from tests.sample_image_recipe import sample_image_recipe

from echelon.comm.group import Group
from echelon.data.images.prepare import prepare_images
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder, write_json
from echelon.tasks.classification import ClassificationTask
from echelon.train.mirror import Mirror


def test_what_the_task_needs_to_use_a_model_is_at_the_address_too(tmp_path: Path) -> None:
    recipe = sample_image_recipe()
    prepared = prepare_images(recipe.data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    task = ClassificationTask(recipe, prepared, torch.device("cpu"))
    run = RunFolder(tmp_path / "run")
    run.create()
    write_json(run.images, prepared.what_classifying_needs())
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        Mirror("memory://mirrored", run, records, task.model_files(run)).finish(Group(0, 1).heart)
    there = fsspec.filesystem("memory")
    assert there.cat_file("/mirrored/images.json") == run.images.read_bytes()
