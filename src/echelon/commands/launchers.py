"""`train` by any launcher: choose it, run it or show what it would run, and return what the verb prints."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.dry_run import HostPlan, LaunchPlan, as_arguments, plan_here, plan_over_ssh
from echelon.commands.launch_options import LaunchOptions
from echelon.commands.ray_training import RayRequest, describe_ray_launch, train_on_ray
from echelon.commands.remote_training import train_over_ssh
from echelon.commands.results import format_training
from echelon.commands.site_training import train_at_site
from echelon.commands.training import TrainOptions, open_run, train
from echelon.console import SafeConsole, tell
from echelon.errors import INTERRUPTED_STATUS, EchelonError, RefusedError, StoppedError, UserError
from echelon.launch.kubernetes import KubernetesSpec, render_job, render_trainjob
from echelon.launch.site import Place, find_place, place_by_hand
from echelon.launch.slurm import SbatchSpec, render_sbatch, submit
from echelon.recipe.loading import read_toml
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_table
from echelon.resolve.measured import refuse_auto_batch
from echelon.runfolder import RunFolder


@dataclass(frozen=True)
class Launched:
    """What the verb prints, and its exit status."""

    result: dict[str, Any]
    words: str
    exit_status: int = 0
    is_shown: bool = True
    """Whether this process prints: of a site's processes, only the first does."""


def launch(options: TrainOptions, how: LaunchOptions, console: Console) -> Launched:
    """Train with the launcher that was asked for or found; with `--dry-run`, return what would be run where."""
    how.refuse_idle()
    if how.launcher == "ray":
        return _launch_on_ray(options, how, console)
    if options.cluster is not None:
        return _launch_over_ssh(options, how, console)
    match how.launcher:
        case "slurm":
            return _launch_slurm(options, how)
        case "kubernetes":
            return _launch_kubernetes(options, how, console)
    place = _find_place(how, os.environ)
    if how.secret_file is not None:
        if place is None or place.master is None:
            raise UserError("--secret-file: only for processes that meet at --master or MASTER_ADDR")
        place = replace(place, secret_file=how.secret_file)
    if how.dry_run:
        plan = plan_here(options, place)
        return Launched(plan.document(), plan.to_text())
    if place is None or place.size == 1:
        result = train(options, console)
        return _trained(result, INTERRUPTED_STATUS if place else 1)
    return _launch_at_site(options, place, console)


def _launch_over_ssh(options: TrainOptions, how: LaunchOptions, console: Console) -> Launched:
    if replace(how, dry_run=False) != LaunchOptions():
        raise UserError("--hosts starts the workers over SSH; it does not go with another launcher's options")
    if how.dry_run:
        plan = plan_over_ssh(options, console)
        return Launched(plan.document(), plan.to_text())
    return _trained(train_over_ssh(options, console), 1)


def _launch_on_ray(options: TrainOptions, how: LaunchOptions, console: Console) -> Launched:
    request = RayRequest(how.address, how.gpus_per_node)
    if how.dry_run:
        found = describe_ray_launch(options, request, console)
        plan = LaunchPlan("ray", [HostPlan(host, commands, []) for host, commands in found.items()])
        return Launched(plan.document(), plan.to_text())
    return _trained(train_on_ray(options, request, console), 1)


def _launch_at_site(options: TrainOptions, place: Place, console: Console) -> Launched:
    if not place.is_first and not place.is_host:
        return _launch_silently(options, place, console)
    result = train_at_site(options, place, console)
    return _trained(result, 1 if place.launcher == "by hand" else INTERRUPTED_STATUS)


def _launch_silently(options: TrainOptions, place: Place, console: Console) -> Launched:
    """Train as one of a site's processes; process 0 prints for them if it can."""
    try:
        result = train_at_site(options, place, SafeConsole(quiet=True))
    except (StoppedError, RefusedError) as error:  # process 0 was told to stop as well, or shows the error
        return Launched({}, "", error.exit_status, is_shown=False)
    except EchelonError as error:
        message = f"process {place.rank} on {socket.gethostname()}: {error}"
        tell(console, message)
        return Launched({}, "", error.exit_status, is_shown=False)
    return replace(_trained(result, INTERRUPTED_STATUS), is_shown=False)


