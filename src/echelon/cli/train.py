"""`echelon train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import (
    BY_HAND,
    OVER_SSH,
    SITE,
    AwsAddress,
    Container,
    Epochs,
    Hostfile,
    HostPython,
    Hosts,
    Interface,
    Json,
    NumHosts,
    Port,
    RecipeOrRun,
    Set,
    SshConfig,
    Steps,
    Workers,
    length_settings,
    name_hosts,
)
from echelon.cli.output import messages, show
from echelon.errors import UserError
from echelon.runfolder import find_run


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
    workers: Workers = None,
    steps: Steps = None,
    epochs: Epochs = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    rented: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="Train on the machines that `cloud up` rented.",
            rich_help_panel=OVER_SSH,
        ),
    ] = None,
    aws_address: AwsAddress = "private",
    num_hosts: NumHosts = None,
    ssh_config: SshConfig = None,
    python: HostPython = None,
    interface: Interface = None,
    port: Port = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Encrypt the messages between the hosts' agents.", rich_help_panel=OVER_SSH
        ),
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Install Echelon on the hosts first.", rich_help_panel=OVER_SSH)
    ] = False,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync", help="Copy the prepared data to hosts that do not see it.", rich_help_panel=OVER_SSH
        ),
    ] = False,
    container: Container = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Train in the background; use status, watch, attach and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run on every host, and run nothing.")
    ] = False,
    launcher: Annotated[
        Literal["local", "slurm", "kubernetes"] | None,
        typer.Option(
            help="What starts the workers.  [default: the launcher that this runs inside, or local]",
            rich_help_panel=SITE,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of hosts, each with --workers; also for SLURM and Kubernetes.",
            rich_help_panel=BY_HAND,
        ),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="The number of this host, from 0.", rich_help_panel=BY_HAND)
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="Where node 0 listens.", rich_help_panel=BY_HAND)
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A secret that the hosts share.", rich_help_panel=BY_HAND),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="SLURM: the partition.", rich_help_panel=SITE)
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="SLURM: the time limit, e.g. 12:00:00.", rich_help_panel=SITE),
    ] = None,
    account: Annotated[
        str | None, typer.Option(metavar="NAME", help="SLURM: the account.", rich_help_panel=SITE)
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs per node.", rich_help_panel=SITE)
    ] = None,
    sbatch_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="SLURM: any other option of sbatch.", rich_help_panel=SITE),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Kubernetes: the container image.", rich_help_panel=SITE),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Kubernetes: write the manifests into this folder.", rich_help_panel=SITE
        ),
    ] = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Prepare the data if needed, train and score. The same command again resumes."""
    from echelon.commands.launching import LaunchOptions, launch
    from echelon.commands.training import TrainOptions

    settings = [*(set_ or []), *length_settings(steps, epochs)]
    recipe, run = _tell_apart(recipe, run)
    if detach:
        if dry_run or launcher in ("slurm", "kubernetes"):
            raise UserError(
                "--detach trains in the background; it does not go with --dry-run or a site's launcher"
            )
        from echelon.commands.running import detach as run_in_background
        from echelon.commands.training import run_folder

        words = [word for word in sys.argv[1:] if word != "--detach"]
        begun = run_in_background(words, run_folder(recipe, run, settings), messages())
        show(json_, begun, f"training in the background; `echelon watch {begun['run']}` shows it")
        return
    from echelon.commands.clusters import ClusterOptions, on_rented
    from echelon.launch.ssh import find_config

    cluster = ClusterOptions(
        name_hosts(hosts, hostfile, aws_address),
        num_hosts=num_hosts,
        ssh_config=find_config(ssh_config),
        python=python,
        interface=interface,
        port=port,
        tls=tls,
        install=install,
        sync=sync,
        container=container,
    )
    if rented is not None:
        cluster = on_rented(rented, cluster)
    if cluster.hosts:
        cluster = cluster.with_workers(workers)
    else:
        cluster.refuse_idle_options()
    how = LaunchOptions(
        launcher=launcher,
        nodes=nodes,
        node_rank=node_rank,
        master=master,
        secret_file=secret_file,
        partition=partition,
        time=time,
        account=account,
        gpus_per_node=gpus_per_node,
        sbatch_options=sbatch_option or [],
        image=image,
        to=to,
        dry_run=dry_run,
    )
    options = TrainOptions(recipe, run, workers, settings, cluster if cluster.hosts else None, as_before)
    launched = launch(options, how, messages())
    if launched.is_shown:
        show(json_, launched.result, launched.words)
    raise typer.Exit(launched.exit_status)


def _tell_apart(given: Path, run: Path | None) -> tuple[Path, Path | None]:
    """The recipe and the run's folder. What is given may be a run: then the recipe is the one it was begun with."""
    resumed = find_run(given.parent if given.name == "recipe.toml" else given)
    is_run = resumed.recipe.is_file() and resumed.checkpoints.is_dir()
    if given.is_dir() and not is_run:
        raise UserError(f"{given}: is a folder without a run; give a recipe, a TOML file, or a run's folder")
    if given.is_file() and given.name != "recipe.toml":
        return given, run
    if is_run and run is not None and run.resolve() != resumed.path.resolve():
        raise UserError(f"{given} is a run already; leave out --run {run} to resume it")
    return (resumed.recipe, resumed.path) if is_run else (given, run)
