"""What is measured beside a step's time."""

from __future__ import annotations

import subprocess
import sys

from echelon.train.step_timing import gpu_share, most_resident_bytes

CHILD = "from echelon.train.step_timing import most_resident_bytes; print(most_resident_bytes())"


def test_a_workers_memory_is_not_that_of_the_process_that_started_it() -> None:
    def of_a_child() -> int:
        return int(subprocess.check_output([sys.executable, "-c", CHILD]))

    size = of_a_child() + 200_000_000
    large = bytearray(b"x") * size
    assert most_resident_bytes() > len(large) > of_a_child()


def test_workers_share_the_memory_of_their_gpu() -> None:
    assert [gpu_share(1200, workers, gpus=2) for workers in (1, 2, 3, 6)] == [1200, 1200, 600, 400]
