"""`python -m echelon.imagenet_distributed`: the usual script for ImageNet on several nodes by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from echelon.errors import UserError
from echelon.migrate.old_command import Flags, Modern, given_arguments, settings_arguments
from echelon.recipe.shipped import find_recipe

BATCH_A_WORKER = 256


def translate(arguments: list[str], environ: Mapping[str, str] = os.environ) -> Modern:
    """The command that does what the script would have done on this node."""
    flags = Flags(
        "python -m echelon.imagenet_distributed",
        description="ImageNet on several nodes by hand, done with Echelon.",
    )
    flags.add_argument("-n", "--nodes", type=int, default=1)
    flags.add_argument("-g", "--gpus", type=int, default=1, help="workers on each node")
    flags.add_argument("-nr", "--nr", type=int, default=0, help="this node's number, from 0")
    flags.add_argument("--epochs", type=float, default=2.0)
    flags.add_argument("--data", help="ImageNet in class folders")
    flags.add_argument("--run", default="runs/imagenet", help="the run's folder")
    given = flags.parse_args(arguments)
    if not 0 <= given.nr < given.nodes:
        raise UserError(f"-nr {given.nr}: nodes have the numbers 0 to {given.nodes - 1}")
    workers = given.nodes * given.gpus
    settings: dict[str, object] = {
        "train.epochs": given.epochs,
        "train.slots": workers,
        "train.batch_images": BATCH_A_WORKER * workers,
    }
    if given.data is not None:  # a relative one would begin at the recipe
        settings["data.path"] = Path(given.data).absolute()
    words = ["train", str(find_recipe("imagenet-resnet18")), "--run", given.run, "--workers", str(given.gpus)]
    if given.nodes > 1:
        words += ["--nodes", str(given.nodes), "--node-rank", str(given.nr), "--master", _master(environ)]
    return Modern([*words, *settings_arguments(settings), *given_arguments(given.settings)])


def _master(environ: Mapping[str, str]) -> str:
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "29500")
    if not address:
        raise UserError(
            "set MASTER_ADDR to the address of node 0, on every node (and MASTER_PORT, if 29500 is taken)"
        )
    return f"{address}:{port}"
