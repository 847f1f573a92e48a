"""The command line: one table, verb -> function. Prints results and errors, and sets the exit status.

Verbs import what they need when they run, so that `echelon --help` starts at once and the control half never
loads torch.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

import echelon
from echelon.cli import (
    attach,
    benchmark,
    classify,
    compare,
    convert,
    dashboard,
    demo,
    describe,
    doctor,
    evaluate,
    experiment,
    export,
    plan,
    prepare,
    report,
    runs,
    search,
    serve,
    status,
    stop,
    tensorboard,
    train,
    translate,
    watch,
)
from echelon.cli.cloud import CLOUD_VERBS
from echelon.cli.completion import leave_no_space_after_keys
from echelon.cli.examples import examples_of
from echelon.cli.help import HelpCommand, HelpGroup
from echelon.cli.lab import LAB_VERBS
from echelon.cli.mistakes import format_usage
from echelon.cli.output import fail, print_logs_safely
from echelon.errors import EchelonError
from echelon.launch.library_settings import thread_waiting
from echelon.recipe.own_code import allow

_KEYBOARD_INTERRUPT = 130
"""Typer's exit status for Ctrl-C, and the shell's."""
PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Start here": {"demo": demo.demo, "doctor": doctor.doctor},
    "Before training": {
        "describe": describe.describe,
        "prepare": prepare.prepare,
        "plan": plan.plan,
        "benchmark": benchmark.benchmark,
        "convert": convert.convert,
    },
    "Train": {
        "train": train.train,
        "search": search.search,
        "runs": runs.runs,
        "status": status.status,
        "watch": watch.watch,
        "attach": attach.attach,
        "stop": stop.stop,
        "tensorboard": tensorboard.tensorboard,
    },
    "Explain": {
        "dashboard": dashboard.dashboard,
        "report": report.report,
        "compare": compare.compare,
        "experiment": experiment.experiment,
    },
    "Use a model": {
        "evaluate": evaluate.evaluate,
        "translate": translate.translate,
        "classify": classify.classify,
        "export": export.export,
        "serve": serve.serve,
    },
}
VERBS: dict[str, Callable[..., None]] = {
    verb: function for verbs in PANELS.values() for verb, function in verbs.items()
}
GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "lab": ("Create hosts with their own network and SSH server on one Linux machine.", LAB_VERBS),
    "cloud": ("Rent machines with a budget, list them, log in, remove them.", CLOUD_VERBS),
}


def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", is_eager=True)
    ] = False,
    own_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE.MODULE:NAME",
            help="Import this code of yours though only a run's folder names it. May be repeated.",
        ),
    ] = None,
) -> None:
    """Train, evaluate and explain a model from one recipe file, on one machine or many."""
    if version:
        typer.echo(f"echelon {echelon.__version__}")
        raise typer.Exit
    allow(own_code or [])


def build_app() -> typer.Typer:
    leave_no_space_after_keys()
    app = typer.Typer(
        cls=HelpGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        invoke_without_command=True,
        epilog=examples_of(),
    )
    app.callback()(_options)
    for panel, verbs in PANELS.items():
        _add_verbs(app, verbs, panel)
    for group, (summary, verbs) in GROUPS.items():
        below = typer.Typer(cls=HelpGroup, help=summary, epilog=examples_of(group), rich_markup_mode=None)
        _add_verbs(below, verbs, None, group)
        app.add_typer(below, name=group, rich_help_panel="Machines")
    return app


def _add_verbs(
    app: typer.Typer, verbs: dict[str, Callable[..., None]], panel: str | None, *group: str
) -> None:
    for verb, function in verbs.items():
        app.command(verb, cls=HelpCommand, rich_help_panel=panel, epilog=examples_of(*group, verb))(function)


def main() -> None:
    """Run a verb. Exit status 0: done; 1: the work failed; 2: the user's mistake."""
    # Before torch is imported: verbs such as translate compute in this process.
    os.environ.update(thread_waiting(os.environ))
    print_logs_safely()
    try:
        words = [*sys.argv[2:], "--help"] if sys.argv[1:2] in ([], ["help"]) else sys.argv[1:]
        status = build_app()(words, prog_name="echelon", standalone_mode=False)
        sys.stdout.flush()
    except EchelonError as error:
        fail(str(error), error.exit_status)
    except typer.TyperException as error:
        fail(format_usage(error, _where_help_is()), 2)
    except BrokenPipeError:
        # The reader of our output has gone; nobody is there to be told, not even by the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception:
        fail(f"this is a bug in Echelon:\n{traceback.format_exc()}", 1)
    if status == _KEYBOARD_INTERRUPT:
        fail("interrupted", status)
    sys.exit(status or 0)


def _where_help_is() -> str:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words and words[0] in GROUPS:
        verbs = [words[0], *(word for word in words[1:2] if word in GROUPS[words[0]][1])]
    else:
        verbs = [word for word in words if word in VERBS][:1]
    return f"see `{' '.join(['echelon', *verbs])} --help`"
