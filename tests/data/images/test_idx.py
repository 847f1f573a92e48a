"""MNIST's file format: what is read, and what is wrong with files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from echelon.data.images.image_store import PreparedImages
from echelon.data.images.prepare import prepare_images
from echelon.errors import DataError, RecipeError
from echelon.recipe.image_sections import ImageData
from tests.sample_image_recipe import sample_image_recipe


def write_idx(file: Path, values: np.ndarray) -> Path:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content = head + values.astype(np.uint8).tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def write_set(folder: Path, *, packed: bool = False, pixels: int = 28, count: int = 100) -> Path:
    """Ten classes in turn; the test set has a fifth of the pictures."""
    folder.mkdir(parents=True)
    ending = ".gz" if packed else ""
    for name, size, seed in (("train", count, 1), ("t10k", count // 5, 2)):
        grey = np.random.default_rng(seed).integers(0, 256, (size, pixels, pixels))
        write_idx(folder / f"{name}-images-idx3-ubyte{ending}", grey)
        write_idx(folder / f"{name}-labels-idx1-ubyte{ending}", np.arange(size) % 10)
    return folder


def prepared_in(folder: Path, **settings: object) -> PreparedImages:
    data = ImageData.model_validate({"source": "idx", "path": "set", **settings})
    return prepare_images(data, recipe_folder=folder, cache=folder / "cache")


@pytest.mark.parametrize("packed", [False, True])
def test_pictures_and_labels_come_out_as_they_were_written(tmp_path: Path, packed: bool) -> None:
    write_set(tmp_path / "set", packed=packed)
    prepared = prepared_in(tmp_path)
    assert prepared.manifest.classes == tuple("0123456789")
    assert {name: len(store) for name, store in prepared.splits.items()} == {
        "train": 90,
        "valid": 10,
        "test": 20,
    }
    grey = np.random.default_rng(2).integers(0, 256, (20, 28, 28))
    test = prepared.splits["test"]
    assert test.labels.tolist() == [*range(10), *range(10)]
    for channel in range(3):
        np.testing.assert_array_equal(test.picture(3)[..., channel], grey[3])


def test_names_sizes_and_the_number_held_out_can_be_given(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    names = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"]
    prepared = prepared_in(tmp_path, class_names=names, pixels=32, valid_images=0)
    assert prepared.manifest.classes == tuple(names)
    assert prepared.train.picture(0).shape == (32, 32, 3)
    assert set(prepared.splits) == {"train", "test"}
    with pytest.raises(DataError, match=r"has 10 classes, and data.class_names names 2; name each of them"):
        prepared_in(tmp_path, class_names=["a", "b"])


def test_the_same_set_packed_and_unpacked_is_prepared_once(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    write_set(tmp_path / "packed", packed=True)
    assert prepared_in(tmp_path).folder == prepared_in(tmp_path, path="packed").folder


def test_what_is_wrong_with_the_files_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="set does not exist"):
        prepared_in(tmp_path)
    folder = tmp_path / "set"
    folder.mkdir()
    with pytest.raises(DataError, match="set: holds no train-images-idx3-ubyte and train-labels-idx1-ubyte"):
        prepared_in(tmp_path)
    folder.rmdir()
    write_set(folder)
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="has 78,399 bytes for 100 x 28 x 28; it is cut short or damaged"):
        prepared_in(tmp_path)
    images.write_bytes(b"PNG" + whole[3:])
    with pytest.raises(DataError, match="is not an idx file of 3 dimensions of bytes"):
        prepared_in(tmp_path)
    images.write_bytes(whole)
    write_idx(labels, np.arange(99) % 10)
    with pytest.raises(DataError, match="has 100 images, but train-labels-idx1-ubyte 99 labels"):
        prepared_in(tmp_path)
    write_idx(folder / "other-train-images-idx3-ubyte", np.zeros((1, 28, 28)))
    with pytest.raises(DataError, match="are two sets; keep one in a folder"):
        prepared_in(tmp_path)


def test_pictures_of_another_size_need_it_said(tmp_path: Path) -> None:
    write_set(tmp_path / "set", pixels=20)
    with pytest.raises(DataError, match=r"images are 20x20 and not 28x28, so set data.pixels"):
        prepared_in(tmp_path)
    assert prepared_in(tmp_path, pixels=20).train.picture(0).shape == (20, 20, 3)


def test_a_recipe_names_the_folder_and_names_of_classes_only_for_it() -> None:
    with pytest.raises(RecipeError, match=r'data.path: is missing; source = "idx" needs it'):
        sample_image_recipe("data.source=idx")
    with pytest.raises(RecipeError, match=r"data.class_names: are those of the folders, or of the data set"):
        sample_image_recipe("data.class_names=['a']")
