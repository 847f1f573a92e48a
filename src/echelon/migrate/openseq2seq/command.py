"""`python -m echelon.run`: OpenSeq2Seq's run.py."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from echelon.data.corpora import LineReader, resolve
from echelon.data.subwords import joined
from echelon.errors import UserError
from echelon.launch.site import find_place
from echelon.migrate.old_command import Flags, Modern, given_arguments
from echelon.migrate.openseq2seq.converted_recipe import convert_openseq2seq
from echelon.recipe.loading import load_recipe, load_translation_recipe
from echelon.runfolder import RunFolder, write_atomically
from echelon.store import address_of

MODES = ("train", "eval", "train_eval", "infer", "interactive_infer")
_TRAIN_SCORES = (
    "--mode=train scores the validation set too, as train_eval does: after every evaluate.every steps and at the end; "
    "OpenSeq2Seq did not"
)
_OVERRIDE = re.compile(r"--([A-Za-z_][\w/]*)(?:=(.*))?", re.DOTALL)
_IGNORED = {
    "use_horovod": "is not needed: workers always agree on the weights",
    "enable_logs": "is not needed: a run's folder has the logs of every worker",
    "use_xla_jit": "has no equivalent",
    "bench_start": "is left out: `echelon benchmark` measures after its own warm-up",
    "debug_port": "has no equivalent: there is no TensorFlow to debug",
}


def translate(arguments: list[str]) -> Modern:
    """The command that does what run.py would have done; for training, the converted recipe is written beside the
    run's folder."""
    flags = Flags("python -m echelon.run", description="OpenSeq2Seq's run.py, done with Echelon.")
    flags.add_argument("--config_file", required=True, help="an OpenSeq2Seq configuration, or a recipe")
    flags.add_argument("--mode", default="train", choices=MODES)
    flags.add_argument("--logdir", help="the run's folder; default: the configuration's")
    flags.add_argument("--continue_learning", action="store_true", help="resume the run in the folder")
    flags.add_argument("--no_dir_check", action="store_true", help="do not ask for --continue_learning")
    flags.add_argument("--infer_output_file", help="where --mode=infer writes")
    flags.add_argument("--benchmark", action="store_true", help="measure, and save nothing")
    flags.add_argument("--bench_steps", type=int, default=20)
    for name, why in _IGNORED.items():
        flags.add_argument(f"--{name}", nargs="?", const="True", help=why)
    known, others = flags.parse_known_args(arguments)
    notes = [f"--{name} {why}" for name, why in _IGNORED.items() if getattr(known, name) is not None]
    changes = _changes(others)
    config = _open_config(Path(known.config_file), known.logdir, changes, notes)
    if address := address_of(config.run):
        raise UserError(f"--logdir {address}: a run's folder is on this machine; name one here")
    run = str(config.run)
    if known.benchmark:
        words = ["benchmark", config.write_recipe(), "--steps", str(known.bench_steps)]
        return Modern([*words, *given_arguments(known.settings)], notes)
    match known.mode:
        case "train" | "train_eval":
            _check_folder(config.run, may_resume=known.continue_learning or known.no_dir_check)
            if known.mode == "train":
                notes.append(_TRAIN_SCORES)
            words = ["train", config.write_recipe(), "--run", run, *_length_arguments(config)]
            return Modern([*words, *given_arguments(known.settings)], notes)
        case "eval":
            return Modern(["evaluate", run, "--split", "valid", *given_arguments(known.settings)], notes)
        case "infer":
            return _infer(config, known.infer_output_file, notes)
    return Modern(["translate", run], notes)


@dataclass(frozen=True)
class _Config:
    """What --config_file means."""

    recipe: Path
    text: str | None
    """The recipe's, if it is a converted one."""
    run: Path
    infer_source: str | None
    """The file that a converted configuration translates with --mode=infer; beside the recipe if relative."""

    def write_recipe(self) -> str:
        """The recipe's path; a converted one is written there."""
        if self.text is not None:
            self.recipe.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.recipe, self.text)
        return str(self.recipe)


def _changes(others: list[str]) -> dict[str, str]:
    """Settings of the configuration given as flags: `--max_steps=100`, `--lr_policy_params/learning_rate 1.0`."""
    changes = {}
    words = iter(others)
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        value = None if found is None else found[2] if found[2] is not None else next(words, None)
        if found is None or value is None or value.startswith("--"):
            raise UserError(f"{word}: write settings of the configuration as --name=value or --name value")
        changes[found[1]] = value
    return changes


def _open_config(config: Path, logdir: str | None, changes: dict[str, str], notes: list[str]) -> _Config:
    if config.suffix == ".toml":
        if changes:
            raise UserError(f"--{next(iter(changes))}: a recipe's keys are changed with --set KEY=VALUE")
        recipe = load_recipe(config)
        return _Config(config, None, Path(logdir or f"runs/{recipe.name}"), None)
    place = find_place(os.environ)
    converted = convert_openseq2seq(config, place.size if place is not None else None, changes)
    run = Path(logdir or converted.logdir or f"runs/{config.stem}")
    notes += converted.notes
    return _Config(run.with_name(f"{run.name}.toml"), converted.text, run, converted.infer_source)


def _length_arguments(config: _Config) -> list[str]:
    """A run is resumed with the length that the configuration has now, as run.py did."""
    if config.text is None or not RunFolder(config.run).recipe.exists():
        return []
    train = load_recipe(config.recipe).train
    return ["--steps", str(train.steps)] if train.steps is not None else ["--epochs", f"{train.epochs:g}"]


def _check_folder(run: Path, *, may_resume: bool) -> None:
    """Like run.py: a folder that holds a training is resumed only if the user says so."""
    place = find_place(os.environ)
    is_first = place is None or place.is_first  # others may come when the first has made the folder already
    if is_first and not may_resume and RunFolder(run).recipe.exists():
        raise UserError(
            f"{run} holds a run already; give --continue_learning to resume it, or another --logdir"
        )


def _infer(config: _Config, output: str | None, notes: list[str]) -> Modern:
    file = config.infer_source
    if config.text is None and (test := load_translation_recipe(config.recipe).data.test) is not None:
        file = test.source
    if file is None:
        raise UserError("--mode=infer: the configuration has no infer_params with a source_file")
    source = resolve(file, config.recipe.parent)
    lines = list(LineReader(source))
    if any(_is_in_pieces(line) for line in lines):
        text = config.run.with_name(f"{config.run.name}.infer.txt")
        text.parent.mkdir(parents=True, exist_ok=True)
        plain = (joined(line) if _is_in_pieces(line) else line for line in lines)
        write_atomically(text, b"".join(line + b"\n" for line in plain))
        notes.append(f"{source} is cut into pieces; {text} has it as plain text")
        source = text
    words = ["translate", str(config.run), "--input", str(source)]
    return Modern([*words, *(["--output", output] if output else [])], notes)


def _is_in_pieces(line: bytes) -> bool:
    return "\u2581".encode() in line
