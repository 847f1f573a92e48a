"""The flags of `echelon convert ai-platform`. Light, for `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True)
class GoogleAccount:
    """What an AI Platform configuration leaves out."""

    project: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="ai-platform: the Google Cloud project.  [default: $GOOGLE_CLOUD_PROJECT]"
        ),
    ] = None
    bucket: Annotated[
        str | None, typer.Option(metavar="gs://NAME", help="ai-platform: for data and checkpoints.")
    ] = None
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="ai-platform: a container image with Echelon.")
    ] = None
