"""Where curves go beside the records: TensorBoard."""

from __future__ import annotations

from typing import Protocol

from echelon.recipe.schema import Track
from echelon.runfolder import RunFolder


class Tracker(Protocol):
    """Takes numbers and texts by step."""

    def scalars(self, values: dict[str, float], step: int) -> None: ...

    def text(self, name: str, text: str, step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Writes TensorBoard event files; a resumed run hides what the interrupted one wrote past its checkpoint."""

    def __init__(self, run: RunFolder, first_step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(run.tensorboard), purge_step=first_step, flush_secs=10)

    def scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        self._writer.close()


def build_trackers(track: Track, run: RunFolder, first_step: int) -> list[Tracker]:
    return [TensorBoardTracker(run, first_step)] if track.tensorboard else []
