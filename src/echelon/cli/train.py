"""`echelon train`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli.flags import takes_flags
from echelon.cli.options import (
    OVER_SSH,
    AwsAddress,
    Hostfile,
    HostPython,
    HostsOption,
    Interface,
    Json,
    LengthFlags,
    RecipeOrRun,
    Set,
    SshConfig,
    name_hosts,
)
from echelon.cli.output import messages, show
from echelon.commands.launch_options import LaunchOptions
from echelon.errors import UserError
from echelon.recipe.workers import WorkerRange

if TYPE_CHECKING:
    from echelon.commands.cluster_options import ClusterOptions


@dataclass(frozen=True)
class HostFlags:
    """Which hosts to train on over SSH, and how to get at them."""

    hosts: HostsOption = None
    hostfile: Hostfile = None
    rented: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="Train on the machines that `cloud up` rented.",
            rich_help_panel=OVER_SSH,
        ),
    ] = None
    aws_address: AwsAddress = "private"
    num_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Train as long as at least MIN hosts are up, and with at most MAX.",
            rich_help_panel=OVER_SSH,
        ),
    ] = None
    ssh_config: SshConfig = None
    python: HostPython = None
    interface: Interface = None
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="The port on which the hosts' agents listen.",
            min=1024,
            max=65535,
            rich_help_panel=OVER_SSH,
        ),
    ] = None
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Encrypt the messages between the hosts' agents.", rich_help_panel=OVER_SSH
        ),
    ] = False
    install: Annotated[
        bool, typer.Option("--install", help="Install Echelon on the hosts first.", rich_help_panel=OVER_SSH)
    ] = False
    sync: Annotated[
        bool,
        typer.Option(
            "--sync", help="Copy the prepared data to hosts that do not see it.", rich_help_panel=OVER_SSH
        ),
    ] = False
    container: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE", help="Run on the hosts in containers of this image.", rich_help_panel=OVER_SSH
        ),
    ] = None

    def cluster(self, workers: WorkerRange | None) -> ClusterOptions | None:
        """The hosts to train on; None for this machine alone, with UserError if a flag needs hosts."""
        from echelon.commands.cluster_options import ClusterOptions, on_rented
        from echelon.launch.ssh import find_config

        found = ClusterOptions(
            name_hosts(self.hosts, self.hostfile, self.aws_address),
            num_hosts=self.num_hosts,
            ssh_config=find_config(self.ssh_config),
            python=self.python,
            interface=self.interface,
            port=self.port,
            tls=self.tls,
            install=self.install,
            sync=self.sync,
            container=self.container,
        )
        if self.rented is not None:
            found = on_rented(self.rented, found)
        if found.hosts:
            return found.with_workers(workers)
        found.refuse_idle_options()
        return None

    def on_ray(self) -> ClusterOptions:
        """How to train on nodes of a Ray cluster, which are found later; UserError if a flag needs SSH."""
        from echelon.commands.cluster_options import ClusterOptions

        given = {
            "--hosts": self.hosts,
            "--hostfile": self.hostfile,
            "--cluster": self.rented,
            "--ssh-config": self.ssh_config,
            "--python": self.python,
            "--install": self.install,
            "--container": self.container,
        }
        idle = [name for name, value in given.items() if value]
        if idle:
            raise UserError(
                f"{', '.join(idle)}: for hosts over SSH; --launcher ray finds its nodes by itself"
            )
        return ClusterOptions(
            [],
            num_hosts=self.num_hosts,
            interface=self.interface,
            port=self.port,
            tls=self.tls,
            sync=self.sync,
        )


@takes_flags
def train(
    recipe: RecipeOrRun,
    *,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder.  [default: runs/NAME]")
    ] = None,
    as_before: Annotated[
        bool,
        typer.Option(
            "--as-before",
            help="Resume with the settings that the run was begun with, whatever the recipe says.",
        ),
    ] = False,
    length: LengthFlags,
    on_hosts: HostFlags,
    detach: Annotated[
        bool, typer.Option("--detach", help="Train in the background; use status, watch, attach and stop.")
    ] = False,
    how: LaunchOptions,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Prepare the data if needed, train and score. The same command again resumes."""
    from echelon.commands.launchers import launch
    from echelon.commands.training import TrainOptions, tell_apart

    settings = [*(set_ or []), *length.settings()]
    recipe, run = tell_apart(recipe, run)
    if detach:
        _detach(recipe, run, settings, how, as_json=json_)
        return
    cluster = on_hosts.on_ray() if how.launcher == "ray" else on_hosts.cluster(length.workers)
    options = TrainOptions(recipe, run, length.workers, settings, cluster, as_before)
    launched = launch(options, how, messages())
    if launched.is_shown:
        show(json_, launched.result, launched.words)
    raise typer.Exit(launched.exit_status)


def _detach(
    recipe: Path, run: Path | None, settings: list[str], how: LaunchOptions, *, as_json: bool
) -> None:
    """Have the same command run in the background."""
    from echelon.commands.detached_training import detach as run_in_background
    from echelon.commands.training import run_folder

    if how.dry_run or how.launcher in ("slurm", "kubernetes"):
        raise UserError(
            "--detach trains in the background; it does not go with --dry-run or a site's launcher"
        )
    words = [word for word in sys.argv[1:] if word != "--detach"]
    begun = run_in_background(words, run_folder(recipe, run, settings), messages())
    show(as_json, begun, f"training in the background; `echelon watch {begun['run']}` shows it")
