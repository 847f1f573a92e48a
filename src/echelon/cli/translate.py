"""`echelon translate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from echelon.cli.flags import takes_flags
from echelon.cli.options import Json, ModelOption, Which
from echelon.cli.output import messages, note_unscored
from echelon.errors import UserError
from echelon.runfolder import to_json
from echelon.untrusted import printable

_SEARCH = "Search"
_SAMPLE = "Sampling"


@dataclass(frozen=True)
class SearchFlags:
    """How the best translation is searched for."""

    beam: Annotated[
        int | None, typer.Option(min=1, help="Beam width; 1 is greedy search.", rich_help_panel=_SEARCH)
    ] = None
    length_penalty: Annotated[
        float | None, typer.Option(help="Higher values favour longer translations.", rich_help_panel=_SEARCH)
    ] = None
    n_best: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Print the N best translations of each line, as number, score, text.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="Print the line's number and the score before each text.",
            rich_help_panel=_SEARCH,
        ),
    ] = False
    prefix: Annotated[
        str | None, typer.Option(help="Start every translation with this text.", rich_help_panel=_SEARCH)
    ] = None
    min_length: Annotated[
        int | None, typer.Option(help="Fewest tokens of a translation.", rich_help_panel=_SEARCH)
    ] = None
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a translation.", rich_help_panel=_SEARCH)
    ] = None


@dataclass(frozen=True)
class SampleFlags:
    """How translations are drawn, instead of searched for."""

    sample: Annotated[
        float | None,
        typer.Option(
            metavar="TEMPERATURE",
            help="Sample instead of searching; 1 samples from the model's own probabilities.",
            rich_help_panel=_SAMPLE,
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the N most likely tokens.", rich_help_panel=_SAMPLE)
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="The seed; the same seed gives the same samples.", rich_help_panel=_SAMPLE),
    ] = None


@dataclass(frozen=True)
class LineFlags:
    """What is done with each line."""

    sentences: Annotated[
        bool, typer.Option("--sentences", help="Translate each sentence of a line on its own.")
    ] = False
    alignment: Annotated[
        bool,
        typer.Option("--alignment", help="With --json: which source subword each target subword attends to."),
    ] = False
    processes: Annotated[int, typer.Option(min=1, max=256, help="Translate with N processes.")] = 1


@takes_flags
def translate(
    model: ModelOption,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Translate this file.  [default: stdin]"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file.  [default: stdout]")
    ] = None,
    checkpoint: Which = None,
    search: SearchFlags,
    sample: SampleFlags,
    lines: LineFlags,
    json_: Json = False,
) -> None:
    """Translate lines, from stdin to stdout or from file to file, in order."""
    from echelon.commands.translate import Source, TranslateOptions, as_json, as_text, open_output
    from echelon.commands.translate import translate as translate_lines

    if lines.alignment and not json_:
        raise UserError("--alignment is shown with --json only")
    source = Source(file)
    if source.is_terminal:
        messages().print("Type a sentence and press Enter; Ctrl-D ends.", highlight=False)
    note_unscored(model, checkpoint)
    changes = _changes(search, sample, lines)
    options = TranslateOptions(model, checkpoint, changes, search.prefix, lines.processes)
    found = translate_lines(options, source, messages())
    with_scores = search.scores or search.n_best is not None
    readable = printable if output is None and sys.stdout.isatty() else str
    with open_output(file=output) as writer:
        if json_:
            document = {"translations": [as_json(one, with_scores=with_scores) for one in found]}
            writer.write(printable(to_json(document, 2)) + "\n")
            return
        for number, one in enumerate(found, start=1):
            writer.write(readable(as_text(number, one, with_scores=with_scores)))
            writer.flush()


def _changes(search: SearchFlags, sample: SampleFlags, lines: LineFlags) -> dict[str, Any]:
    """Fields of `Decoding` in place of the recipe's."""
    return {
        "beam": search.beam,
        "n_best": search.n_best,
        "length_penalty": search.length_penalty,
        "temperature": sample.sample,
        "top_k": sample.top_k,
        "seed": sample.seed,
        "min_length": search.min_length,
        "max_length": search.max_length,
        "sentences": lines.sentences or None,
        "alignment": lines.alignment or None,
    }
