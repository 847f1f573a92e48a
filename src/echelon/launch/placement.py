"""The command and environment of a worker, so that it finds the others of its group."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from echelon.launch.cores import available_cores
from echelon.launch.library_settings import ALLOCATOR, thread_waiting
from echelon.runfolder import RunFolder

WORKER_PROGRAM = (sys.executable, "-P", "-m", "echelon.train.worker")


@dataclass(frozen=True)
class WorkerSpec:
    """The command and environment that one worker is started with."""

    command: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Placement:
    """Where one host's workers stand in their group; by default they are all of it, on this machine alone."""

    size: int
    """Workers of the whole group."""
    first_rank: int = 0
    """Rank of this host's first worker; the others follow."""
    address: str = "127.0.0.1"
    """Where the group's store listens."""
    port: int = 0
    interface: str = "lo"
    """The network interface that leads to the other workers."""
    num_hosts: int = 1
    first_local_rank: int = 0
    """If this host runs several launchers: how many of its workers others start before ours."""
    local_size: int | None = None
    """If this host runs several launchers: the workers of all of them."""
    threads: int | None = None
    """Threads of a worker; its share of this process's cores unless the launcher says otherwise."""
    generation: int = 0
    """The generation whose lease on the run folder the workers need; 0 for none."""
    shares_folder: bool = True
    """Whether the other hosts see the same run folder; if not, each host keeps its own checkpoints."""


def render_worker(
    run: RunFolder,
    place: Placement,
    local_rank: int,
    workers: int,
    arguments: Sequence[str] = (),
    *,
    program: Sequence[str] = WORKER_PROGRAM,
) -> WorkerSpec:
    """Command and environment of one of a host's `workers`."""
    threads = place.threads or max(1, available_cores() // workers)
    return WorkerSpec(
        command=[*program, str(run.path), *arguments],
        environment={
            "RANK": str(place.first_rank + local_rank),
            "LOCAL_RANK": str(place.first_local_rank + local_rank),
            "WORLD_SIZE": str(place.size),
            "LOCAL_WORLD_SIZE": str(place.local_size or workers),
            "MASTER_ADDR": place.address,
            "MASTER_PORT": str(place.port),
            "GLOO_SOCKET_IFNAME": place.interface,
            "NCCL_SOCKET_IFNAME": f"={place.interface}",  # NCCL takes a plain name for a prefix
            "ECHELON_HOSTS": str(place.num_hosts),
            "ECHELON_GENERATION": str(place.generation),
            "ECHELON_FOLDER": "shared" if place.shares_folder else "own",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads),
            "PYTHONUNBUFFERED": "1",
            **ALLOCATOR,
            **thread_waiting(os.environ),
        },
    )
