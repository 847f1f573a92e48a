"""The rank that mpirun, srun, torchrun or Kubernetes gave this process, read from the environment.

If one launcher runs inside another (torchrun in srun, mpirun in an sbatch job), the inner one counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import UserError
from echelon.launch.cores import available_cores
from echelon.runfolder import parse_json

NODES_VARIABLE = "ECHELON_NODES"
"""How many pods there are: Kubernetes tells a pod its own number only, so our manifests say the other."""


@dataclass(frozen=True)
class Address:
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Place:
    """One of the processes that a launcher started side by side, each to become part of one group."""

    launcher: str
    """The launcher's name in messages."""
    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    """Processes that this launcher started on this host."""
    job: str = ""
    """Distinguishes this start from others on the same run folder."""
    master: Address | None = None
    """Where process 0 listens, if that is known beforehand."""
    secret_file: Path | None = None
    """The secret of processes that meet at `master`; ECHELON_SECRET if not given."""
    is_host: bool = False
    """The process stands for a whole host and starts its workers; otherwise it is one worker's."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def has_one_host(self) -> bool:
        return not self.is_host and self.local_size == self.size


def find_place(environ: Mapping[str, str]) -> Place | None:
    """The process's place among those that a launcher started; None if it was started on its own.

    UserError if the launcher's variables are incomplete or contradict each other.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun(_Variables("torchrun", environ))
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _open_mpi(_Variables("mpirun", environ))
    if "PMI_RANK" in environ and "MPI_LOCALRANKID" in environ:
        return _mpich(_Variables("mpiexec", environ))
    if "SLURM_STEP_ID" in environ:  # an sbatch script has all the others too, but is not a task
        return _slurm(_Variables("srun", environ))
    if "PET_NODE_RANK" in environ:
        return _kubeflow(_Variables("kubeflow", environ))
    if "JOB_COMPLETION_INDEX" in environ and NODES_VARIABLE in environ:
        return _Variables("kubernetes", environ).host_place("JOB_COMPLETION_INDEX", NODES_VARIABLE, "")
    for name in ("CLUSTER_SPEC", "TF_CONFIG"):  # Vertex AI sets both, and only the first tells all pools
        if environ.get(name):
            return _cluster_spec(_Variables("vertex", environ), name)
    return None


@dataclass(frozen=True)
class _Variables:
    """The environment variables of one launcher."""

    launcher: str
    environ: Mapping[str, str]

    def number(self, name: str) -> int:
        text = self.environ.get(name)
        if text is None:
            raise self.wrong(f"{name} is missing")
        if not re.fullmatch(r"[0-9]+", text):
            raise self.wrong(f"{name} is {text!r}, not a number")
        return int(text)

    def text(self, *names: str) -> str:
        return "-".join(self.environ[name] for name in names if self.environ.get(name))

    def given_master(self) -> Address | None:
        """The address at which process 0 listens, as the user gave it."""
        if "MASTER_ADDR" not in self.environ and "MASTER_PORT" not in self.environ:
            return None
        if not self.environ.get("MASTER_ADDR"):
            raise self.wrong("MASTER_PORT is set and MASTER_ADDR is not")
        return Address(self.environ["MASTER_ADDR"], self.number("MASTER_PORT"))

    def place(self, names: tuple[str, str, str], local_size: int, job: str, master: Address | None) -> Place:
        """The place of one worker, whose rank, size and local rank are in the variables of these names."""
        rank, size, local_rank = map(self.number, names)
        if rank >= size:
            raise self.wrong(f"{names[0]} is {rank}, but {names[1]} is {size}")
        if not local_rank < local_size <= size:
            raise self.wrong(
                f"{names[2]} is {local_rank} of {local_size} on this host, but {names[1]} is {size}"
            )
        return Place(self.launcher, rank, size, local_rank, local_size, job, master)

    def host_place(self, rank: str, size: str, job: str) -> Place:
        """The place of a whole host, from the names of the variables that say it."""
        number, count, master = self.number(rank), self.number(size), self.given_master()
        if number >= count:
            raise self.wrong(f"{rank} is {number}, but {size} is {count}")
        if master is None:
            raise self.wrong("MASTER_ADDR is missing")
        return Place(self.launcher, number, count, job=job, master=master, is_host=True)

    def wrong(self, what: str) -> UserError:
        return UserError(
            f"this looks like {self.launcher}, but {what}; start it with {self.launcher}, or use "
            "--launcher local to train on this host alone"
        )


