"""`echelon convert`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.flags import takes_flags
from echelon.cli.options import Json
from echelon.cli.output import messages, show
from echelon.commands.google_account import GoogleAccount
from echelon.console import tell
from echelon.errors import UserError


@takes_flags
def convert(
    kind: Annotated[
        Literal["openseq2seq", "ai-platform", "huggingface"],
        typer.Argument(metavar="openseq2seq|ai-platform|huggingface", help="The system that FILE is from."),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The configuration, or the model's folder; read, never executed."
        ),
    ],
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the recipe to this file, huggingface: the run to this folder.  [default: stdout; runs/NAME]",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="openseq2seq: the number of processes or GPUs it was used with.")
    ] = None,
    account: GoogleAccount,
    json_: Json = False,
) -> None:
    """Convert the configuration of another system, or a model of Hugging Face's layout, timm or torchvision."""
    if kind == "huggingface":
        if account != GoogleAccount() or workers is not None:
            raise UserError("--workers, --project, --bucket and --image are not for huggingface")
        from echelon.commands.convert import convert_model, format_model

        model = convert_model(file, to)
        show(json_, model, format_model(model))
        return
    text, notes = _convert_file(kind, file, workers, account)
    for note in notes:
        tell(messages(), f"note: {note}")
    if to is not None:
        from echelon.runfolder import write_atomically

        write_atomically(to, text)
        following = f"; `echelon cloud render vertex {to}` shows the job" if kind == "ai-platform" else ""
        tell(messages(), f"{to}: written{following}")
    show(json_, {"text": text, "notes": notes}, "" if to is not None else text.rstrip("\n"))


def _convert_file(
    kind: Literal["openseq2seq", "ai-platform"], file: Path, workers: int | None, account: GoogleAccount
) -> tuple[str, Sequence[str]]:
    """The file that does the same here, with notes."""
    if kind == "openseq2seq":
        if account != GoogleAccount():
            raise UserError("--project, --bucket and --image are for ai-platform")
        from echelon.migrate.openseq2seq.converted_recipe import convert_openseq2seq

        converted = convert_openseq2seq(file, workers)
        return converted.text, converted.notes
    if workers is not None:
        raise UserError("--workers is for openseq2seq; an AI Platform configuration says it itself")
    from echelon.commands.convert import convert_ai_platform

    return convert_ai_platform(file, account)
