"""`echelon convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import Json
from echelon.cli.output import messages, show
from echelon.console import tell
from echelon.errors import UserError


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
    project: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="ai-platform: the Google Cloud project.  [default: $GOOGLE_CLOUD_PROJECT]"
        ),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="gs://NAME", help="ai-platform: for data and checkpoints.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="ai-platform: a container image with Echelon.")
    ] = None,
    json_: Json = False,
) -> None:
    """Convert the configuration of another system, or a model of Hugging Face's layout, timm or torchvision."""
    if kind == "huggingface":
        if project or bucket or image or workers is not None:
            raise UserError("--workers, --project, --bucket and --image are not for huggingface")
        from echelon.commands.convert import convert_model, format_model

        converted_model = convert_model(file, to)
        show(json_, converted_model, format_model(converted_model))
        return
    if kind == "openseq2seq":
        from echelon.migrate.openseq2seq.converted_recipe import convert_openseq2seq

        if project or bucket or image:
            raise UserError("--project, --bucket and --image are for ai-platform")
        converted = convert_openseq2seq(file, workers)
        text, notes = converted.text, converted.notes
    else:
        from echelon.commands.convert import GoogleAccount, convert_ai_platform

        if workers is not None:
            raise UserError("--workers is for openseq2seq; an AI Platform configuration says it itself")
        text, notes = convert_ai_platform(file, GoogleAccount(project, bucket, image))
    for note in notes:
        tell(messages(), f"note: {note}")
    if to is not None:
        from echelon.runfolder import write_atomically

        write_atomically(to, text)
        following = f"; `echelon cloud render vertex {to}` shows the job" if kind == "ai-platform" else ""
        tell(messages(), f"{to}: written{following}")
    show(json_, {"text": text, "notes": notes}, "" if to is not None else text.rstrip("\n"))
