"""Which launcher `echelon train` was asked to use: its flags, each declared here alone. Light, for `--help`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer

from echelon.errors import UserError

Launcher = Literal["local", "slurm", "kubernetes", "ray"]
SITE = "SLURM, Kubernetes and Ray"
BY_HAND = "Hosts started by hand"


@dataclass(frozen=True)
class For:
    """The launchers that an option goes with; None is hosts that are started by hand."""

    launchers: tuple[Launcher | None, ...]
    is_directive: bool = False
    """Whether it is an option of sbatch by the same name."""


_BY_HAND = For((None,))
_SLURM = For(("slurm",), is_directive=True)
_KUBERNETES = For(("kubernetes",))


@dataclass(frozen=True)
class LaunchOptions:
    """Which launcher, and how."""

    launcher: Annotated[
        Launcher | None,
        typer.Option(
            help="What starts the workers.  [default: the launcher that this runs inside, or local]",
            rich_help_panel=SITE,
        ),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of hosts, each with --workers; also for SLURM and Kubernetes.",
            rich_help_panel=BY_HAND,
        ),
        For((None, "slurm", "kubernetes")),
    ] = None
    node_rank: Annotated[
        int | None,
        typer.Option(min=0, help="The number of this host, from 0.", rich_help_panel=BY_HAND),
        _BY_HAND,
    ] = None
    master: Annotated[
        str | None,
        typer.Option(metavar="ADDR:PORT", help="Where node 0 listens.", rich_help_panel=BY_HAND),
        _BY_HAND,
    ] = None
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A secret that the hosts share.", rich_help_panel=BY_HAND),
        _BY_HAND,
    ] = None
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="SLURM: the partition.", rich_help_panel=SITE), _SLURM
    ] = None
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="SLURM: the time limit, e.g. 12:00:00.", rich_help_panel=SITE),
        _SLURM,
    ] = None
    account: Annotated[
        str | None, typer.Option(metavar="NAME", help="SLURM: the account.", rich_help_panel=SITE), _SLURM
    ] = None
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs per node.", rich_help_panel=SITE),
        For(("slurm", "kubernetes", "ray"), is_directive=True),
    ] = None
    sbatch_option: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUE", help="SLURM: any other option of sbatch.", rich_help_panel=SITE),
        For(("slurm",)),
    ] = field(default_factory=list)
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Kubernetes: the container image.", rich_help_panel=SITE),
        _KUBERNETES,
    ] = None
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Kubernetes: write the manifests into this folder.", rich_help_panel=SITE
        ),
        _KUBERNETES,
    ] = None
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ray: the cluster's head, or auto for the cluster that this machine belongs to.  [default: auto]",
            rich_help_panel=SITE,
        ),
        For(("ray",)),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run on every host, and run nothing.")
    ] = False

    def refuse_idle(self) -> None:
        """UserError naming an option that does not go with the launcher: it could not take effect."""
        for name, _, goes in self._given():
            if self.launcher not in goes.launchers:
                wanted = " or ".join(f"--launcher {launcher}" for launcher in goes.launchers if launcher)
                has = f"--launcher {self.launcher}" if self.launcher else "no --launcher"
                raise UserError(
                    f"{name} goes with {wanted or 'hosts that are started by hand'}, not with {has}"
                )

    def directives(self) -> list[str]:
        """What is given of sbatch's own options, each as NAME=VALUE."""
        return [
            f"{name.removeprefix('--')}={value}" for name, value, goes in self._given() if goes.is_directive
        ]

    def _given(self) -> Iterator[tuple[str, Any, For]]:
        """The options that belong to some launchers and are given: the flag, its value, and where it belongs."""
        hints = get_type_hints(LaunchOptions, include_extras=True)
        for option in fields(self):
            found = [mark for mark in get_args(hints[option.name])[1:] if isinstance(mark, For)]
            value = getattr(self, option.name)
            if found and value is not None and value != []:
                yield f"--{option.name.replace('_', '-')}", value, found[0]
