"""What is run on a host that trains in a container."""

from __future__ import annotations

from pathlib import Path

from echelon.agent.spec import HostSpec
from echelon.cluster.boxes import render_box
from echelon.cluster.starting import Seat
from echelon.launch.container import DockerHost, container_name
from echelon.launch.ssh import Remote


def test_a_hosts_container_is_started_with_exactly_this() -> None:
    seat = Seat(1, Remote("gpu2"), (), HostSpec("gpu2", "10.0.0.2", "eth0", 4), sees_our_folder=False)
    host = DockerHost(uid=1000, gid=100, gpus=4, folders=frozenset())
    run, data = Path("/home/ann/runs/base"), Path("/home/ann/cache/prepared/abc")
    assert render_box("echelon:1", seat, run, data, host) == [
        *("docker", "run", "--rm", "--detach", "--init", "--pull=never"),
        f"--name={container_name(run, 1)}",
        "--network=host",
        "--ipc=host",
        *("--ulimit=memlock=-1", "--ulimit=stack=67108864"),
        "--user=1000:100",
        "--gpus=all",
        f"--mount=type=bind,source={run},target={run}",
        f"--mount=type=bind,source={data},target={data}",
        "--env=HOME=/tmp",
        "--env=SSH_CONNECTION",
        "--entrypoint=python3",
        "echelon:1",
        *("-m", "echelon.agent", "stay", str(run), "1"),
    ]
