"""The command line as a user or a program meets it: output, messages and exit status."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer

from echelon import __version__, cli
from echelon.cli import output
from echelon.cli.completion import complete_recipe, complete_recipe_or_run, complete_run
from echelon.cli.examples import EXAMPLES
from echelon.cli.lab import LAB_VERBS
from echelon.commands.launchers import Launched
from echelon.commands.plan import PlanOptions
from echelon.commands.training import TrainOptions
from echelon.errors import UserError
from echelon.monitor.records import RecordWriter
from echelon.recipe.loading import load_recipe
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder
from tests.migrate.openseq2seq.configs import TRANSFORMER
from tests.sample_corpus import write_corpus
from tests.sample_recipe import sample_recipe
from tests.small_image_run import make_small_image_run, picture

ROOT = Path(__file__).parents[1]
WMT = str(ROOT / "recipes" / "wmt16-en-de-base.toml")
MAIN = "from echelon.cli import main; main()"


@dataclass
class Result:
    status: int
    output: str
    messages: str

    @property
    def document(self) -> Any:
        """stdout, which is exactly one JSON document."""
        return json.loads(self.output)


class Echelon:
    """Runs verbs in this process, as `main` does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object, answer: str = "") -> Result:
        self._monkeypatch.setattr(sys, "argv", ["echelon", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert isinstance(left.value.code, int)
        captured = self._capsys.readouterr()
        return Result(left.value.code, captured.out, captured.err)


@pytest.fixture
def echelon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Echelon:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ECHELON_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return Echelon(monkeypatch, capsys)


def run_process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ECHELON_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["describe", WMT], ["runs"], ["lab", "up", "--help"]]
)
def test_the_control_half_runs_without_torch(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from echelon.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=tmp_path,
        env={**os.environ, "ECHELON_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == "False\n"


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(echelon: Echelon, option: str) -> None:
    assert echelon(option).output == f"echelon {__version__}\n"


def test_help_can_be_asked_for_in_every_usual_way(echelon: Echelon) -> None:
    assert echelon("-h").output == echelon("help").output == echelon("--help").output
    assert (
        echelon("train", "-h").output == echelon("help", "train").output == echelon("train", "--help").output
    )


def test_steps_and_epochs_replace_each_other(
    echelon: Echelon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TrainOptions] = []

    def launch(options: TrainOptions, *_: object) -> Launched:
        asked.append(options)
        return Launched({}, "", 0, is_shown=False)

    monkeypatch.setattr("echelon.commands.launchers.launch", launch)
    recipe = tmp_path / "recipe.toml"
    for own in (["train.steps=100"], ["train.steps=", "train.epochs=3"]):
        recipe.write_text(dump_recipe(sample_recipe(*own)))
        for option, length in (("--steps", (7, None)), ("--epochs", (None, 7.0))):
            assert echelon("train", recipe, option, 7).status == 0
            train = load_recipe(recipe, asked[-1].overrides).train
            assert (train.steps, train.epochs) == length
    assert "use one of them" in echelon("train", recipe, "--steps", 1, "--epochs", 1).messages


def test_plan_takes_the_same_lengths(
    echelon: Echelon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def make_plan(options: PlanOptions, console: object) -> NoReturn:
        asked.append(list(options.overrides))
        raise UserError("asked")

    monkeypatch.setattr("echelon.commands.plan.make_plan", make_plan)
    echelon("plan", "recipe.toml", "--steps", 7, "--set", "seed=2")
    echelon("plan", "recipe.toml", "--epochs", 2)
    assert asked == [["train.steps=7", "train.epochs=", "seed=2"], ["train.epochs=2", "train.steps="]]
    assert "use one of them" in echelon("plan", "recipe.toml", "--steps", 1, "--epochs", 1).messages


def test_a_converted_job_has_nothing_to_fill_in_and_a_placeholder_is_refused(
    echelon: Echelon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    old, new = tmp_path / "cmle_config.yaml", tmp_path / "job.toml"
    old.write_text("trainingInput: {scaleTier: BASIC_GPU}")
    convert = ("convert", "ai-platform", old, "--to", new)
    assert "add --project NAME and --bucket gs://NAME" in echelon(*convert).messages
    assert not new.exists()
    told = echelon(*convert, "--project", "mine", "--bucket", "gs://my-bucket").messages
    assert f"{new}: written; `echelon cloud render vertex {new}` shows the job" in told
    assert "YOUR" not in new.read_text()
    assert "gs://my-bucket" in echelon("cloud", "render", "vertex", new).output
    new.write_text(new.read_text().replace("gs://my-bucket", "gs://YOUR-BUCKET"))
    assert "bucket: gs://YOUR-BUCKET names no bucket" in echelon("cloud", "render", "vertex", new).messages


def test_help_names_every_verb_and_no_arguments_mean_help(echelon: Echelon) -> None:
    result = echelon("--help")
    assert result.status == 0
    for verb, function in cli.VERBS.items():
        assert re.search(rf"^  {verb} ", result.output, re.MULTILINE)
        assert function.__doc__
    assert echelon() == result


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_is_readable_at_any_width(echelon: Echelon, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (50, 80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown, _, examples = echelon(verb, "--help").output.partition("\nExamples:\n")
        assert examples, "each verb shows how it is used"
        assert max(map(len, shown.splitlines())) <= columns
        assert not re.search(r"[<{]\w", shown), "placeholders are words in capitals, not types"
        assert "where not given" not in shown


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_and_takes_json(echelon: Echelon, verb: str) -> None:
    result = echelon(verb, "--help")
    assert result.status == 0
    assert "--json" in result.output


def every_command(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of every verb, of those of `lab` and `cloud` too."""
    for name, command in group.commands.items():
        yield (*before, name)
        if hasattr(command, "commands"):
            yield from every_command(command, *before, name)


@pytest.mark.parametrize("words", list(every_command(typer.main.get_command(cli.build_app()))), ids=" ".join)
def test_the_help_of_every_command_has_an_example_and_only_whole_sentences(
    echelon: Echelon, words: tuple[str, ...]
) -> None:
    shown = echelon(*words, "--help").output
    assert f"Examples:\n  echelon {' '.join(words)}" in shown or "Examples:\n  echo" in shown
    assert not re.search(r"\[\]|\[\.|<[a-z]|^  \S+  +$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("verb", LAB_VERBS)
def test_every_verb_of_the_lab_has_help_and_takes_json_and_a_name(echelon: Echelon, verb: str) -> None:
    assert re.search(rf"^  {verb} ", echelon("lab", "--help").output, re.MULTILINE)
    result = echelon("lab", verb, "--help")
    assert result.status == 0
    assert "--json" in result.output
    assert "--name" in result.output


def test_a_mistake_with_the_lab_says_where_its_help_is(echelon: Echelon) -> None:
    assert "there is no command 'go'; see `echelon lab --help`" in echelon("lab", "go").messages
    assert "Missing argument 'HOST'; see `echelon lab cut --help`" in echelon("lab", "cut").messages


def test_every_example_of_the_help_parses() -> None:
    group = typer.main.get_command(cli.build_app())
    for line in "\n".join(EXAMPLES.values()).splitlines():
        words = shlex.split(line.rpartition("| ")[2])[1:]
        if words[0] == "COMMAND":
            continue
        command: Any = group
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


@pytest.mark.parametrize("columns", [50, 80])
def test_the_options_of_train_are_grouped(
    echelon: Echelon, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = echelon("train", "--help").output
    headings = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert headings == [
        "Arguments",
        "Options",
        "Length and settings",
        "Hosts over SSH",
        "SLURM, Kubernetes and Ray",
        "Hosts started by hand",
        "Examples",
    ]


def complete(folder: Path, *words: str) -> list[str]:
    """What the shell offers for the last of these words."""
    environment = {
        **os.environ,
        "_ECHELON_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["echelon", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = subprocess.run(
        [sys.executable, "-c", MAIN], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return result.stdout.split()


def test_the_shell_completes_recipes_runs_and_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "first")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.toml").write_text("# mine\nversion = 1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1"\n')
    (tmp_path / "docs").mkdir()
    assert complete_recipe("") == ["recipes/mine.toml", "recipes/", "runs/"], "what has or holds a recipe"
    assert complete(tmp_path, "train", "x.toml", "--set", "train.st") == ["train.steps=", "train.stop_at="]
    assert complete(tmp_path, "report", "fi") == complete_run("fi") == ["first"]
    assert complete_run("runs/fi") == ["runs/first"]
    assert complete_recipe("rec") == ["recipes/mine.toml", "recipes/"]
    assert complete_recipe("recipes/m") == ["recipes/mine.toml"]
    assert complete_recipe_or_run("fi") == ["first"]


def test_bash_puts_no_space_behind_a_key(tmp_path: Path) -> None:
    script = subprocess.run(
        [sys.executable, "-c", MAIN, "--show-completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    python = f"{sys.executable} -c {shlex.quote(MAIN)}"
    (tmp_path / "echelon").write_text(f"#!/bin/sh\nexec {python}\n")
    (tmp_path / "echelon").chmod(0o755)

    def press_tab(word: str) -> list[str]:
        words = f"COMP_WORDS=(echelon train x.toml --set {word}); COMP_CWORD=4"
        told = 'compopt() { printf "compopt %s %s\\n" "$1" "$2"; }'
        asked = f'{script}\n{told}\n{words}\n_echelon_completion echelon\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(
            ["bash", "-c", asked],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.split("\n")[:-1]

    assert press_tab("schedule.k") == ["compopt -o nospace", "schedule.kind="]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no command 'trian'; did you mean 'train'? (see `echelon --help`)"),
        (
            ["train", "x.toml", "--step", "10"],
            "there is no option --step; did you mean --steps? (see `echelon train",
        ),
        (
            ["train", "x.toml", "--learning-rate", "0.1"],
            "there is no option --learning-rate; did you mean --set schedule.learning_rate=VALUE? (see ",
        ),
        (
            ["train", "x.toml", "--steps", "0"],
            "it must be greater than or equal to 1; see `echelon train --help`",
        ),
        (["train", "demmo.toml"], "there is no such recipe file; did you mean demo.toml?"),
        (["train", "README.md"], "README.md is not a recipe: not valid TOML: "),
        (
            ["plan", "demo.toml", "--on", "2xg4dn.3xlarge"],
            "The list has g4dn.xlarge, g4dn.2xlarge, g4dn.4xlarge",
        ),
    ],
)
def test_a_mistyped_command_line_is_told_what_may_be_meant(
    words: list[str], message: str, echelon: Echelon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "recipes" / "demo.toml", "demo.toml")
    Path("README.md").write_text("Read me\n")
    result = echelon(*words)
    assert result.status == 2
    assert message in result.messages


@pytest.mark.parametrize("verb", ["train", "report", "evaluate", "status"])
def test_a_mistyped_run_is_told_which_may_be_meant(verb: str, echelon: Echelon, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "digits")
    for given in ("digitz", "runs/digitz"):
        result = echelon(verb, given)
        assert result.status == 2
        assert re.search(r"; did you mean \S*runs/digits\?", result.messages)


def test_a_run_can_be_named_wherever_one_is_meant(echelon: Echelon, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "first")
    for given in ("first", "runs/first", run.path):
        assert echelon("status", given, "--json").document["run"]["path"] == str(run.path)


def test_describe_prints_the_keys_that_others_rely_on(echelon: Echelon) -> None:
    result = echelon("describe", WMT, "--json")
    assert result.status == 0
    assert result.messages == ""
    assert result.document["parameters"] == 60_880_896
    assert result.document["gradient_bytes"] == 243_523_584
    assert result.document["flops_per_step"] > 1e13
    assert result.document["learning_rates"]["8000"] == pytest.approx(9.882e-4, rel=1e-3)


def test_describe_prints_text_for_people_and_follows_set(echelon: Echelon) -> None:
    result = echelon("describe", WMT, "--set", "model.preset=big", "--set", "train.steps=1_000")
    assert result.status == 0
    assert "width 1024" in result.output
    assert "length           1,000 steps\n" in result.output


def test_a_warm_up_that_is_longer_than_the_training_is_pointed_out(echelon: Echelon) -> None:
    result = echelon("describe", WMT, "--set", "train.steps=1_000", "--json")
    assert result.messages == (
        "note: the warm-up (8,000 steps) takes up the whole training (1,000 steps), so the learning rate stays small; "
        "lower schedule.warmup_steps, or train longer\n"
    )
    assert echelon("describe", WMT, "--set", "train.steps=8_001").messages == ""


def test_prepare_then_describe_knows_the_data(echelon: Echelon, tmp_path: Path) -> None:
    recipe = write_corpus(tmp_path / "corpus")
    prepared = echelon("prepare", recipe, "--json")
    assert prepared.status == 0
    assert "preparing: " in prepared.messages
    assert Path(prepared.document["folder"]).is_relative_to(tmp_path / "cache")
    assert [corpus["name"] for corpus in prepared.document["manifest"]["corpora"]] == ["train-0", "valid"]
    assert echelon("describe", recipe, "--json").document["is_prepared"] is True
    again = echelon("prepare", recipe)
    assert "train-0: 180 pairs of 180 lines" in again.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["describe", "missing.toml"], "missing.toml: there is no such recipe file"),
        (
            ["describe", WMT, "--set", "steps"],
            "--set steps: write it as KEY=VALUE, e.g. --set train.steps=100",
        ),
        (["describe"], "Missing argument 'RECIPE'; see `echelon describe --help`"),
        (["describe", WMT, "--wrong"], "there is no option --wrong"),
        (["train", WMT, "--workers", "0"], "Invalid value for '--workers'"),
        (["nosuch"], "there is no command 'nosuch'; see `echelon --help`"),
        (
            ["evaluate", "nowhere"],
            "nowhere: there is no run here (no recipe.toml), nor in runs/nowhere; `echelon runs` lists runs",
        ),
        (
            ["translate", "nowhere"],
            "nowhere: there is no run here (no recipe.toml), nor in runs/nowhere; `echelon runs` lists runs",
        ),
    ],
)
def test_a_users_mistake_leaves_with_2_and_one_json_document(
    echelon: Echelon, arguments: list[str], says: str
) -> None:
    plain = echelon(*arguments)
    assert (plain.status, plain.output) == (2, "")
    assert plain.messages.startswith(f"error: {says}")
    with_json = echelon(*arguments, "--json")
    assert with_json.status == 2
    assert with_json.document["error"].startswith(says)
    assert with_json.messages == plain.messages


def test_every_problem_of_a_recipe_is_on_stderr(echelon: Echelon, tmp_path: Path) -> None:
    result = echelon("train", WMT, "--set", "train.stpes=3", "--set", "seed=-1", "--json")
    assert result.status == 2
    assert "  train.stpes: there is no such key; did you mean 'steps'?\n" in result.messages
    assert "  seed: -1 is not allowed: it must be greater than or equal to 0\n" in result.messages
    assert result.document["error"].count("\n") == 2
    assert not (tmp_path / "runs").exists()


def test_a_missing_corpus_is_told_before_workers_start(echelon: Echelon) -> None:
    result = echelon(
        "train", WMT, "--set", "data.valid={source='gone.en', target='gone.de'}", "--set", "data.download=[]"
    )
    assert result.status == 2
    assert "training-parallel-europarl-v7.tgz does not exist" in result.messages


def test_a_terminal_that_cannot_draw_a_bar_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes stderr for a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert output.messages().is_terminal
    monkeypatch.setenv("TERM", "dumb")
    assert not output.messages().is_terminal


def test_long_messages_are_not_broken_into_lines(echelon: Echelon) -> None:
    name = "x" * 200 + "[bold].toml"
    assert echelon("describe", name).messages == f"error: {name}: there is no such recipe file\n"


def test_the_place_of_an_error_is_not_taken_for_an_emoji(echelon: Echelon, tmp_path: Path) -> None:
    config = tmp_path / "old.py"
    config.write_text("\n" * 99 + " " * 25 + "x = 1\n")
    result = echelon("convert", "openseq2seq", config)
    assert f"{config}:100:25: is not Python" in result.messages


def test_a_bug_of_ours_leaves_with_1_and_says_so(echelon: Echelon, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("echelon.commands.runs.summarise_runs", fail)
    result = echelon("runs", "--json")
    assert result.status == 1
    assert result.document["error"].startswith("this is a bug in Echelon:\nTraceback")
    assert "ZeroDivisionError: ours" in result.messages


def test_ctrl_c_leaves_with_130_and_one_json_document(
    echelon: Echelon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # a signal would not do where tests run in the background, which ignores this one

    monkeypatch.setattr("echelon.commands.runs.summarise_runs", interrupt)
    result = echelon("runs", "--json")
    assert (result.status, result.document) == (130, {"error": "interrupted"})


def test_a_process_ends_with_the_status_of_its_verb(tmp_path: Path) -> None:
    wrong = run_process("describe", "missing.toml", "--json", folder=tmp_path)
    assert (wrong.returncode, json.loads(wrong.stdout)["error"]) == (
        2,
        "missing.toml: there is no such recipe file",
    )
    right = run_process("describe", WMT, "--json", folder=tmp_path)
    assert (right.returncode, right.stderr) == (0, "")
    json.loads(right.stdout)


def test_a_reader_that_goes_away_is_not_an_error_to_talk_about(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    result = subprocess.run(
        [sys.executable, "-c", MAIN, "runs"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=buffered,
        check=False,
    )
    os.close(write_end)
    assert (result.returncode, result.stderr) == (1, b"")


def make_run(folder: Path, name: str, *outcomes: str) -> RunFolder:
    run = RunFolder(folder / name)
    run.create()
    run.recipe.write_text(dump_recipe(sample_recipe()))
    writer = RecordWriter(run.worker_records(0))
    for outcome in outcomes:
        writer.write("start", step=0, steps=100, workers=1)
        writer.write("step", step=50, loss=1.0)
        writer.write("end", step=50, outcome=outcome)
    writer.close()
    return run


def test_runs_of_a_folder_that_is_missing_are_a_mistake(echelon: Echelon) -> None:
    result = echelon("runs", "nope")
    assert result.status == 2
    assert "nope: there is no such folder" in result.messages


def test_tables_fit_the_width_that_the_environment_names(
    echelon: Echelon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "a-run-with-a-name", "finished")
    wide = echelon("runs", tmp_path).output
    monkeypatch.setenv("COLUMNS", "50")
    narrow = echelon("runs", tmp_path).output
    assert max(map(len, wide.splitlines())) > 50 >= max(map(len, narrow.splitlines()))


def test_runs_of_an_empty_or_missing_folder_are_none(echelon: Echelon, tmp_path: Path) -> None:
    assert echelon("runs").output == "no runs in runs\n"
    assert echelon("runs", tmp_path, "--json").document == []


def test_runs_lists_every_state(echelon: Echelon, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    make_run(folder, "a")
    make_run(folder, "b", "finished")
    make_run(folder, "c", "stopped early")
    make_run(folder, "d", "finished", "interrupted")
    with make_run(folder, "e", "finished").lock():
        result = echelon("runs", "--json")
        text = echelon("runs").output
    states = {run["name"]: run["state"] for run in result.document}
    assert states == {
        "a": "not started",
        "b": "finished",
        "c": "stopped early",
        "d": "interrupted",
        "e": "training",
    }
    assert [line.split()[0] for line in text.splitlines()] == ["RUN", "a", "b", "c", "d", "e"]
    assert {run["steps"] for run in result.document} == {None, 100}


def test_a_run_is_removed_after_a_yes_and_kept_after_a_no(echelon: Echelon, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "a", "finished")
    kept = echelon("runs", "--remove", "a", "--json", answer="n\n")
    assert [entry["name"] for entry in kept.document] == ["a"]
    assert "Remove runs/a with all its checkpoints?" in kept.messages
    removed = echelon("runs", "--remove", "a", "--json", answer="y\n")
    assert (removed.status, removed.document) == (0, [])
    assert not run.path.exists()


def test_a_run_is_removed_without_asking_where_yes_is_given(echelon: Echelon, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make_run(tmp_path / "runs", name)
    result = echelon("runs", "--remove", "a", "--remove", "c", "--yes", "--json")
    assert [entry["name"] for entry in result.document] == ["b"]
    assert result.messages == ""


def test_a_run_is_removed_by_its_path_too(echelon: Echelon, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "a")
    assert echelon("runs", "--remove", "runs/a", "--yes").status == 0
    assert not run.path.exists()


def test_nothing_is_removed_where_nobody_answers(echelon: Echelon, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "a")
    result = echelon("runs", "--remove", "a", "--json", answer="")
    assert (result.status, result.document) == (2, {"error": "nobody answered; --yes removes without asking"})
    assert run.recipe.exists()


def test_nothing_is_removed_where_one_of_the_names_is_wrong(echelon: Echelon, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "a")
    result = echelon("runs", "--remove", "a", "--remove", "typo", "--yes")
    assert result.status == 2
    assert "runs/typo: there is no run here" in result.messages
    assert run.recipe.exists()


def test_a_run_that_is_being_trained_is_not_removed(echelon: Echelon, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "a")
    with run.lock():
        result = echelon("runs", "--remove", "a", "--yes")
    assert result.status == 2
    assert "is being trained; `echelon stop" in result.messages
    assert run.recipe.exists()


def test_prune_says_what_it_freed(echelon: Echelon, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "a", "finished")
    result = echelon("runs", "--prune", "--json")
    assert result.status == 0
    assert result.messages == "freed 0.0 MB\n"
    assert len(result.document) == 1


@pytest.mark.parametrize("other", [["--dry-run"], ["--launcher", "slurm"], ["--launcher", "kubernetes"]])
def test_detach_is_refused_where_nothing_would_train_here(echelon: Echelon, other: list[str]) -> None:
    result = echelon("train", WMT, "--detach", *other)
    assert result.status == 2
    assert "--detach trains in the background" in result.messages


def test_an_old_configuration_becomes_a_recipe(
    echelon: Echelon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # of a narrow terminal, which stderr is not: paths stay in one piece
    config, recipe = tmp_path / "old.py", tmp_path / "new.toml"
    config.write_text(TRANSFORMER.format(data=tmp_path))
    shown = echelon("convert", "openseq2seq", config, "--workers", 2)
    assert shown.status == 0
    assert tomllib.loads(shown.output)["train"]["slots"] == 2
    assert re.search(r"note: line \d+: batch_size_per_gpu counts pairs", shown.messages)
    document = echelon("convert", "openseq2seq", config, "--workers", 2, "--json").document
    assert document["text"] == shown.output
    assert any("batch_size_per_gpu counts pairs" in note for note in document["notes"])
    written = echelon("convert", "openseq2seq", config, "--workers", 2, "--to", recipe)
    assert (written.status, written.output.strip(), recipe.read_text()) == (0, "", shown.output)
    assert f"{recipe}: written\n" in written.messages
    assert load_recipe(recipe).train.slots == 2


def test_an_old_configuration_that_computes_is_refused(echelon: Echelon, tmp_path: Path) -> None:
    config = tmp_path / "old.py"
    config.write_text("x = 1\ny = open('x')\n")
    result = echelon("convert", "openseq2seq", config, "--to", tmp_path / "new.toml")
    assert result.status == 2
    assert "old.py:2:5: a call of open" in result.messages
    assert not (tmp_path / "new.toml").exists()


def test_the_name_of_a_picture_may_be_any_bytes(echelon: Echelon, tmp_path: Path) -> None:
    run = make_small_image_run(tmp_path / "run")
    picture_file = tmp_path / os.fsdecode(b"caf\xe9.png")
    picture_file.write_bytes(picture(1))
    (found,) = echelon("classify", str(run.path), str(picture_file), "--json").document["pictures"]
    assert os.fsencode(found["file"]) == os.fsencode(picture_file)
    assert "caf\\udce9.png  " in echelon("classify", str(run.path), str(picture_file)).output
    picture_file.write_bytes(b"dear")
    result = echelon("classify", str(run.path), str(picture_file), "--json")
    assert result.status == 2
    assert "is not an image" in result.document["error"]
