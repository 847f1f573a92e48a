"""The library: pictures to classes."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from echelon import Classifier, Translator
from echelon.data.images.batches import take_middle
from echelon.data.images.image_store import Normalisation
from echelon.data.images.prepare import prepare_images
from echelon.errors import UserError
from echelon.inference.pictures import PictureRules, read_rules
from echelon.recipe.image_sections import ImageData
from echelon.runfolder import RunFolder, write_json
from tests.small_image_run import CLASSES, make_small_image_run, picture


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return Classifier.load(make_small_image_run(tmp_path_factory.mktemp("pictures") / "run").path)


def test_the_likeliest_classes_come_first_and_add_up(classifier: Classifier) -> None:
    (guesses,) = classifier.classify([picture(1)], top=10)
    assert sorted(guess.name for guess in guesses) == sorted(CLASSES)
    assert [g.probability for g in guesses] == sorted((g.probability for g in guesses), reverse=True)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)


def test_batches_do_not_matter_and_order_is_kept(classifier: Classifier, tmp_path: Path) -> None:
    many = [picture(seed) for seed in range(70)]
    together = classifier.classify(many, top=1)
    for number in (0, 63, 64, 69):
        ((alone,),) = classifier.classify([many[number]], top=1)
        assert together[number][0].name == alone.name
        assert together[number][0].probability == pytest.approx(alone.probability, rel=1e-4)
    (tmp_path / "a.png").write_bytes(many[3])
    assert classifier.classify([tmp_path / "a.png"])[0][0].name == together[3][0].name


def test_what_is_no_picture_is_named(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"letter\.txt: is not an image"):
        classifier.classify([tmp_path / "letter.txt"])
    with pytest.raises(UserError, match="image 2: is not an image"):
        classifier.classify([picture(1), b"dear"])
    with pytest.raises(UserError, match="cannot be read"):
        classifier.classify([tmp_path / "nowhere.png"])


def test_a_picture_is_seen_as_it_was_when_the_model_was_scored(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "set" / split / "noise").mkdir(parents=True)
        (tmp_path / "set" / split / "noise" / "1.png").write_bytes(picture(1, pixels=40))
    data = ImageData(source="folder", path="set", pixels=14, stored_pixels=30)
    prepared = prepare_images(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
    scored = take_middle(prepared.splits["valid"], np.array([0]), 14)[0]
    run = RunFolder(tmp_path / "run")
    run.create()
    write_json(run.images, prepared.what_classifying_needs())
    np.testing.assert_array_equal(read_rules(run).see(picture(1, pixels=40)), scored)


def test_a_picture_that_lies_on_its_side_is_classified_upright(classifier: Classifier) -> None:
    upright, lying = io.BytesIO(), io.BytesIO()
    view = Image.open(io.BytesIO(picture(1)))
    view.save(upright, "PNG")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # turn by 90 degrees clockwise to see it upright
    view.transpose(Image.Transpose.ROTATE_90).save(lying, "PNG", exif=exif)
    first, second = classifier.classify([upright.getvalue(), lying.getvalue()])
    assert first == second


@pytest.mark.parametrize(("takes_whole", "shorter"), [(True, 14), (False, 16)])
def test_models_from_before_the_shorter_side_was_written_down_are_read(
    takes_whole: bool, shorter: int
) -> None:
    old = PictureRules(("noise",), 14, Normalisation((0, 0, 0), (1, 1, 1)), takes_whole=takes_whole)
    content = picture(1, pixels=40)
    np.testing.assert_array_equal(old.see(content), dataclasses.replace(old, shorter=shorter).see(content))


def test_a_classifier_does_not_translate(tmp_path: Path) -> None:
    run = make_small_image_run(tmp_path / "run")
    with pytest.raises(UserError, match="use `echelon classify`"):
        Translator.load(run.path)


def test_one_image_gives_one_list_of_guesses(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(picture(1))
    one = classifier.classify(tmp_path / "one.png")
    assert one == classifier.classify(str(tmp_path / "one.png")) == classifier.classify(picture(1))
    assert [one] == classifier.classify([picture(1)])
    assert repr(classifier).startswith("Classifier(engine='torch', classes=")
