"""The versions that Echelon runs with."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from echelon.launch import pins
from echelon.launch.pins import LOCK, find_requirements, find_unlocked, locked_versions, pin_versions

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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


def test_the_lock_is_complete_and_agrees_with_the_constraints() -> None:
    locked = locked_versions()
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"
    )
    assert {name: constraints.get(name) for name in locked} == locked
    wanted = {canonicalize_name(each.name) for each in find_requirements()}
    for name in locked:
        wanted |= {canonicalize_name(each.name) for each in needs_of(name)}
    assert wanted <= locked.keys()


def needs_of(name: str) -> list[Requirement]:
    """What an installed package needs; nothing if it is not installed here, as torch's CUDA libraries are not."""
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires(name) or []]
    except importlib.metadata.PackageNotFoundError:
        return []
    return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]


def test_every_locked_package_has_a_hash_for_pip() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    entries = " ".join(line.removesuffix("\\") for line in lines)
    assert len(re.findall(r"\S+==\S+(?: +--hash=sha256:[0-9a-f]{64})+", entries)) == len(locked_versions())
    assert entries.count("==") == len(locked_versions())


def test_another_version_here_than_the_locked_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = locked_versions()
    monkeypatch.setattr(pins, "installed_versions", lambda: {**locked, "other": "1"})
    assert find_unlocked() == []
    monkeypatch.setattr(pins, "installed_versions", lambda: {"numpy": "0.1"})
    assert find_unlocked() == [f"numpy 0.1 instead of {locked['numpy']}"]
