"""The versions that Echelon runs with: what it asks for, and what is installed here."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from echelon.extras import DISTRIBUTION
from echelon.launch.wheel import find_checkout, read_project


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
