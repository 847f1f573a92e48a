"""`python -m tests.own_ray FOLDER`: a Ray cluster on loopback addresses, told what to do by lines on stdin.

    add ADDRESS CPUS     another node; answers `added ADDRESS`
    kill ADDRESS         its raylet dies as if its machine were switched off; answers `killed ADDRESS`

The first line that it prints is the address of the head, 127.0.0.2, which has no cores to train on. It ends, with all
that it has started, when its input does. A process of its own: the warnings and threads of `ray` stay out of pytest.
"""

from __future__ import annotations

import inspect
import os
import socket
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_gcs_server_port_wait_time_s": "240",
    "RAY_worker_register_timeout_seconds": "240",
}

import ray._private.node
import ray._private.services
import ray._private.utils
from ray.cluster_utils import Cluster

_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
_start_raylet = ray._private.services.start_raylet
_SIGNATURE = inspect.signature(_start_raylet)


def start_raylet(*arguments: Any, **settings: Any) -> Any:
    """Start a raylet whose helpers' ports are known beforehand.

    It would wait for them for 15 seconds, which cannot be set, and die: too short if the machine is busy.
    """
    bound = _SIGNATURE.bind(*arguments, **settings)
    given = bound.arguments
    for name in _PORTS:
        given[name] = given.get(name) or _free_port()
        Path(given["session_dir"], f"{name}_{given['node_id']}").write_text(str(given[name]))
    return _start_raylet(*bound.args, **bound.kwargs)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main(folder: str) -> None:
    ray._private.services.start_raylet = start_raylet
    ray._private.utils.write_ray_address = lambda *_, **__: False  # "auto" shall not find this cluster
    node: Any = ray._private.node.Node
    node.start_api_server = lambda *_, **__: None  # no dashboard
    common: dict[str, Any] = {"object_store_memory": 80_000_000, "include_log_monitor": False}
    head = {**common, "num_cpus": 0, "node_ip_address": "127.0.0.2", "no_monitor": True, "temp_dir": folder}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[str, Any] = {}
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            match line.split():
                case ["add", address, cpus]:
                    nodes[address] = cluster.add_node(
                        **common, num_cpus=int(cpus), node_ip_address=address, temp_dir=folder
                    )
                    print(f"added {address}", flush=True)
                case ["kill", address]:
                    nodes.pop(address).kill_raylet(check_alive=True)
                    print(f"killed {address}", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
