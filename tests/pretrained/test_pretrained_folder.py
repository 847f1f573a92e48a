"""A model folder from anybody: nothing of it runs, leads elsewhere or takes more memory than it has bytes."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch

from echelon.errors import UserError
from echelon.pretrained.conversion import convert_pretrained
from echelon.pretrained.pretrained_folder import CONFIG, WEIGHTS, PretrainedFolder


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.file,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    safetensors.torch.save_file({"a": torch.zeros(2)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.pkl"])
def test_a_pickle_is_never_opened(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(folder.parent / "sprung")))

    with pytest.raises(UserError, match=r"save_pretrained\(NEW_FOLDER\)"):
        PretrainedFolder(folder).load_tensors()
    with pytest.raises(UserError, match="is not a safetensors file"):
        PretrainedFolder(folder / name).load_tensors()

    (folder / name).rename(folder / "model.safetensors")
    with pytest.raises(UserError, match="is not a safetensors file"):
        PretrainedFolder(folder).load_tensors()
    assert not (folder.parent / "sprung").exists()


@pytest.mark.parametrize("key", ["auto_map", "trust_remote_code", "custom_pipelines"])
def test_a_model_with_code_of_its_own_is_refused(folder: Path, key: str) -> None:
    (folder / "modeling.py").write_text(f"open({str(folder.parent / 'sprung')!r}, 'w')")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "marian", key: {"AutoModel": "modeling.Model"}})
    )

    with pytest.raises(UserError, match=f"code of its own \\({key}\\), which Echelon never runs"):
        convert_pretrained(folder, folder.parent / "run")

    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_link_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(Path("..") / name)

    read = PretrainedFolder(folder).load_tensors if name == WEIGHTS else PretrainedFolder(folder).read_config
    with pytest.raises(UserError, match="link that leads out of the folder"):
        read()


def test_the_links_of_the_hubs_own_cache_are_followed(folder: Path) -> None:
    hub = folder.parent / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots").mkdir()
    (folder / "model.safetensors").rename(hub / "blobs" / "0a1b")
    (folder / "model.safetensors").symlink_to(Path("../../blobs/0a1b"))
    folder.rename(hub / "snapshots" / "main")

    assert set(PretrainedFolder(hub / "snapshots" / "main").load_tensors()) == {"a"}


def test_an_index_leads_nowhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "secret.safetensors")
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(UserError, match="has its weights in several files; write them as one"):
        PretrainedFolder(folder).load_tensors()


def file_of(header: object, length: int | None = None, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "its header claims"),
        (file_of({}, length=2**60), "its header claims to have 1,152,921,504,606,846,976 bytes"),
        (file_of(b" " * (2**24 + 1)), "its header claims to have 16,777,217 bytes"),
        (file_of(b'{"a":' * 100_000), "nested too deeply"),
        (file_of([1]), "is no list of at most 20,000 tensors"),
        (file_of({str(number): {} for number in range(20_001)}), "is no list of at most 20,000 tensors"),
        (file_of({"a": {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}}), "numbers of type F64"),
        (file_of({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}), "safetensors file"),
        (file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}), "safetensors file"),
    ],
)
def test_a_header_that_lies_is_refused(folder: Path, content: bytes, says: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=says):
        PretrainedFolder(folder).load_tensors()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "is not a table"),
        (b"{", "is not JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (2**20 + 1), "has more than 1,048,576 bytes"),
    ],
)
def test_a_damaged_config_is_named(folder: Path, content: bytes, says: str) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"config\.json: .*{says}"):
        PretrainedFolder(folder).read_config()
