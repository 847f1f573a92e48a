"""A command line of another system, read as it is, and the `echelon` command that does the same."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from echelon.errors import UserError


@dataclass(frozen=True)
class Modern:
    """What an old command means today."""

    words: list[str]
    """What comes after `echelon`."""
    notes: list[str] = field(default_factory=list)
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are set for it."""

    def __str__(self) -> str:
        variables = [f"{key}={value and shlex.quote(value)}" for key, value in self.environ.items()]
        return " ".join([*variables, shlex.join(["echelon", *self.words])])


class Flags(argparse.ArgumentParser):
    """Flags of an old command; a mistake is the user's error, as everywhere else.

    What its notes advise can be added to the old command itself: each takes --set.
    """

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, description=description)
        self.add_argument(
            "--set",
            dest="settings",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="override a recipe key",
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def settings_arguments(settings: Mapping[str, object]) -> list[str]:
    """Changes to a recipe as `echelon train` takes them."""
    return given_arguments([f"{key}={value}" for key, value in settings.items()])


def given_arguments(settings: Iterable[str]) -> list[str]:
    """What the user has given with --set, as `echelon train` takes it."""
    return [word for setting in settings for word in ("--set", setting)]
