"""Hosts on this machine, each with a run folder of its own, and a launcher's folder besides; without ssh or workers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echelon.agent.outcome import RunOutcome, write_outcome
from echelon.agent.spec import HostSpec
from echelon.cluster.host_session import HostSession
from echelon.files.checkpoint_layout import (
    MODEL,
    STATE,
    Best,
    TrainingState,
    checkpoint_folder,
    write_sidecar,
    write_state,
)
from echelon.files.checksum import Written, checksum_of
from echelon.launch.ssh import Remote
from echelon.monitor.records import RecordWriter
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder
from tests.sample_recipe import sample_recipe

_SCRIPT = """
verb=$3
if [ $# -gt 3 ]; then shift 4; set -- {folder} "$@"; else shift 3; fi
exec "$0" -m echelon.agent $verb "$@"
"""
"""In place of a host's Python: `-m echelon.agent VERB RUN ...` is about the host's own folder, wherever ours is."""


def make_folder(path: Path) -> RunFolder:
    run = RunFolder(path)
    run.create()
    run.recipe.write_text(dump_recipe(sample_recipe()))
    return run


def make_sessions(folders: Sequence[RunFolder]) -> list[HostSession]:
    """A host for each folder."""
    return [
        HostSession(
            number,
            Remote("localhost"),
            ("sh", "-c", _SCRIPT.format(folder=folder.path), sys.executable),
            HostSpec("localhost", f"127.0.0.{number + 1}", "lo", 1),
            sees_our_folder=False,
        )
        for number, folder in enumerate(folders)
    ]


def write_records(path: Path, *records: dict[str, Any]) -> None:
    with contextlib.closing(RecordWriter(path)) as writer:
        for record in records:
            writer.write(**record)


def end(folder: RunFolder, host: int, ended: RunOutcome) -> None:
    """The last word of a host's agent."""
    with contextlib.closing(RecordWriter(folder.agent_records(host))) as records:
        write_outcome(records, ended, f"host{host}")


def write_whole(checkpoints: Path, step: int, best: int) -> None:
    """A complete checkpoint, whose weights are a few words."""
    checkpoint = checkpoint_folder(checkpoints, step)
    checkpoint.mkdir()
    weights = b"weights %d" % step
    (checkpoint / MODEL).write_bytes(weights)
    write_sidecar(checkpoint, MODEL, Written(checksum_of(weights), len(weights)))
    state = TrainingState(step, Best(best, "bleu", 1.0))
    write_sidecar(checkpoint, STATE, write_state(checkpoint, state, [MODEL]))