def _trained(result: dict[str, Any], interrupted_status: int) -> Launched:
    return Launched(result, format_training(result), 0 if result["finished"] else interrupted_status)


def _find_place(how: LaunchOptions, environ: Mapping[str, str]) -> Place | None:
    if how.nodes is not None or how.node_rank is not None or how.master is not None:
        return place_by_hand(how.nodes, how.node_rank, how.master)
    return None if how.launcher == "local" else find_place(environ)


def _workers_per_node(options: TrainOptions, how: LaunchOptions) -> int:
    """One for each GPU unless the user says otherwise."""
    if options.workers is None:
        return how.gpus_per_node or 1
    if not options.workers.is_fixed:
        raise UserError(f"--workers: {how.launcher} gives every node the same number, so give one")
    return options.workers.most


def _launch_slurm(options: TrainOptions, how: LaunchOptions) -> Launched:
    recipe, run = open_run(options)
    spec = _sbatch_spec(options, how, recipe, run)
    if spec.nodes * spec.workers > 1:
        refuse_auto_batch(recipe)
    text = render_sbatch(spec)
    result = {"launcher": "slurm", "run": str(run.path), "file": str(run.sbatch), "text": text}
    if how.dry_run:
        return Launched(result, text.rstrip("\n"))
    run.create()
    job = submit(text, run)
    words = f"{run.path}: job {job} is submitted; its messages go to {run.path}/slurm-{job}.log"
    return Launched({**result, "job": job}, words)


def _sbatch_spec(options: TrainOptions, how: LaunchOptions, recipe: Recipe, run: RunFolder) -> SbatchSpec:
    path = run.path.resolve()
    command = [
        sys.executable,
        "-P",
        "-m",
        "echelon",
        "train",
        str(options.recipe.resolve()),
        "--run",
        str(path),
    ]
    command += ["--as-before"] if options.as_before else []
    return SbatchSpec(
        name=recipe.name,
        command=[*command, *as_arguments(options.overrides)],
        folder=Path.cwd(),
        output=f"{str(path).replace('%', '%%')}/slurm-%j.log",
        nodes=how.nodes or 1,
        workers=_workers_per_node(options, how),
        resources=how.directives(),
        options=how.sbatch_option,
        retries=recipe.restart.max_restarts,
    )


def _launch_kubernetes(options: TrainOptions, how: LaunchOptions, console: Console) -> Launched:
    recipe, _ = open_run(options)
    if options.run is not None:
        raise UserError(
            "--run: on Kubernetes, runs lie on the volume that the pods share, in /echelon/runs; leave it out"
        )
    if how.image is None:
        raise UserError("--image: which container image shall the pods run? It must have Echelon in it")
    spec = KubernetesSpec(
        name=recipe.name,
        image=how.image,
        recipe=dump_table(read_toml(options.recipe)),  # without its comments
        nodes=how.nodes or 1,
        workers=_workers_per_node(options, how),
        gpus_per_node=how.gpus_per_node,
        overrides=options.overrides,
        retries=recipe.restart.max_restarts,
    )
    if spec.nodes > 1:
        refuse_auto_batch(recipe)
    files = {"job.yaml": render_job(spec), "trainjob.yaml": render_trainjob(spec)}
    if how.to is None or how.dry_run:
        console.print(
            "start it with: ... | kubectl apply -f -   (--to DIR writes files, also for Kubeflow's TrainJob)",
            markup=False,
            highlight=False,
        )
        return Launched({"launcher": "kubernetes", "files": files}, files["job.yaml"].rstrip("\n"))
    return _write_manifests(files, how.to)


def _write_manifests(files: dict[str, str], folder: Path) -> Launched:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another with --to") from None
    words = (
        f"start it with: kubectl apply -f {folder}/job.yaml\n"
        f"or, if Kubeflow Trainer is installed: kubectl apply -f {folder}/trainjob.yaml"
    )
    return Launched({"launcher": "kubernetes", "to": str(folder), "files": files}, words)
