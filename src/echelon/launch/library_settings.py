"""Environment variables that glibc and libgomp read once, when a process starts to use them."""

from __future__ import annotations

from collections.abc import Mapping

# glibc returns freed memory to the system and asks for it again at every step. Keeping it makes training on a CPU 1.1
# to 1.5 times faster. No mappings at all, instead of a high threshold: glibc before 2.35 refuses one above 32 MiB, and
# once a threshold is set, glibc no longer raises it by itself.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}

_SPIN_COUNT = 3000
"""How often a thread looks before it sleeps, about a tenth of a millisecond. libgomp's own 300,000 make one worker with
two threads 15 times slower beside busy processes; not spinning at all costs a quarter of the speed on an idle machine
(`python -m bench.bench_threads`; docs/performance.md)."""
_USERS_CHOICE = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def thread_waiting(environment: Mapping[str, str]) -> dict[str, str]:
    """Make OpenMP threads that wait for each other spin only briefly, unless the user has chosen otherwise."""
    if any(environment.get(name) for name in _USERS_CHOICE):
        return {}
    return {"GOMP_SPINCOUNT": str(_SPIN_COUNT)}
