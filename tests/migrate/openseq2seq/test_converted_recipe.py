from __future__ import annotations

from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.migrate.openseq2seq.converted_recipe import Converted, convert_openseq2seq
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe, TranslationRecipe
from tests.migrate.openseq2seq.configs import RESNET, TRANSFORMER


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration lies in another folder than the one where the user is."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("ECHELON_DATA", raising=False)


def converted(tmp_path: Path, text: str) -> Converted:
    config = tmp_path / "configs" / "x.py"
    config.write_text(text)
    return convert_openseq2seq(config)


def loaded(tmp_path: Path, text: str) -> Recipe:
    recipe = tmp_path / "configs" / "x.toml"
    recipe.write_text(converted(tmp_path, text).text)
    return load_recipe(recipe)


def test_relative_paths_begin_where_the_user_is(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, TRANSFORMER.format(data="wmt"))
    assert isinstance(recipe, TranslationRecipe)
    here = tmp_path / "here" / "wmt"
    assert recipe.data.tokeniser == f"{here}/common.model"
    assert (recipe.data.train[0].source, recipe.data.valid.target) == (
        f"{here}/train.en.tok",
        f"{here}/valid.de.tok",
    )
    assert converted(tmp_path, TRANSFORMER.format(data="wmt")).infer_source == f"{here}/test.en.tok"
    assert f'path = "{tmp_path}/here/pictures"' in converted(tmp_path, RESNET.format(data="pictures")).text


def test_what_only_echelon_data_has_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "wmt").mkdir(parents=True)
    (tmp_path / "data" / "wmt" / "train.en.tok").touch()
    recipe = loaded(tmp_path, TRANSFORMER.format(data="wmt"))
    assert isinstance(recipe, TranslationRecipe)
    assert recipe.data.train[0].source == f"{tmp_path}/data/wmt/train.en.tok"
    assert recipe.data.train[0].target == f"{tmp_path}/here/wmt/train.de.tok"


def test_the_home_folder_of_nobody_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"~nosuchuser/.*: there is no such user's home folder"):
        converted(tmp_path, TRANSFORMER.format(data="~nosuchuser"))


def test_a_placeholder_is_left_for_the_user_to_replace(tmp_path: Path) -> None:
    assert (
        'source = "[YOUR DATA]/train.en.tok"'
        in converted(tmp_path, TRANSFORMER.format(data="[YOUR DATA]")).text
    )


def test_a_dictionary_that_contains_itself_is_refused(tmp_path: Path) -> None:
    endless = 'base_params["a"] = base_params\ntrain_params["a"] = train_params\n'
    with pytest.raises(UserError, match="its values hold each other"):
        converted(tmp_path, TRANSFORMER.format(data="wmt") + endless)