def _torchrun(variables: _Variables) -> Place:
    # MASTER_PORT is torchrun's own: its agent listens there.
    job = variables.text("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return variables.place(names, variables.number("LOCAL_WORLD_SIZE"), job, None)


def _open_mpi(variables: _Variables) -> Place:
    job = variables.text("PMIX_NAMESPACE") or variables.text("OMPI_MCA_ess_base_jobid")
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    local_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE")
    return variables.place(names, local_size, job, variables.given_master())


def _mpich(variables: _Variables) -> Place:
    # Hydra gives its job no name. Stale files do no harm: no process listens there, or none with their secret.
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
    return variables.place(names, variables.number("MPI_LOCALNRANKS"), "", variables.given_master())


def _slurm(variables: _Variables) -> Place:
    tasks = expand_tasks_per_node(variables.text("SLURM_STEP_TASKS_PER_NODE"))
    node = variables.number("SLURM_NODEID")
    if node >= len(tasks):
        raise variables.wrong(
            f"SLURM_STEP_TASKS_PER_NODE is {variables.text('SLURM_STEP_TASKS_PER_NODE')!r}, without node {node}"
        )
    job = variables.text("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    return variables.place(names, tasks[node], job, variables.given_master())


def expand_tasks_per_node(text: str) -> list[int]:
    """SLURM's list of tasks on each node, `2(x3),1`, in full; empty if it is not such a list."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _kubeflow(variables: _Variables) -> Place:
    named = {"MASTER_ADDR": "PET_MASTER_ADDR", "MASTER_PORT": "PET_MASTER_PORT"}
    given = {name: variables.environ[pet] for name, pet in named.items() if pet in variables.environ}
    told = _Variables(variables.launcher, {**variables.environ, **given})
    return told.host_place("PET_NODE_RANK", "PET_NNODES", "")


_ROLES = ("chief", "master", "worker", "ps", "evaluator")
"""TensorFlow's names for what machines do, in the order of their ranks; Vertex AI's workerpool0, ... sort by number."""


def _cluster_spec(variables: _Variables, name: str) -> Place | None:
    """Every machine of a TensorFlow cluster is a host of ours; None for a machine that is told of no others."""
    try:
        document = parse_json(variables.environ[name])
        cluster, task = document.get("cluster") or {}, document.get("task") or {}
        pools = {str(role): [str(address) for address in addresses] for role, addresses in cluster.items()}
        role, index = str(task.get("type", "")), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError):
        raise variables.wrong(f"{name} is not a cluster's description in JSON") from None
    order = sorted(pools, key=lambda role: (_ROLES.index(role) if role in _ROLES else len(_ROLES), role))
    machines = [(role, number) for role in order for number in range(len(pools[role]))]
    if len(machines) < 2:
        return None
    if (role, index) not in machines:
        raise variables.wrong(
            f"{name} says that this is {role or 'nobody'} {index}, and the cluster has none"
        )
    host, _, port = pools[order[0]][0].rpartition(":")
    if not host or not port.isdecimal():
        raise variables.wrong(f"{name} has {pools[order[0]][0]!r} where an address and a port should be")
    rank = machines.index((role, index))
    job = str(document.get("job") or "")
    return Place(
        variables.launcher, rank, len(machines), job=job, master=Address(host, int(port)), is_host=True
    )


def threads_for(place: Place, environ: Mapping[str, str]) -> int | None:
    """Threads for the one worker of this process; None if the process stands for a host.

    A launcher that bound the process to cores of its own has given it those; otherwise the host's processes share.
    """
    if place.is_host:
        return None
    if environ.get("SLURM_CPUS_PER_TASK", "").isdecimal():
        return int(environ["SLURM_CPUS_PER_TASK"])
    if place.launcher != "srun" and _is_bound():
        return available_cores()
    return max(1, available_cores() // place.local_size)


def _is_bound() -> bool:
    """Whether this process may use fewer cores than the one that started it."""
    if not hasattr(os, "sched_getaffinity"):
        return False
    try:
        return os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    except (PermissionError, ProcessLookupError):
        return False


def place_by_hand(nodes: int | None, node_rank: int | None, master: str | None) -> Place:
    """The place of a host whose user typed --nodes, --node-rank and --master."""
    given = {"--nodes": nodes, "--node-rank": node_rank, "--master": master}
    missing = [name for name, value in given.items() if value is None]
    if missing or nodes is None or node_rank is None or master is None:
        raise UserError(
            f"{', '.join(missing)} missing: hosts started by hand need --nodes, --node-rank and --master"
        )
    if not 0 <= node_rank < nodes:
        raise UserError(f"--node-rank {node_rank}: with --nodes {nodes} it must be from 0 to {nodes - 1}")
    return Place("by hand", node_rank, nodes, master=parse_address(master), is_host=True)


def parse_address(text: str) -> Address:
    """Parse ADDR:PORT of --master."""
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UserError(f"--master {text}: it must be ADDR:PORT, an address of node 0 and a free port there")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
