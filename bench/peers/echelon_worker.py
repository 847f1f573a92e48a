"""One of Echelon's workers, held on a lead: reads numbers of steps, answers with what they took.

Everything between is the product's own: set-up from a run folder, the loop's steps, the exchange between workers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from echelon.comm.group import join_group
from echelon.monitor.heartbeat import open_heart
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from echelon.train.loop import take_step
from echelon.train.step_timing import measure_peak
from echelon.train.worker import set_up


def peak_of_core(size: int = 1024, times: int = 20) -> float:
    """FLOP/s of bf16 products in processor time: what a core reaches, whoever else wants it."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    fastest = float("inf")
    for _ in range(times):
        started = time.process_time()
        a @ b
        fastest = min(fastest, time.process_time() - started)
    return 2 * size**3 / fastest


def memory_bytes(kind: str) -> int:
    """VmHWM: the most that was ever resident, pages of mapped files included. RssAnon: without those, now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(kind)


def main() -> None:
    run = RunFolder(Path(sys.argv[1]))
    group = join_group(300.0, open_heart())
    records = RecordWriter(run.worker_records(group.rank))
    training = set_up(run, group, records)
    training.model.module.train()
    step = 0
    for line in sys.stdin:
        results, flops, cpu_seconds = [], 0, 0.0
        for _ in range(int(line)):
            step += 1
            cpu_started = time.process_time()
            results.append(take_step(training, step))
            cpu_seconds += time.process_time() - cpu_started
            flops += training.task.step_flops(step)
        # After the steps, as peers are not warmed up for theirs either.
        peak, core_peak = measure_peak(training), peak_of_core()
        answer = {
            "tokens": sum(result.targets for result in results),
            "seconds": sum(result.seconds for result in results),
            "cpu_seconds": cpu_seconds,
            "flops": flops,
            "core_peak_flops": core_peak,
            "peak_flops": peak,
            "kernels": training.task.kernels,
            "most_memory_bytes": memory_bytes("VmHWM"),
            "own_memory_bytes": memory_bytes("RssAnon"),
        }
        if group.is_first:
            print(json.dumps(answer), flush=True)
    records.close()
    os._exit(0)


if __name__ == "__main__":
    main()
