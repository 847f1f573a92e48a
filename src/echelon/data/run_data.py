"""Which prepared data a run was begun with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from echelon.errors import RunError
from echelon.runfolder import RunFolder, read_json


@dataclass(frozen=True)
class RunData:
    """What the run's data.json says."""

    run: RunFolder
    folder: Path
    key: str

    def check(self, key: str) -> None:
        """RunError if the folder holds other data by now."""
        if key != self.key:
            raise RunError(f"{self.run.data}: {self.folder} holds other data than this run was begun with")


def find_run_data(run: RunFolder) -> RunData:
    """The data that `train` prepared for this run."""
    try:
        named = read_json(run.data)
        folder, key = Path(named["folder"]), named["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{run.data}: does not name the prepared data: {error}; run `echelon train` again"
        ) from None
    if not folder.is_absolute() or ".." in folder.parts:
        raise RunError(f"{run.data}: names {str(folder)!r}, which is not a plain absolute path")
    return RunData(run, folder, key)
