from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.checkpoints import write_checkpoint
from tests.sample_image_recipe import sample_image_recipe
from tests.sample_recipe import sample_recipe

from echelon.comm.group import Group
from echelon.data.images.prepare import prepare_images
from echelon.files.checkpoint_layout import Best, TrainingState, checkpoint_folder
from echelon.monitor.heartbeat import Heart
from echelon.monitor.records import RecordWriter
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, remove_folder, write_json
from echelon.store import MANIFEST, list_folders, put_folder
from echelon.tasks.classification import ClassificationTask
from echelon.train.mirror import Mirror, fetch_newest


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "run")


@pytest.fixture
def mirror(run: RunFolder, address: str) -> Iterator[Mirror]:
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        yield Mirror(address, run, records, ())


def make_run(path: Path) -> RunFolder:
    run = RunFolder(path)
    run.create()
    run.recipe.write_text(dump_recipe(sample_recipe()))
    return run


def save(run: RunFolder, step: int, best: int | None = None) -> Path:
    """A checkpoint that names that of step `best` as the best."""
    state = TrainingState(step=step, best=Best(best, "bleu", 1.0) if best else None)
    write_checkpoint(run.checkpoints, state, {"w": torch.tensor([float(step)])}, {})
    return checkpoint_folder(run.checkpoints, step)


def names(*steps: int) -> list[str]:
    return [f"step-{step:08d}" for step in steps]


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


def test_a_run_that_goes_on_from_its_mirror_has_the_best_checkpoint_here_and_there(
    run: RunFolder, address: str, mirror: Mirror, tmp_path: Path
) -> None:
    save(run, 5)
    mirror.put(save(run, 10, best=5))
    mirror.finish(Heart())
    second = make_run(tmp_path / "new-disk")
    assert fetch_newest(address, second, Heart()) == names(10, 5)
    assert fetch_newest(address, second, Heart()) == []
    remove_folder(checkpoint_folder(second.checkpoints, 5))
    assert fetch_newest(address, second, Heart()) == names(5), "where fetching was cut short"


def test_the_best_checkpoint_stays_at_the_address_where_this_disk_has_lost_it(
    run: RunFolder, address: str, mirror: Mirror
) -> None:
    for step in (5, 7):
        put_folder(save(run, step), f"{address}/checkpoints/step-{step:08d}")
        remove_folder(checkpoint_folder(run.checkpoints, step))
    mirror.put(save(run, 11, best=5))
    mirror.finish(Heart())
    assert list_folders(f"{address}/checkpoints") == names(5, 11)


def test_an_upload_that_fails_leaves_nothing_at_the_address(
    run: RunFolder, address: str, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = MemoryFileSystem.put_file

    def cut_off(self: MemoryFileSystem, file: str, path: str) -> None:
        if file.endswith("state.json"):
            raise OSError("the line is cut")
        put_file(self, file, path)

    monkeypatch.setattr(MemoryFileSystem, "put_file", cut_off)
    mirror.put(save(run, 5))
    mirror.finish(Heart())
    assert list_folders(f"{address}/checkpoints", whole=False) == []


def test_what_a_killed_upload_left_is_removed_and_nothing_of_others(
    run: RunFolder, address: str, mirror: Mirror
) -> None:
    there = fsspec.filesystem("memory")
    root = address.removeprefix("memory:/")
    put_folder(save(run, 5), f"{address}/checkpoints/step-00000005")
    there.rm_file(f"{root}/checkpoints/step-00000005/{MANIFEST}")
    there.pipe_file(f"{root}/checkpoints/notes/mine.txt", b"")
    mirror.put(save(run, 10))
    mirror.finish(Heart())
    assert list_folders(f"{address}/checkpoints", whole=False) == ["notes", *names(10)]
