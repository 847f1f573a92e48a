"""A run's result as one stream, for a launcher that has no access to the folder."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO

from echelon.runfolder import RunFolder, read_json

BEGIN = b"echelon-pack\n"
"""What the stream begins with: a login script on the host may print what it likes before."""


def pack(run: RunFolder, out: IO[bytes]) -> None:
    """Write scores, and the best and the last checkpoint, as a tar stream after `BEGIN`."""
    out.write(BEGIN)
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for folder in chosen_checkpoints(run):
            for path in sorted(folder.iterdir()):
                if not path.name.startswith("."):
                    archive.add(path, str(path.relative_to(run.path)), recursive=False)
        for path in sorted(run.scores.iterdir()):
            archive.add(path, str(path.relative_to(run.path)), recursive=False)


def last_step(run: RunFolder) -> int:
    """The step of the newest checkpoint that has a state; 0 where there is none."""
    folders = chosen_checkpoints(run)
    return int(folders[-1].name.removeprefix("step-")) if folders else 0


def chosen_checkpoints(run: RunFolder) -> list[Path]:
    """The folders of the last checkpoint that has a state, and of the best that it names."""
    folders = sorted(path for path in run.checkpoints.glob("step-*") if (path / "state.json").is_file())
    if not folders:
        return []
    try:
        best = read_json(folders[-1] / "state.json")["best"]
        wanted = run.checkpoints / f"step-{int(best['step']):08d}" if best else folders[-1]
    except (OSError, ValueError, KeyError, TypeError):
        wanted = folders[-1]
    return sorted({folders[-1], *([wanted] if wanted.is_dir() else [])})
