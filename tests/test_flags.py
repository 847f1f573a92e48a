"""Flags that are declared once: as fields of dataclasses, and as what Typer reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from echelon.cli.flags import takes_flags
from echelon.commands.launch_options import LaunchOptions
from echelon.errors import UserError


@dataclass(frozen=True)
class Size:
    """Two flags."""

    width: Annotated[int, typer.Option(min=1, help="How wide.")] = 3
    label: Annotated[list[str], typer.Option(help="What is on it.")] = field(default_factory=list)


@takes_flags
def draw(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    *,
    size: Size,
    loud: Annotated[bool, typer.Option("--loud")] = False,
) -> None:
    """Draw a box."""
    typer.echo(f"{name} {size} {loud}")


def run(*words: str) -> str:
    app = typer.Typer()
    app.command()(draw)
    result = CliRunner().invoke(app, list(words))
    return result.output.strip()


def test_a_verb_gets_its_flags_as_dataclasses() -> None:
    assert run("box") == "box Size(width=3, label=[]) False"
    words = ["box", "--width", "5", "--label", "a", "--label", "b", "--loud"]
    assert run(*words) == "box Size(width=5, label=['a', 'b']) True"


def test_a_flag_keeps_its_help_and_its_limits() -> None:
    assert "How wide." in run("--help")
    assert "Draw a box." in run("--help")
    assert "or equal to 1" in run("box", "--width", "0")


def test_sbatch_is_given_the_flags_that_are_options_of_its_own() -> None:
    options = LaunchOptions("slurm", nodes=2, gpus_per_node=4, partition="gpu", sbatch_option=["exclusive"])
    assert options.directives() == ["partition=gpu", "gpus-per-node=4"]
    options.refuse_idle()
    with pytest.raises(UserError, match="--partition goes with --launcher slurm"):
        LaunchOptions("kubernetes", partition="gpu", gpus_per_node=4).refuse_idle()
