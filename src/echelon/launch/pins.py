"""The versions that Echelon runs with: what it asks for, what is installed here, and whose hashes are known."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from echelon.extras import DISTRIBUTION
from echelon.launch.package import FOLDER
from echelon.launch.wheel import find_checkout, read_project

LOCK = FOLDER / "launch" / "locked.txt"
"""Requirements with the hashes of their files; tools/pin_versions.py writes it."""


def find_requirements() -> list[Requirement]:
    """Return what Echelon needs without extras, from its checkout or from the installed package."""
    checkout = find_checkout()
    if checkout:
        texts = read_project(checkout)["project"]["dependencies"]
    else:
        texts = importlib.metadata.requires(DISTRIBUTION) or []
    requirements = [Requirement(text) for text in texts]
    return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]


def installed_versions() -> dict[str, str]:
    """Return the version of every package here by its normalised name.

    A build for another kind of machine is as good, so 2.13.0+cpu is 2.13.0.
    """
    found = [each for each in importlib.metadata.distributions() if each.metadata["Name"]]
    # Of two in different folders, Python imports the first.
    return {
        canonicalize_name(each.metadata["Name"]): each.version.partition("+")[0] for each in reversed(found)
    }


def pin_versions() -> str:
    """Return constraints for pip: the version of every package here but Echelon."""
    pinned = {name: version for name, version in installed_versions().items() if name != DISTRIBUTION}
    return "".join(f"{name}=={version}\n" for name, version in sorted(pinned.items()))


def locked_versions() -> dict[str, str]:
    """Return the packages of the lock, by normalised name: all that Echelon needs on a rented machine."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))


def find_unlocked() -> list[str]:
    """Return what is installed here in another version than the one whose files' hashes are known."""
    here = installed_versions()
    return [
        f"{name} {here[name]} instead of {version}"
        for name, version in locked_versions().items()
        if here.get(name, version) != version
    ]
