"""The flags that several verbs share, declared once, and what their values mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from echelon.cli.completion import complete_key, complete_recipe, complete_recipe_or_run, complete_run
from echelon.errors import UserError
from echelon.recipe.loading import allow_named
from echelon.recipe.own_code import allow, is_import_path
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.runfolder import RunFolder, find_run

if TYPE_CHECKING:
    from echelon.launch.hosts import Host

LENGTH = "Length and settings"
OVER_SSH = "Hosts over SSH"
COST = "Cost"


def _parse_workers(text: str) -> WorkerRange:
    try:
        return parse_workers(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not allowed: {error}") from None


def _parse_run(text: str) -> Path:
    return find_run(text).path


def _name_recipe(text: str) -> Path:
    allow_named(Path(text))
    return Path(text)


def _name_setting(settings: list[str] | None) -> list[str] | None:
    for setting in settings or []:
        allow([value] if is_import_path(value := setting.partition("=")[2]) else [])
    return settings


RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        parser=_name_recipe,
        help="The recipe, a TOML file.",
        autocompletion=complete_recipe,
    ),
]
RecipeOrRun = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE|RUN",
        parser=_name_recipe,
        help="A recipe, or a run to resume as it was begun.",
        autocompletion=complete_recipe_or_run,
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        parser=_parse_run,
        autocompletion=complete_run,
        help="A run: its folder, or its name in runs/.",
    ),
]
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        parser=_parse_run,
        autocompletion=complete_run,
        help="Runs: their folders, or their names in runs/.",
    ),
]
ModelOption = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        parser=_parse_run,
        autocompletion=complete_run,
        help="A run, or the folder of an exported model.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the recipe, e.g. train.slots=8. May be repeated.",
        callback=_name_setting,
        autocompletion=complete_key,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; messages go to stderr.")
]
Workers = Annotated[
    WorkerRange | None,
    typer.Option(
        metavar="N|MIN:MAX|auto",
        parser=_parse_workers,
        help="Worker processes (per host, with --hosts). With MIN:MAX, training continues with fewer if some die.",
        rich_help_panel=LENGTH,
    ),
]
LocalWorkers = Annotated[
    WorkerRange | None,
    typer.Option(
        metavar="N|auto",
        parser=_parse_workers,
        help="Worker processes.  [default: the recipe's]",
        show_default=False,
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A:2,B:2|FILE",
        help="The hosts, each with its number of workers; or a hostfile, or AWS's list of instances.",
        rich_help_panel=OVER_SSH,
    ),
]
Hostfile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with `host slots=2` or `host:2` per line, or AWS's list of instances.",
        rich_help_panel=OVER_SSH,
    ),
]
AwsAddress = Annotated[
    Literal["private", "public"],
    typer.Option(help="Which address of AWS instances to use.", rich_help_panel=OVER_SSH),
]
SshConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="An ssh configuration to use instead of your own.",
        show_default=False,
        rich_help_panel=OVER_SSH,
    ),
]
HostPython = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The Python on the hosts that has Echelon.", rich_help_panel=OVER_SSH),
]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The network interface that joins the hosts, if the wrong one is found.",
        rich_help_panel=OVER_SSH,
    ),
]
TrustHosts = Annotated[
    bool, typer.Option("--trust-hosts", help="Accept the hosts.json of a run that was started elsewhere.")
]
Which = Annotated[
    str | None, typer.Option("--checkpoint", metavar="best|last|average|PATH", help="Which weights to use.")
]
Price = Annotated[
    float | None, typer.Option(min=0.0, help="What a host costs, in dollars per hour.", rich_help_panel=COST)
]
MachineType = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="TYPE",
        help="The hosts' machine type, to look up its price, e.g. g4dn.2xlarge.",
        rich_help_panel=COST,
    ),
]


Steps = Annotated[
    int | None,
    typer.Option(
        min=1, help="Train for N steps, instead of the recipe's steps or epochs.", rich_help_panel=LENGTH
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        min=0.0, help="Train for X epochs, instead of the recipe's steps or epochs.", rich_help_panel=LENGTH
    ),
]


@dataclass(frozen=True)
class LengthFlags:
    """How long to train, and by how many."""

    workers: Workers = None
    steps: Steps = None
    epochs: Epochs = None

    def settings(self) -> list[str]:
        return length_settings(self.steps, self.epochs)


def length_settings(steps: int | None, epochs: float | None) -> list[str]:
    """--steps and --epochs as settings: each replaces the other in the recipe."""
    if steps is not None and epochs is not None:
        raise UserError("--steps and --epochs both say how long to train; use one of them")
    if steps is not None:
        return [f"train.steps={steps}", "train.epochs="]
    return [f"train.epochs={epochs:g}", "train.steps="] if epochs is not None else []


def name_hosts(
    hosts: str | None, hostfile: Path | None, aws_address: Literal["private", "public"]
) -> list[Host]:
    from echelon.launch.hosts import load_hosts

    if hosts is not None and hostfile is not None:
        raise UserError("--hosts and --hostfile both name hosts; use one of them")
    source = hosts if hosts is not None else hostfile
    return load_hosts(source, aws_address) if source is not None else []


def open_run(run: Path, trust_hosts: bool) -> RunFolder:
    from echelon.cluster.roster import trust_roster

    folder = RunFolder(run.absolute())
    if trust_hosts:
        trust_roster(folder)
    return folder
