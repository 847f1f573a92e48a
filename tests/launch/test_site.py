"""What launchers leave in the environment, as it was found there, and what of it cannot be right."""

from __future__ import annotations

import json
import os

import pytest

from echelon.errors import UserError
from echelon.launch import site
from echelon.launch.site import (
    Address,
    Place,
    expand_tasks_per_node,
    find_place,
    parse_address,
    place_by_hand,
    threads_for,
)

OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1425276929",
    "PMIX_RANK": "3",
}
OPEN_MPI_5 = {**OPEN_MPI_4, "PMIX_NAMESPACE": "prterun-node1-4711@1"}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "6"}
SBATCH = {
    "SLURM_JOB_ID": "17",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
SRUN = {
    **SBATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "PMI_RANK": "3",  # as srun --mpi=pmi2 sets it
    "PMI_SIZE": "4",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1",
    "ECHELON_NODES": "2",
    "MASTER_ADDR": "toy-0.toy",
    "MASTER_PORT": "29500",
}
KUBEFLOW = {
    "PET_NODE_RANK": "1",
    "PET_NNODES": "2",
    "PET_MASTER_ADDR": "toy-node-0-0.toy",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1",
}
GIVEN = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (OPEN_MPI_4, Place("mpirun", 3, 4, 1, 2, "1425276929")),
        (OPEN_MPI_5, Place("mpirun", 3, 4, 1, 2, "prterun-node1-4711@1")),
        (OPEN_MPI_4 | GIVEN, Place("mpirun", 3, 4, 1, 2, "1425276929", Address("10.0.0.1", 4000))),
        (MPICH, Place("mpiexec", 3, 4, 1, 2)),
        (SRUN, Place("srun", 3, 4, 1, 2, "17-0")),
        (SRUN | {"SLURM_RESTART_COUNT": "1"}, Place("srun", 3, 4, 1, 2, "17-0-1")),
        (TORCHRUN, Place("torchrun", 3, 4, 1, 2, "none-2-29500")),
        (KUBERNETES, Place("kubernetes", 1, 2, master=Address("toy-0.toy", 29500), is_host=True)),
        (KUBEFLOW, Place("kubeflow", 1, 2, master=Address("toy-node-0-0.toy", 29500), is_host=True)),
    ],
)
def test_every_launchers_place_is_found(environ: dict[str, str], place: Place) -> None:
    assert find_place(environ) == place


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (SRUN | OPEN_MPI_4, "mpirun"),
        (SRUN | MPICH, "mpiexec"),
        (SRUN | OPEN_MPI_4 | TORCHRUN, "torchrun"),
        (KUBEFLOW | TORCHRUN, "torchrun"),
    ],
)
def test_of_launchers_inside_each_other_the_inner_one_counts(environ: dict[str, str], launcher: str) -> None:
    place = find_place(environ)
    assert place is not None
    assert place.launcher == launcher


@pytest.mark.parametrize(
    "environ",
    [{}, SBATCH, GIVEN, {"RANK": "0", "WORLD_SIZE": "2"}, {"JOB_COMPLETION_INDEX": "1"}],
    ids=[
        "nothing",
        "an sbatch script itself",
        "an address alone",
        "no launcher known",
        "another Indexed Job",
    ],
)
def test_a_process_that_no_launcher_started_side_by_side_has_no_place(environ: dict[str, str]) -> None:
    assert find_place(environ) is None


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (
            OPEN_MPI_4 | {"OMPI_COMM_WORLD_RANK": "4"},
            "OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4",
        ),
        (OPEN_MPI_4 | {"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE is 'x', not a number"),
        (
            OPEN_MPI_4 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "9"},
            "is 1 of 9 on this host, but OMPI_COMM_WORLD_SIZE is 4",
        ),
        ({k: v for k, v in MPICH.items() if k != "PMI_SIZE"}, "mpiexec, but PMI_SIZE is missing"),
        ({k: v for k, v in TORCHRUN.items() if k != "LOCAL_RANK"}, "torchrun, but LOCAL_RANK is missing"),
        (SRUN | {"SLURM_NODEID": "2"}, "SLURM_STEP_TASKS_PER_NODE is '2(x2)', without node 2"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_STEP_TASKS_PER_NODE is 'many', without node 1"),
        (OPEN_MPI_4 | {"MASTER_ADDR": "10.0.0.1"}, "mpirun, but MASTER_PORT is missing"),
        (OPEN_MPI_4 | {"MASTER_PORT": "4000"}, "MASTER_PORT is set and MASTER_ADDR is not"),
        (KUBERNETES | {"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX is 2, but ECHELON_NODES is 2"),
        ({"JOB_COMPLETION_INDEX": "0", "ECHELON_NODES": "2"}, "kubernetes, but MASTER_ADDR is missing"),
    ],
)
def test_variables_that_cannot_be_right_are_named(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        find_place(environ)
    assert problem in str(caught.value)
    assert "--launcher local" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2]), ("", []), ("2(x)", [])],
)
def test_slurms_list_of_tasks_is_written_out(text: str, counts: list[int]) -> None:
    assert expand_tasks_per_node(text) == counts


