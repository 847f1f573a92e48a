"""`python -m echelon.comm.linktest TIMEOUT_S`: how fast a group of hosts exchanges, from a short all-reduce.

launch/probe.py starts one process on each host, in the environment that workers get too.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass

import torch

from echelon.comm.group import Group, join_group
from echelon.runfolder import to_json

_FIRST_BYTES = 1 << 20
_LAST_BYTES = 64 << 20
_ENOUGH_S = 0.3
_LATENCY_ROUNDS = 20


@dataclass(frozen=True)
class LinkSpeed:
    """How fast all members of a group exchange together."""

    bytes_per_s: float
    """What each host sends, and receives, a second while all of them add up a large buffer."""
    latency_s: float
    """How long adding up a single number takes."""


def measure_link(group: Group) -> LinkSpeed:
    """Collective: measure with buffers that grow until one takes long enough to tell; the same answer everywhere."""
    latency_s = statistics.median(_time_all_reduce(group, 1) for _ in range(_LATENCY_ROUNDS))
    size = _FIRST_BYTES
    while True:
        seconds = _time_all_reduce(group, size // 4)
        if group.agree(seconds > _ENOUGH_S) or size >= _LAST_BYTES:
            break
        size *= 4
    measured = group.gather_json([seconds, latency_s])
    slowest_s, latency_s = (max(values) for values in zip(*measured, strict=True))
    return LinkSpeed(traffic_share(group.size) * size / slowest_s, latency_s)


def traffic_share(size: int) -> float:
    """Bytes that each of `size` hosts sends per byte of the buffer: what a ring needs, and nothing does with less."""
    return 2 * (size - 1) / size


def _time_all_reduce(group: Group, numbers: int) -> float:
    buffer = torch.zeros(numbers)
    group.barrier()
    started = time.monotonic()
    group.all_reduce(buffer)
    return time.monotonic() - started


def main() -> None:
    torch.set_num_threads(1)
    link = measure_link(join_group(float(sys.argv[1])))
    sys.stdout.write(to_json(asdict(link)) + "\n")
    sys.stdout.flush()
    # The group's threads end with the process: taking them down in order may fail, and serves no purpose.
    os._exit(0)


if __name__ == "__main__":
    main()
