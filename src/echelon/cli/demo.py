"""`echelon demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echelon.cli.options import Json, Set
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap


def demo(
    run: Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")] = Path("runs/demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier demo run first.")] = False,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Train and try a small English-German model in a few minutes."""
    from echelon.commands.demo import demo as run_demo
    from echelon.commands.results import format_demo

    result = run_demo(run, fresh, set_ or [], messages())
    show(json_, result, wrap(format_demo(result), output_width()))
    _leave_if_interrupted(result)


def _leave_if_interrupted(result: dict[str, Any]) -> None:
    if not result["finished"]:
        raise typer.Exit(1)
