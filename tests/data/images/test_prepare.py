"""Pictures from digits, CIFAR-10's files and folders: what is in which split, and that it is found again."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from echelon.data.images import prepare
from echelon.data.images.folder import PictureFolder
from echelon.data.images.image_store import SHARD_BYTES, StoreWriter, open_images
from echelon.data.images.prepare import find_images, prepare_images
from echelon.data.images.sources import hold_out
from echelon.errors import DataError
from echelon.recipe.image_sections import ImageData
from tests.data.images.pictures import as_tar, picture, write_cifar, write_folder


def test_digits_are_split_so_that_every_picture_is_in_one_set(tmp_path: Path) -> None:
    prepared = prepare_images(ImageData(source="digits"), recipe_folder=tmp_path, cache=tmp_path / "cache")
    counts = {name: len(store) for name, store in prepared.splits.items()}
    assert counts == {"train": 1257, "valid": 180, "test": 360}
    test = prepared.splits["test"]
    assert np.bincount(test.labels).tolist() == [36] * 10
    assert prepared.manifest.classes == tuple("0123456789")
    assert test.gather(np.array([0])).shape == (1, 8, 8, 3)


def test_prepared_pictures_are_found_again_and_not_made_twice(tmp_path: Path) -> None:
    data = ImageData(source="cifar10", path="six", verify=False, valid_images=10)
    write_cifar(tmp_path / "six")
    assert find_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache") is None
    first = prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    stages: list[str] = []
    again = prepare_images(
        data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=lambda p: stages.append(p.stage)
    )
    assert (again.folder, stages) == (first.folder, [])
    found = find_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    assert found is not None
    assert found.key == first.key


@pytest.mark.parametrize("damage", ["cut", "damaged"])
def test_a_broken_archive_of_cifar_10_is_the_user_s_error(tmp_path: Path, damage: str) -> None:
    write_cifar(tmp_path / "six", per_file=100)  # more than zlib's block, so that one begins amid a file
    archive_file = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive_file, "w:gz") as archive:
        archive.add(tmp_path / "six", "cifar-10-batches-bin")
    part = archive_file.read_bytes()[: archive_file.stat().st_size * 2 // 5]  # ends amid a file too
    archive_file.write_bytes(part if damage == "cut" else part + bytes(len(part)))
    data = ImageData(source="cifar10", path="cifar-10-binary.tar.gz")
    with pytest.raises(DataError, match=r"if it is half a download, fetch it again, or leave data\.path out"):
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")


def test_pixels_of_cifars_planes_come_out_as_colours(tmp_path: Path) -> None:
    write_cifar(tmp_path / "six")
    data = ImageData(source="cifar10", path="six", verify=False, valid_images=0)
    prepared = prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    assert set(prepared.splits) == {"train", "test"}
    record = (tmp_path / "six" / "data_batch_2.bin").read_bytes()[3073 : 2 * 3073]
    index = 20 + 1
    assert prepared.train.labels[index] == record[0]
    planes = np.frombuffer(record[1:], np.uint8).reshape(3, 32, 32)
    np.testing.assert_array_equal(prepared.train.picture(index), planes.transpose(1, 2, 0))


def test_files_that_are_not_the_published_ones_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path / "six")
    data = ImageData(source="cifar10", path="six")
    with pytest.raises(DataError, match=r"data_batch_1\.bin is not the published one"):
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "prepared").glob("*"))


def test_a_sample_of_cifar_10_is_refused_with_settings_that_train_on_it(tmp_path: Path) -> None:
    write_cifar(tmp_path / "six", per_file=100)
    data = ImageData(source="cifar10", path="six")
    for name in ("data_batch_1.bin", "data_batch_2.bin"):
        with pytest.raises(
            DataError, match=r"add --set data\.verify=false --set data\.valid_images=(50|40)$"
        ):
            prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
        (tmp_path / "six" / name).unlink()
    data = ImageData(source="cifar10", path="six", verify=False)
    with pytest.raises(DataError, match=r"taken all 300 images; add --set data.valid_images=30"):
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    data = ImageData(source="cifar10", path="six", verify=False, valid_images=30)
    assert prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache").train.labels.shape == (270,)


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_of_grey_cmyk_palette_and_transparent_pictures(tmp_path: Path, packed: bool) -> None:
    write_folder(tmp_path / "set")
    if packed:
        as_tar(tmp_path / "set", tmp_path / "set.tar")
    data = ImageData(source="folder", path="set.tar" if packed else "set", pixels=14)
    prepared = prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    assert prepared.manifest.classes == ("cat", "dog")
    assert {name: len(store) for name, store in prepared.splits.items()} == {"train": 8, "valid": 4}
    assert prepared.train.picture(0).shape == (16, 24, 3), "the shorter side is 14 * 8 / 7"
    assert prepared.train.picture(3).std() > 10


@pytest.mark.parametrize("packed", [False, True])
def test_the_name_of_a_picture_may_be_any_bytes(tmp_path: Path, packed: bool) -> None:
    cats = write_folder(tmp_path / "set") / "train" / "cat"
    (cats / "0.jpg").rename(cats / os.fsdecode(b"caf\xe9.jpg"))
    if packed:
        as_tar(tmp_path / "set", tmp_path / "set.tar")
    data = ImageData(source="folder", path="set.tar" if packed else "set", pixels=14)
    prepared = prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    assert len(prepared.train) == 8


def test_the_name_of_a_class_is_text(tmp_path: Path) -> None:
    train = write_folder(tmp_path / "set") / "train"
    (train / "cat").rename(train / os.fsdecode(b"ch\xe2t"))
    (tmp_path / "set" / "val" / "cat").rename(tmp_path / "set" / "val" / os.fsdecode(b"ch\xe2t"))
    data = ImageData(source="folder", path="set", pixels=14)
    with pytest.raises(DataError, match=r"the class folder b'ch\\xe2t' is not UTF-8; rename it"):
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")


def test_with_a_number_of_validation_pictures_val_is_the_test_set(tmp_path: Path) -> None:
    write_folder(tmp_path / "set")
    data = ImageData(source="folder", path="set", pixels=14, valid_images=2)
    prepared = prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    assert {name: len(store) for name, store in prepared.splits.items()} == {
        "train": 6,
        "valid": 2,
        "test": 4,
    }


def test_a_file_that_is_no_picture_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "set")
    (tmp_path / "set" / "train" / "cat" / "bad.png").write_bytes(b"not a picture")
    data = ImageData(source="folder", path="set", pixels=14)
    with pytest.raises(DataError, match=r"train/cat/bad\.png cannot be read as an image"):
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")


def test_a_file_larger_than_any_picture_is_not_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "set")
    with open(tmp_path / "set" / "train" / "cat" / "big.png", "wb") as file:
        file.truncate(100 << 30)
    data = ImageData(source="folder", path="set", pixels=14)
    with pytest.raises(DataError, match=r"big\.png cannot be read as an image.*more than 268,435,456 bytes"):
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")


def test_all_files_that_are_no_pictures_are_named_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path / "set")
    bad = [f"{split}/cat/bad{number}.png" for split in ("train", "val") for number in range(15)]
    for name in bad:
        (tmp_path / "set" / name).write_bytes(b"not a picture")
    data = ImageData(source="folder", path="set", pixels=14)
    with pytest.raises(DataError) as caught:
        prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    first, *named, last = str(caught.value).splitlines()
    assert first.endswith("set: 30 files cannot be read as images; mend or remove them:")
    assert [line.split(":")[0].strip() for line in named] == sorted(bad)[:20]
    assert last == "  and 10 more"
    assert not list((tmp_path / "cache" / "prepared").glob("*"))


def test_how_pictures_are_decoded_is_part_of_what_a_folder_is_known_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "set")
    data = ImageData(source="folder", path="set", pixels=14)
    prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    monkeypatch.setattr(prepare, "DECODING_VERSION", 1)
    assert find_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "val").rename(folder / "elsewhere"), r"has no val/ folder"),
        (lambda folder: (folder / "train").rename(folder / "elsewhere"), r"has no images in train/CLASS/"),
        (
            lambda folder: (folder / "val" / "cat").rename(folder / "val" / "cow"),
            r"cow has images to score",
        ),
        (
            lambda folder: (folder / "val" / "cat" / "0.jpg").rename(folder / "val" / "0.JPEG"),
            r"val/0\.JPEG lies in no class folder",
        ),
    ],
)
def test_a_wrong_layout_is_said(tmp_path: Path, change: object, message: str) -> None:
    write_folder(tmp_path / "set")
    assert callable(change)
    change(tmp_path / "set")
    with pytest.raises(DataError, match=message):
        prepare_images(
            ImageData(source="folder", path="set", pixels=14),
            recipe_folder=tmp_path,
            cache=tmp_path / "cache",
        )


def test_links_to_folders_are_followed_and_those_that_lead_back_up_are_not(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere")
    (tmp_path / "set").mkdir()
    for split in ("train", "val"):
        (tmp_path / "set" / split).symlink_to(tmp_path / "elsewhere" / split)
    (tmp_path / "elsewhere" / "train" / "cat" / "all").symlink_to(tmp_path / "set")
    (tmp_path / "elsewhere" / "train" / "dog" / "up").symlink_to("..")
    folder = PictureFolder(tmp_path / "set", None, 16)
    assert {name: len(pictures) for name, pictures in folder.open().splits.items()} == {
        "train": 8,
        "valid": 4,
    }


def test_pictures_of_the_test_set_that_have_no_class_are_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "set")
    (tmp_path / "set" / "test").mkdir()
    picture(1).save(tmp_path / "set" / "test" / "1.jpg")
    assert "test" not in PictureFolder(tmp_path / "set", None, 16).open().splits


def test_damage_to_prepared_pictures_is_named(tmp_path: Path) -> None:
    prepared = prepare_images(ImageData(source="digits"), recipe_folder=tmp_path, cache=tmp_path / "cache")
    labels = prepared.folder / "train.labels"
    labels.write_bytes(labels.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train\.labels has .* bytes instead of"):
        open_images(prepared.folder)


def test_pictures_are_cut_into_shards(tmp_path: Path) -> None:
    pictures = [np.asarray(picture(seed, 6, 5)) for seed in range(5)]
    with StoreWriter(tmp_path, "train", shard_bytes=200) as writer:
        for number, pixels in enumerate(pictures):
            writer.add(pixels, number)
        entry, files = writer.finish("noise", 5)
    assert entry.shards == 3
    assert [file.bytes for file in files if file.name.endswith(".pixels")] == [180, 180, 90]


_WRITE_MANY_SHARDS = """
import resource, sys
from pathlib import Path
import numpy as np
from echelon.data.images.image_store import StoreWriter

resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
with StoreWriter(Path(sys.argv[1]), "train", shard_bytes=100) as writer:
    for _ in range(40):
        writer.add(np.zeros((6, 5, 3), np.uint8), 0)
    print(writer.finish("black", 1)[0].shards)
"""


def test_more_shards_are_written_than_files_may_be_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITE_MANY_SHARDS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "40\n", done.stderr


def test_imagenet_can_be_mapped_where_few_files_may_be_open() -> None:
    imagenet = 1_331_167 * 256 * 341 * 3  # pictures, and what one has when its sides are as 3 to 4
    assert imagenet / SHARD_BYTES < 100


def test_as_many_of_each_class_are_held_out_and_none_is_lost() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1, 2, 2])
    kept, held = hold_out(labels, 4)
    assert held.tolist() == [2, 4, 5, 7]
    assert sorted([*kept, *held]) == list(range(8))
