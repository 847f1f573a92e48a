"""What a verb prints: its result on stdout, messages and errors on stderr."""

from __future__ import annotations

import dataclasses
import logging
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from echelon.console import message_console, tell, write_out
from echelon.errors import UserError
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder, to_json
from echelon.untrusted import printable


def messages() -> Console:
    """Where progress and messages go."""
    return message_console()


class _LogMessages(logging.Handler):
    """Prints what the server and libraries log, which may quote what strangers have sent."""

    def emit(self, record: logging.LogRecord) -> None:
        messages().print(self.format(record))


def print_logs_safely() -> None:
    """Have warnings, and log records that nobody else takes, printed as messages are."""
    logging.lastResort = _LogMessages(logging.WARNING)
    logging.captureWarnings(True)


def show(as_json: bool, result: Any, text: str) -> None:
    """Print a verb's result, for programs or for people."""
    value = (
        dataclasses.asdict(result)
        if dataclasses.is_dataclass(result) and not isinstance(result, type)
        else result
    )
    write_out((to_json(value, indent=2) if as_json else text) + "\n")


def note_unscored(model: Path, checkpoint: str | None) -> None:
    """Say so if the newest checkpoint of a run is used because none is the best yet."""
    from echelon.commands.results import unscored_note

    run = RunFolder(model)
    if (
        checkpoint is None
        and run.checkpoints.is_dir()
        and (note := unscored_note(run, load_recipe(run.recipe)))
    ):
        tell(messages(), note)


def confirm(question: str, deed: str = "removes") -> bool:
    """Ask on stderr; UserError if nobody is there to answer."""
    try:
        return typer.confirm(printable(question), err=True)
    except typer.Abort:
        raise UserError(f"nobody answered; --yes {deed} without asking") from None


def fail(message: str, status: int) -> NoReturn:
    """Say what went wrong, on stderr and, under --json, as the document on stdout."""
    if "--json" in sys.argv:
        write_out(to_json({"error": message}) + "\n")
    console = messages()
    console.print(Text.assemble(("error:", "bold red"), f" {message}"), soft_wrap=not console.is_terminal)
    sys.exit(status)
