"""`echelon export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import Json, RunArgument, Which
from echelon.cli.output import messages, note_unscored, show
from echelon.console import output_width, wrap
from echelon.monitor.bar import working


def export(
    run: RunArgument,
    *,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    format_: Annotated[
        Literal["safetensors", "ctranslate2", "onnx", "huggingface"],
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="What will run the model: safetensors, ctranslate2, onnx, or huggingface (transformers).",
        ),
    ] = "safetensors",
    precision: Annotated[
        Literal["float32", "int8"], typer.Option(help="Precision of the weights; int8 with ctranslate2 only.")
    ] = "float32",
    edge: Annotated[
        bool, typer.Option("--edge", help="Add a runner script that needs neither torch nor Echelon.")
    ] = False,
    checkpoint: Which = None,
    licence: Annotated[str, typer.Option(help="The licence in the model card, e.g. cc-by-4.0.")] = "unknown",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    json_: Json = False,
) -> None:
    """Write a run's model to a folder, for use without the run, and check it against PyTorch."""
    from echelon.commands.results import format_export
    from echelon.runfolder import RunFolder

    folder = RunFolder(run).require()
    from echelon.export.export import export_run
    from echelon.export.export_folder import ExportOptions

    note_unscored(folder.path, checkpoint)
    with working(messages(), "export") as show_share:
        options = ExportOptions(format_, to, precision, checkpoint, edge, licence, force, show_share)
        result = export_run(folder, options)
    show(json_, result, wrap(format_export(result), output_width()))
