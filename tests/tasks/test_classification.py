"""The classification task: what the engine asks of it, on real digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from echelon.data.images.image_store import Normalisation, PreparedImages
from echelon.data.images.prepare import prepare_images
from echelon.recipe.image_sections import ImageEvaluation
from echelon.tasks.classification import ClassificationTask, Normaliser, build_network, classify, views
from tests.sample_image_recipe import sample_image_recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> PreparedImages:
    folder = tmp_path_factory.mktemp("digits")
    return prepare_images(sample_image_recipe().data, recipe_folder=folder, cache=folder)


def test_slots_count_their_pictures_and_load_the_same_every_time(digits: PreparedImages) -> None:
    task = ClassificationTask(sample_image_recipe("data.augment.pad=1"), digits, CPU)
    slots = task.slots(7)
    assert [slot.targets for slot in slots] == [8, 8, 8]
    one, two = task.load(slots[1]), task.load(slots[1])
    assert torch.equal(one.images_NCPP, two.images_NCPP)
    assert one.images_NCPP.shape == (8, 3, 8, 8)
    assert one.images_NCPP.is_contiguous(memory_format=torch.channels_last)


def test_training_pictures_have_mean_zero_and_deviation_one(digits: PreparedImages) -> None:
    everything = digits.train.gather(np.arange(len(digits.train)))
    images = Normaliser(digits.manifest.normalisation)(everything)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_picture_is_scored_once_and_the_score_is_the_same(digits: PreparedImages, workers: int) -> None:
    torch.manual_seed(1)
    task = ClassificationTask(sample_image_recipe(), digits, CPU)
    model, scoring = task.build_model().eval(), task.scoring("test", final=True)
    scores = []
    for size in (1, workers):
        with torch.inference_mode():
            shares = [
                scoring.share(model, rank=rank, size=size, on_batch=lambda _: None) for rank in range(size)
            ]
        scores.append(scoring.combine(shares))
    assert scores[0] == scores[1]
    assert len(scores[0].outputs) == 360
    assert sum(map(sum, scores[0].details["confusion"])) == 360


def test_the_mean_of_a_picture_and_its_mirror_image() -> None:
    recipe = sample_image_recipe()
    torch.manual_seed(2)
    model = build_network(recipe, 10, 8).eval()
    images = torch.randn(4, 3, 8, 8)
    with torch.inference_mode():
        both = classify(model, images, ImageEvaluation(flip=True))
        mean = (model(images).softmax(1) + model(images.flip(3)).softmax(1)) / 2
    torch.testing.assert_close(both.softmax(1), mean)


def test_moved_views_show_the_picture_further_up_or_down() -> None:
    images = torch.arange(36.0).view(1, 1, 6, 6).expand(1, 3, 6, 6)
    (same, half), (one, quarter), (other, _) = views(images, ImageEvaluation(shift=1))
    assert (half, quarter) == (0.5, 0.25)
    assert torch.equal(same, images)
    assert torch.equal(one[:, :, 1:, 1:], images[:, :, :-1, :-1])
    assert torch.equal(other[:, :, :-1, :-1], images[:, :, 1:, 1:])
    assert sum(share for _, share in views(images, ImageEvaluation(shift=1, flip=True))) == 1


def test_blended_pictures_are_between_the_two(digits: PreparedImages) -> None:
    plain, mixed = (
        ClassificationTask(sample_image_recipe(f"data.augment.mixup={share}"), digits, CPU)
        for share in (0.0, 0.5)
    )
    slot = plain.slots(1)[0]
    one, two = plain.load(slot), mixed.load(slot)
    assert two.mixed is not None
    others, share = two.mixed
    expected = share * one.images_NCPP + (1 - share) * one.images_NCPP.flip(0)
    torch.testing.assert_close(two.images_NCPP, expected)
    assert torch.equal(others, one.labels_N.flip(0))


def test_normalising_moves_nothing_in_memory() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), np.uint8)
    images = Normaliser(Normalisation((10.0, 20.0, 30.0), (2.0, 4.0, 5.0)))(pictures)
    expected = (pictures[1, 2, 3] - np.array([10.0, 20.0, 30.0])) / np.array([2.0, 4.0, 5.0])
    np.testing.assert_allclose(images[1, :, 2, 3].numpy(), expected, rtol=1e-5)
    assert images.is_contiguous(memory_format=torch.channels_last)
