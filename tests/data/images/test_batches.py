"""Slots of pictures: every picture once an epoch, the same for everybody, varied as asked."""

from __future__ import annotations

import numpy as np
import pytest

from echelon.data.images.batches import ImagePlan, crop_boxes, crop_padded, cut_out, load_slot, mirror
from echelon.data.images.image_store import ImageStore
from echelon.data.randomness import bit_generator
from echelon.recipe.image_sections import Augment


def store_of(count: int, side: int = 8) -> ImageStore:
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    sizes = np.full((count, 2), side, np.uint16)
    places = np.stack([np.zeros(count, np.int64), np.arange(count) * 3 * side * side], 1)
    return ImageStore(np.arange(count).astype(np.uint16), sizes, places, [pixels.reshape(-1)])


def test_an_epoch_shows_every_picture_once_whatever_the_batch() -> None:
    plan = ImagePlan(10, batch_images=4, slots=2, seed=3)
    seen = [plan.slot(step, slot) for step in range(1, 6) for slot in (0, 1)]
    stream = np.concatenate([slot.images for slot in seen])
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert stream[:10].tolist() != stream[10:].tolist()
    assert np.concatenate([slot.epochs for slot in seen]).tolist() == [0] * 10 + [1] * 10
    assert plan.steps_per_epoch == 2.5


def test_any_slot_is_found_without_replaying_the_others() -> None:
    one, two = (ImagePlan(50, batch_images=8, slots=4, seed=3) for _ in range(2))
    for step in range(1, 20):
        one.slot(step, 0)
    np.testing.assert_array_equal(one.slot(40, 3).images, two.slot(40, 3).images)


EVERYTHING = Augment(pad=2, border="mirror", flip="random", cutout=3, mixup=0.4)


@pytest.mark.parametrize("augment", [EVERYTHING, Augment(min_area=0.2, flip="alternate")])
def test_variation_belongs_to_seed_step_and_slot(augment: Augment) -> None:
    store, plan = store_of(12), ImagePlan(12, batch_images=12, slots=2, seed=1)
    slot = plan.slot(5, 1)
    one, two = (load_slot(store, slot, augment, 8, seed=1) for _ in range(2))
    np.testing.assert_array_equal(one.images, two.images)
    assert one.mixed_share == two.mixed_share
    other = load_slot(store, slot, augment, 8, seed=2)
    assert not np.array_equal(one.images, other.images)


def test_without_variation_pictures_are_as_they_are() -> None:
    store, plan = store_of(6), ImagePlan(6, batch_images=6, slots=1, seed=1)
    slot = plan.slot(1, 0)
    batch = load_slot(store, slot, Augment(), 8, seed=1)
    for picture, index, label in zip(batch.images, slot.images, batch.labels, strict=True):
        np.testing.assert_array_equal(picture, store.picture(int(index)))
        assert label == index


def test_every_crop_is_a_part_of_the_padded_picture() -> None:
    images = np.random.default_rng(1).integers(1, 256, (40, 6, 5, 3), np.uint8)
    crops = crop_padded(images, 2, False, bit_generator(1))
    places = set()
    for image, crop in zip(images, crops, strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        found = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if np.array_equal(padded[top : top + 6, left : left + 5], crop)
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 10


def test_mirroring_turns_left_and_right_round() -> None:
    images = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    turned = mirror(images.copy(), np.array([True, False]))
    np.testing.assert_array_equal(turned[0], images[0, :, ::-1])
    np.testing.assert_array_equal(turned[1], images[1])


def test_every_other_epoch_shows_a_picture_mirrored() -> None:
    store, plan = store_of(8), ImagePlan(8, batch_images=8, slots=1, seed=1)
    is_mirrored = []
    for step in (1, 2, 3):
        slot = plan.slot(step, 0)
        batch = load_slot(store, slot, Augment(flip="alternate"), 8, seed=1)
        flags = np.empty(8, bool)
        for picture, index in zip(batch.images, slot.images, strict=True):
            flags[index] = not np.array_equal(picture, store.picture(int(index)))
        is_mirrored.append(flags)
    np.testing.assert_array_equal(is_mirrored[0], ~is_mirrored[1])
    np.testing.assert_array_equal(is_mirrored[0], is_mirrored[2])
    assert 0 < is_mirrored[0].sum() < 8


def test_a_square_is_cut_out() -> None:
    images = np.zeros((30, 9, 9, 3), np.uint8)
    images[::2] = 255
    cut = cut_out(images, 3, bit_generator(2))
    changed = (cut == 128).all(3).sum((1, 2))
    assert changed.max() == 9
    assert changed.min() >= 4, "a square at the edge is cut off by it"


def test_random_parts_are_inside_and_of_the_asked_area_and_ratio() -> None:
    sizes = np.array([[30.0, 40.0]] * 500)
    left, top, right, bottom = crop_boxes(sizes, 0.25, bit_generator(4)).T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= 40).all()
    assert (bottom <= 30).all()
    areas, ratios = (right - left) * (bottom - top) / 1200, (right - left) / (bottom - top)
    assert areas.min() > 0.22
    assert areas.max() > 0.8
    assert ratios.min() > 0.65
    assert ratios.max() < 1.5


def test_a_very_long_picture_gets_the_square_in_its_middle() -> None:
    boxes = crop_boxes(np.array([[10.0, 1000.0]]), 0.9, bit_generator(4))
    assert boxes.tolist() == [[495.0, 0.0, 505.0, 10.0]]
