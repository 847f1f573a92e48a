"""What Echelon says about how to install it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from echelon import extras
from echelon.errors import UserError
from echelon.extras import DISTRIBUTION, install_hint, require_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def texts() -> dict[Path, str]:
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "Dockerfile"]
    return {path: path.read_text() for path in paths}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if Echelon were installed, not a checkout."""
    monkeypatch.setattr(extras, "_MAKEFILE", tmp_path / "Makefile")


def test_in_a_checkout_make_installs_every_extra() -> None:
    with pytest.raises(
        UserError, match=r"this needs echelon_nothing \(extra export\); `make setup` installs it"
    ):
        require_extra("echelon_nothing", "export")


@pytest.mark.usefixtures("installed")
def test_a_missing_package_is_told_with_the_command_that_installs_it() -> None:
    with pytest.raises(UserError) as caught:
        require_extra("echelon_nothing", "export")
    assert str(caught.value) == (
        "this needs echelon_nothing (extra export); `pip install 'echelon-train[export]'` installs it"
    )


def test_the_distribution_is_the_one_that_the_project_builds() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_nothing_tells_users_to_install_the_package_of_somebody_else() -> None:
    wrong = re.compile(r"pip install '?echelon\b(?!-)|\bechelon\[[a-z]")
    assert {path: found for path, text in texts().items() if (found := wrong.findall(text))} == {}


@pytest.mark.usefixtures("installed")
def test_every_extra_that_is_named_exists() -> None:
    named = re.compile(
        r"echelon-train\[([a-z,]+)\]|require_extra\(\"\S+\", \"(\w+)\"\)|install_hint\([\"'](\w+)"
    )
    found = {
        extra
        for text in texts().values()
        for groups in named.findall(text)
        for extra in "".join(groups).split(",")
    }
    assert found >= {"aws", "gcp", "images", "export", "serve", "gpu", "mlflow", "wandb"}
    assert found <= PROJECT["optional-dependencies"].keys()
    assert install_hint("aws") == "pip install 'echelon-train[aws]'"
