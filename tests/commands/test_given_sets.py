"""Sets that `evaluate` is given: their names, and what cannot be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.commands.given_sets import SetOptions
from echelon.errors import UserError
from tests.sample_image_recipe import sample_image_recipe
from tests.sample_recipe import sample_recipe


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("news.en.gz", "news.de", "test.en", "pairs.tsv"):
        Path(name).touch()
    Path("photos").mkdir()


def names(options: SetOptions) -> list[str]:
    recipe = sample_image_recipe() if options.images else sample_recipe()
    return [given.name for given in options.sets(recipe)]


def test_sets_are_called_after_their_files() -> None:
    assert names(SetOptions(Path("news.en.gz"), Path("news.de"))) == ["news"]
    assert names(SetOptions(Path("test.en"), Path("news.de"))) == ["test.en"], "test is the run's own set"
    assert names(SetOptions(Path("news.en.gz"), Path("news.de"), name="today")) == ["today"]
    assert names(SetOptions(tests=["pairs.tsv", "news.en.gz,news.de"])) == ["pairs", "news"]
    tests = ["a=news.en.gz,news.de", "b=pairs.tsv"]
    assert names(SetOptions(Path("news.en.gz"), Path("news.de"), tests=tests)) == ["news", "a", "b"]
    assert names(SetOptions(images=["photos", "again=photos"])) == ["photos", "again"]
    assert names(SetOptions(images=["photos"], name="own")) == ["own"]
    assert names(SetOptions()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SetOptions(Path("news.de")), "--source and --target go together"),
        (SetOptions(target=Path("news.de")), "--source and --target go together"),
        (SetOptions(tests=["a="]), "write it as NAME=SOURCE,TARGET or NAME=PAIRS"),
        (SetOptions(tests=["news.de"]), r"only if its name ends in one of \.tsv, \.tmx, \.po, \.mo"),
        (SetOptions(tests=["a=news.de"]), r"only if its name ends in one of \.tsv, \.tmx, \.po, \.mo"),
        (SetOptions(tests=["a=x,y,z"]), "write it as NAME=SOURCE,TARGET"),
        (SetOptions(tests=["a=pairs.tsv", "a=pairs.tsv"]), "two sets are called a"),
        (SetOptions(tests=["valid=pairs.tsv"]), "'valid' cannot be the name of a set"),
        (SetOptions(tests=["../x=pairs.tsv"]), "cannot be the name of a set"),
        (SetOptions(tests=["a=pairs.tsv"], name="b"), "--name is for one set"),
        (SetOptions(name="b"), "--name is for one set"),
        (SetOptions(Path("news.de"), Path("gone.en")), r"gone\.en does not exist"),
        (SetOptions(images=["gone"]), "gone does not exist"),
    ],
)
def test_what_cannot_be_a_set_is_an_error(options: SetOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        names(options)


def test_a_set_is_of_the_task_of_the_run() -> None:
    with pytest.raises(UserError, match="this one translates: give --source and --target"):
        SetOptions(images=["photos"]).sets(sample_recipe())
    with pytest.raises(UserError, match="give --images FOLDER to this one"):
        SetOptions(tests=["a=pairs.tsv"]).sets(sample_image_recipe())