def test_a_place_by_hand_needs_all_three_options() -> None:
    assert place_by_hand(2, 1, "10.0.0.1:29500") == Place(
        "by hand", 1, 2, master=Address("10.0.0.1", 29500), is_host=True
    )
    with pytest.raises(UserError, match="--node-rank, --master missing"):
        place_by_hand(2, None, None)
    with pytest.raises(UserError, match="--node-rank 2: with --nodes 2 it must be from 0 to 1"):
        place_by_hand(2, 2, "10.0.0.1:29500")


@pytest.mark.parametrize("text", ["10.0.0.1", ":29500", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "a:b"])
def test_a_master_that_is_no_address_and_port_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="it must be ADDR:PORT"):
        parse_address(text)


def test_an_address_of_ipv6_has_brackets() -> None:
    assert parse_address("[fd00::1]:80") == Address("fd00::1", 80)
    assert str(Address("fd00::1", 80)) == "[fd00::1]:80"


def test_threads_are_those_that_the_launcher_gave_or_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, parents = set(range(6)), set(range(6))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine if pid == 0 else parents)
    place = Place("mpirun", 0, 4, 0, 2)
    assert threads_for(place, {}) == 3, "two processes share six cores"
    parents = set(range(12))
    assert threads_for(place, {}) == 6, "the launcher bound the process to six of its cores"
    assert threads_for(Place("srun", 0, 4, 0, 2), {}) == 3, (
        "srun may bind all tasks of a job to the same cores"
    )
    assert threads_for(Place("srun", 0, 4, 0, 2), {"SLURM_CPUS_PER_TASK": "5"}) == 5
    assert threads_for(Place("kubernetes", 0, 2, is_host=True), {}) is None
    monkeypatch.setattr(site, "available_cores", lambda: 1)
    parents = mine
    assert threads_for(place, {}) == 1


VERTEX = {
    "cluster": {
        "workerpool0": ["training-workerpool0-a-0:2222"],
        "workerpool1": ["training-workerpool1-a-0:2222", "training-workerpool1-a-1:2222"],
    },
    "environment": "cloud",
    "task": {"type": "workerpool1", "index": 1},
    "job": "7",
}
TENSORFLOW = {
    "cluster": {"ps": ["p:1"], "worker": ["w0:1", "w1:1"], "chief": ["c:2222"]},
    "task": {"type": "worker", "index": 1},
}


def test_every_machine_of_a_vertex_job_is_a_host() -> None:
    place = find_place({"CLUSTER_SPEC": json.dumps(VERTEX), "TF_CONFIG": json.dumps(TENSORFLOW)})
    master = Address("training-workerpool0-a-0", 2222)
    assert place == Place("vertex", 2, 3, job="7", master=master, is_host=True)


@pytest.mark.parametrize(("role", "index", "rank"), [("chief", 0, 0), ("worker", 1, 2), ("ps", 0, 3)])
def test_a_tensorflow_cluster_is_ranked_by_role(role: str, index: int, rank: int) -> None:
    place = find_place({"TF_CONFIG": json.dumps({**TENSORFLOW, "task": {"type": role, "index": index}})})
    assert place is not None
    assert (place.rank, place.size, place.master) == (rank, 4, Address("c", 2222))


@pytest.mark.parametrize(
    "text", ["{}", '{"cluster": {"chief": ["c:1"]}, "task": {"type": "chief", "index": 0}}']
)
def test_a_machine_that_is_told_of_no_others_is_alone(text: str) -> None:
    assert find_place({"TF_CONFIG": text}) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"cluster": {"chief": 3}}',
        json.dumps({**TENSORFLOW, "task": {"type": "evaluator", "index": 0}}),
        json.dumps({**TENSORFLOW, "task": {"type": "worker", "index": 7}}),
        json.dumps({**TENSORFLOW, "cluster": {**TENSORFLOW["cluster"], "chief": ["no-port"]}}),  # type: ignore[dict-item]
    ],
)
def test_a_cluster_spec_that_cannot_be_right_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="CLUSTER_SPEC"):
        find_place({"CLUSTER_SPEC": text})
