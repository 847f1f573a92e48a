"""The versions that Echelon runs with."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from echelon.launch import pins
from echelon.launch.pins import find_requirements, pin_versions

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_versions_are_pinned_without_the_build_they_have_here() -> None:
    pinned = pin_versions().splitlines()
    torch = importlib.metadata.version("torch").partition("+")[0]
    assert f"torch=={torch}" in pinned
    assert not any("+" in pin for pin in pinned)
    assert not any(pin.startswith("echelon-train==") for pin in pinned)


def test_an_installed_package_asks_for_what_its_checkout_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from_checkout = find_requirements()
    extra = [f'{text}; extra == "aws"' for text in PROJECT["optional-dependencies"]["aws"]]
    monkeypatch.setattr(pins, "find_checkout", lambda: None)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*PROJECT["dependencies"], *extra])
    assert find_requirements() == from_checkout
    assert {each.name for each in from_checkout} >= {"torch", "numpy"}
