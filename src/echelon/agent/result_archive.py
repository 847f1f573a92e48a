"""A run's result as one stream, for a launcher that has no access to the folder."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO

from echelon.files.checkpoint_layout import best_beside, complete_folders
from echelon.runfolder import RunFolder

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
    """The step of the newest complete checkpoint; 0 if there is none."""
    return max((step for step, _ in complete_folders(run.checkpoints)), default=0)


def chosen_checkpoints(run: RunFolder) -> list[Path]:
    """The folders of the last complete checkpoint, and of the best that it names, if that is complete too."""
    complete = [folder for _, folder in complete_folders(run.checkpoints)]
    wanted = {complete[-1], best_beside(complete[-1])} if complete else set()
    return [folder for folder in complete if folder in wanted]
