"""What a trial's process does first: `python -m echelon.search.trial_start SEARCH CORES train RECIPE ...`.

It keeps to its cores, has the kernel send SIGTERM when the search dies, however it dies, so that the trial saves and
leaves, and then becomes `echelon train`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command_of(search: int, cores: set[int], words: list[str]) -> list[str]:
    """The command that does all this, `words` being the verb and what follows."""
    numbers = ",".join(map(str, sorted(cores)))
    return [sys.executable, "-P", "-m", "echelon.search.trial_start", str(search), numbers, *words]


def main(arguments: list[str]) -> None:
    search, cores, *words = arguments
    if sys.platform == "linux":
        if cores:
            os.sched_setaffinity(0, map(int, cores.split(",")))
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(search):
            sys.exit("the search ended while this trial was starting")
    os.execv(sys.executable, [sys.executable, "-P", "-m", "echelon", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
