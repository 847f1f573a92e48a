"""`python -m echelon.run`: OpenSeq2Seq's run.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

from echelon.commands.converting import convert_openseq2seq
from echelon.data.corpora import LineReader
from echelon.data.pieces import joined
from echelon.errors import UserError
from echelon.fronts.front import Flags, Modern
from echelon.launch.site import find_place
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import RunFolder, write_atomically

MODES = ("train", "eval", "train_eval", "infer", "interactive_infer")
_OVERRIDE = re.compile(r"--([A-Za-z_][\w/]*)=(.*)")
_IGNORED = {
    "use_horovod": "is not needed: workers always agree on the weights",
    "enable_logs": "is not needed: a run's folder has the logs of every worker",
    "use_xla_jit": "has no equivalent",
}


def translate(arguments: list[str]) -> Modern:
    """The command that does what run.py would have done; writes the converted recipe beside the run's folder."""
    flags = Flags("python -m echelon.run", description="OpenSeq2Seq's run.py, done with Echelon.")
    flags.add_argument("--config_file", required=True, help="an OpenSeq2Seq configuration, or a recipe")
    flags.add_argument("--mode", default="train", choices=MODES)
    flags.add_argument("--logdir", help="the run's folder; the configuration's where not given")
    flags.add_argument("--continue_learning", action="store_true", help="go on with the run in the folder")
    flags.add_argument("--no_dir_check", action="store_true", help="do not ask for --continue_learning")
    flags.add_argument("--infer_output_file", help="where --mode=infer writes")
    flags.add_argument("--benchmark", action="store_true", help="measure, and save nothing")
    flags.add_argument("--bench_steps", type=int, default=20)
    known, others = flags.parse_known_args(arguments)
    changes, notes = _changes(others)
    recipe, run, infer_source = _open_config(Path(known.config_file), known.logdir, changes, notes)
    if known.benchmark:
        return Modern(["benchmark", str(recipe), "--steps", str(known.bench_steps)], notes)
    match known.mode:
        case "train" | "train_eval":
            _check_folder(run, goes_on=known.continue_learning or known.no_dir_check)
            return Modern(["train", str(recipe), "--run", str(run)], notes)
        case "eval":
            return Modern(["evaluate", str(run), "--split", "valid"], notes)
        case "infer":
            return _infer(run, infer_source, known.infer_output_file, notes)
    return Modern(["translate", str(run)], notes)


def _changes(others: list[str]) -> tuple[dict[str, str], list[str]]:
    """Settings of the configuration given as flags: `--max_steps=100`, `--lr_policy_params/learning_rate=1.0`."""
    changes, notes = {}, []
    for word in others:
        found = _OVERRIDE.fullmatch(word)
        if found is None:
            raise UserError(f"{word}: write settings of the configuration as --name=value")
        if found[1] in _IGNORED:
            notes.append(f"--{found[1]} {_IGNORED[found[1]]}")
        else:
            changes[found[1]] = found[2]
    return changes, notes


def _open_config(
    config: Path, logdir: str | None, changes: dict[str, str], notes: list[str]
) -> tuple[Path, Path, str | None]:
    """The recipe, the run's folder, and the file that --mode=infer translates."""
    if config.suffix == ".toml":
        if changes:
            raise UserError(
                f"--{next(iter(changes))}: a recipe's keys are changed with `echelon train --set`"
            )
        recipe = load_recipe(config)
        test = recipe.data.test if isinstance(recipe, TranslationRecipe) else None
        return config, Path(logdir or f"runs/{recipe.name}"), test.source if test else None
    place = find_place(os.environ)
    converted = convert_openseq2seq(config, place.size if place is not None else None, changes)
    run = Path(logdir or converted.logdir or f"runs/{config.stem}")
    recipe_file = run.with_name(f"{run.name}.toml")
    recipe_file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(recipe_file, converted.text)
    notes += converted.notes
    return recipe_file, run, converted.infer_source


def _check_folder(run: Path, *, goes_on: bool) -> None:
    """As run.py did: a folder that holds a training is only gone on with when the user says so."""
    if not goes_on and RunFolder(run).recipe.exists():
        raise UserError(
            f"{run} holds a run already; give --continue_learning to go on with it, or another --logdir"
        )


def _infer(run: Path, source: str | None, output: str | None, notes: list[str]) -> Modern:
    if source is None:
        raise UserError("--mode=infer: the configuration has no infer_params with a source_file")
    words = ["translate", str(run), *(["--output", output] if output else [])]
    if not Path(source).exists():
        raise UserError(f"--mode=infer: {source} does not exist")
    return Modern(
        words,
        [*notes, f"{source} is translated"],
        (joined_if_pieces(line) for line in LineReader(Path(source))),
    )


def joined_if_pieces(line: bytes) -> bytes:
    """Plain text, also of a line that is cut into pieces."""
    return joined(line) if "\u2581".encode() in line else line
