"""Workers that lose one of their group, and form another, in real processes."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.pupils import run_workers
from torch import Tensor

from echelon.comm.group import Group, abandon, join_group
from echelon.comm.sockets import Sockets
from echelon.errors import LostGroupError

_TIMEOUT_S = 30.0
"""Of a collective: a worker must not need it to notice a loss."""


def join(rank: int, size: int, port: int, sockets: Sockets) -> Group:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return join_group(_TIMEOUT_S, sockets=sockets)


def sum_of(group: Group, *, channel: bool = False) -> float:
    total = torch.tensor([float(group.rank + 1)])
    (group.channel() if channel else group).all_reduce(total)
    return total.item()


def lose_the_last(ports: list[int], group: Group) -> dict[str, Tensor]:
    """Worker 2 of three leaves. Worker 1 waits for it, and worker 0 for worker 1, which never sends."""
    dist.destroy_process_group()
    rank, sockets = group.rank, Sockets()
    first = join(rank, 3, ports[0], sockets)
    side = first.channel()
    sums = [sum_of(first)]
    if rank == 2:
        abandon(sockets)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return {"sums": torch.tensor(sums)}
    with pytest.raises(LostGroupError) as lost:
        side.start_receive(torch.zeros(4), source=rank + 1).wait()
    assert "timed out" not in str(lost.value).lower()
    abandon(sockets)
    second = join(rank, 2, ports[1], sockets)
    return {"sums": torch.tensor([*sums, sum_of(second), sum_of(second, channel=True)])}


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def test_those_that_are_left_notice_at_once_and_form_another_group(tmp_path: Path) -> None:
    results = run_workers(functools.partial(lose_the_last, free_ports(2)), 3, tmp_path)
    assert [result["sums"].tolist() for result in results] == [[6, 3, 3], [6, 3, 3], [6]]


def test_only_the_sockets_of_the_group_are_shut_down() -> None:
    sockets = Sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, sockets.opening():
        own = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        other_accepted, _ = server.accept()
    sockets.shut_down()
    with own, accepted, other, other_accepted:
        assert accepted.recv(1) == b""
        other.sendall(b"x")
        assert other_accepted.recv(1) == b"x"
