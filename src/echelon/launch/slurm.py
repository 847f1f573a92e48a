"""SLURM: the file that sbatch takes. A preempted job saves, is queued again and resumes later."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import INTERRUPTED_STATUS, EchelonError, UserError
from echelon.runfolder import RunFolder, write_atomically

_WARNING_S = 120
"""How long before its time limit a job is signalled, so that it can save."""
_APART_S = 60
"""How long after the first task the last one may end."""


@dataclass(frozen=True)
class SbatchSpec:
    """What to run, and on what."""

    name: str
    command: Sequence[str]
    """What every task runs."""
    folder: Path
    """Where it runs."""
    output: str
    """Where its messages go; %j stands for the job's number."""
    nodes: int = 1
    workers: int = 1
    """Tasks on each node."""
    resources: Sequence[str] = ()
    """Options of sbatch that have a flag of their own, such as a partition or a time limit, each as NAME=VALUE."""
    options: Sequence[str] = ()
    """More of sbatch's long options, each as NAME=VALUE or NAME."""
    retries: int = 0
    """How often training that failed is tried again in the same job."""


def render_sbatch(spec: SbatchSpec) -> str:
    """The whole file."""
    srun = ["srun", "--mpi=none", "--kill-on-bad-exit=0", f"--wait={_APART_S}", *spec.command]
    return f"""\
#!/bin/bash
# Made by `echelon train --launcher slurm`. SIGTERM, before time is over or when another job takes the place, makes
# training save and leave with status {INTERRUPTED_STATUS}; then the job queues again and resumes from there.
{_directives(spec)}

cd {shlex.quote(str(spec.folder))} || exit 2
trap : TERM  # the tasks are told as well; wait for them
# srun does not take this over from sbatch by itself.
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi

for attempt in {" ".join(str(number) for number in range(spec.retries + 1))}; do
    {shlex.join(srun)}
    status=$?
    case $status in
        0 | 2) exit $status ;;  # done, or nothing that trying again could help
        {INTERRUPTED_STATUS}) scontrol requeue "$SLURM_JOB_ID"; exit $status ;;
    esac
done
exit $status
"""


def _directives(spec: SbatchSpec) -> str:
    directives = [
        f"job-name={spec.name}",
        f"nodes={spec.nodes}",
        f"ntasks-per-node={spec.workers}",
        *spec.resources,
        f"output={spec.output}",
        "open-mode=append",
        f"signal=TERM@{_WARNING_S}",
        "requeue",
        *spec.options,
    ]
    return "\n".join(map(_directive, directives))


def _directive(option: str) -> str:
    if not option.isprintable() or re.search(r"[\"'\\]", option):
        raise UserError(
            f"{option!r} cannot stand in an sbatch file: it has a quote, a backslash or an invisible character"
        )
    name, equals, value = option.removeprefix("--").partition("=")
    # sbatch splits its directives at spaces, unless they are quoted.
    return f'#SBATCH --{name}{equals}"{value}"' if " " in value else f"#SBATCH --{name}{equals}{value}"


def submit(text: str, run: RunFolder) -> str:
    """Keep the file in the run folder and submit it with sbatch; return the job's number."""
    write_atomically(run.sbatch, text)
    try:
        result = subprocess.run(
            ["sbatch", "--parsable", str(run.sbatch)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise UserError(
            f"there is no sbatch here; the file is {run.sbatch}: submit it where SLURM is, or use --dry-run to see it"
        ) from None
    if result.returncode != 0:
        raise EchelonError(f"sbatch {run.sbatch} failed: {result.stderr.strip()}")
    return result.stdout.strip().partition(";")[0]
