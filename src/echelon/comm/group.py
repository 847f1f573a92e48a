"""Workers that act together. One process is a group of size 1; there is no other special case.

What goes over the wire is tensors and JSON, never pickles.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from echelon.comm.sockets import Sockets
from echelon.errors import LostGroupError
from echelon.monitor.heartbeat import Heart

_NEWS = "echelon/news"
_DONE = "echelon/done/"
FOR_EVER = timedelta(days=365)


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> object: ...


@dataclass(frozen=True)
class Sharers:
    """The workers that see one run folder: all of a group, or those of one host if hosts share no folder."""

    rank: int
    """This worker's place among them."""
    size: int


class Group:
    """`size` workers, of which this process is number `rank`. All methods but the properties are collective.

    The heart tells the launcher when this worker waits for others; what works on its own beats it as it goes.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        heart: Heart | None = None,
        sharers: Sharers | None = None,
        *,
        connections: dist.ProcessGroup | None = None,
        store: Any = None,
        timeout: timedelta | None = None,
        sockets: Sockets | None = None,
    ) -> None:
        """`connections` are torch's default ones unless said otherwise; the store is what they were made with,
        `timeout` how long a collective over those that are made of them may take, and `sockets` an account of them."""
        self.rank = rank
        self.size = size
        self.heart = heart or Heart()
        self.sharers = sharers or Sharers(rank, size)
        self._connections = connections
        self._store = store
        self._timeout = timeout
        self._sockets = sockets or Sockets()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def keeps_folder(self) -> bool:
        """Whether this worker looks after its run folder, for all that see the same one."""
        return self.sharers.rank == 0

    @property
    def folder_keeper(self) -> int:
        """The rank of the worker that looks after this one's run folder."""
        return self.rank - self.sharers.rank

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over the workers, in place."""
        if self.size > 1:
            with waiting_for_others(self.heart):
                dist.all_reduce(tensor, group=self._connections)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        """Begin to sum `tensor` in place; it must not be touched before `wait()` has returned."""
        assert self.size > 1, "a group of one has nothing to reduce"
        with noticing_loss():
            work: Pending | None = dist.all_reduce(tensor, group=self._connections, async_op=True)
        assert work is not None
        return _WatchedWork(work, self.heart)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """The `source` worker's `tensor` everywhere, in place."""
        if self.size > 1:
            with waiting_for_others(self.heart):
                dist.broadcast(tensor, group=self._connections, group_src=source)

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Row i goes to worker i; returns what came, a row from each worker."""
        return self._swap(list(rows))

    def all_gather(self, row: Tensor) -> Tensor:
        """Every worker's row, one below the other."""
        return self._swap([row[0]] * self.size)

    def _swap(self, rows: list[Tensor]) -> Tensor:
        """Everything at once in both directions: gloo's own collectives take turns, and leave the line half empty."""
        received = rows[0].new_empty((self.size, len(rows[0])))
        received[self.rank] = rows[self.rank]
        operations = []
        for other in range(self.size):
            if other != self.rank:
                operations += [
                    dist.P2POp(dist.irecv, received[other], group=self._connections, group_peer=other),
                    dist.P2POp(dist.isend, rows[other], group=self._connections, group_peer=other),
                ]
        with waiting_for_others(self.heart):
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        return received

    def swap(self, outgoing: Iterable[tuple[int, Tensor]], incoming: Iterable[tuple[int, Tensor]]) -> None:
        """Send tensors to workers and fill others with what comes from them, everything at once.

        What goes from one worker to another stands in the same order with both of them. Empty tensors do not travel.
        """
        operations: list[dist.P2POp] = []
        for deed, tensors in ((dist.isend, outgoing), (dist.irecv, incoming)):
            tags: Counter[int] = Counter()
            for other, tensor in tensors:
                if tensor.numel():
                    operations.append(
                        dist.P2POp(deed, tensor, group=self._connections, group_peer=other, tag=tags[other])
                    )
                    tags[other] += 1
        if operations:
            with waiting_for_others(self.heart):
                for work in dist.batch_isend_irecv(operations):
                    work.wait()

    def broadcast_tensors(
        self, tensors: Mapping[str, Tensor], source: int, device: torch.device
    ) -> dict[str, Tensor]:
        """The `source` worker's tensors everywhere, whatever they are; the others pass anything."""
        mine = dict(tensors) if self.rank == source else {}
        layout = {name: [str(tensor.dtype).partition(".")[2], *tensor.shape] for name, tensor in mine.items()}
        for name, (dtype, *shape) in self.broadcast_json(layout, source).items():
            if self.rank != source:
                # An optimiser's step count stays on the CPU, its long vectors lie beside the weights.
                place = device if shape else None
                mine[name] = torch.empty(shape, dtype=getattr(torch, dtype), device=place)
            self.broadcast(mine[name], source)
        return mine

    def start_send(self, tensor: Tensor, to: int, tag: int = 0) -> Pending:
        """Begin to send to one worker, which must receive with the same tag; not collective."""
        with noticing_loss():
            work = dist.isend(tensor, group=self._connections, group_dst=to, tag=tag)
        assert work is not None
        return _WatchedWork(work, self.heart)

    def start_receive(self, tensor: Tensor, source: int, tag: int = 0) -> Pending:
        """Begin to fill `tensor` with what one worker sends; not collective."""
        with noticing_loss():
            work = dist.irecv(tensor, group=self._connections, group_src=source, tag=tag)
        assert work is not None
        return _WatchedWork(work, self.heart)

    def receive_from_any(self, tensor: Tensor, tag: int = 0) -> int:
        """Fill `tensor` with what the first worker sends that does; its rank. Not collective."""
        with waiting_for_others(self.heart):
            work = dist.irecv(tensor, group=self._connections, tag=tag)
            assert work is not None
            work.wait()
        return work._source_rank()

    def channel(self, heart: Heart | None = None) -> Group:
        """The same workers over connections of their own, for collectives beside this group's.

        Only what waits in the main thread may have the heart: it counts collectives one after the other.
        """
        return self._among(list(range(self.size)), heart)

    def part(self, parts: list[list[int]], heart: Heart | None = None) -> Group:
        """This worker's part of the group, of which every worker names all parts alike."""
        return self._among(next(ranks for ranks in parts if self.rank in ranks), heart)

    def of_hosts(self, hosts: Collection[int]) -> Group | None:
        """The workers of some hosts, which are counted in the order of their ranks; None for a worker of another."""
        host_of = list(itertools.accumulate(int(local_rank == 0) for local_rank in self.local_ranks()))
        ranks = [rank for rank, host in enumerate(host_of) if host - 1 in hosts]
        if len(ranks) == self.size:
            return self
        if self.rank not in ranks:
            return None
        is_shared = self.sharers.size == self.size
        sharers = Sharers(ranks.index(self.rank), len(ranks)) if is_shared else self.sharers
        return self._among(ranks, self.heart, sharers)

    def _among(self, ranks: list[int], heart: Heart | None, sharers: Sharers | None = None) -> Group:
        """These workers, this one among them, over connections of their own; no other takes part.

        torch names connections that the rest of its world knows nothing of after their ranks and the number of those
        that a process has: all workers of a group must make as many, so one that is alone makes some too.
        """
        world = dist.get_process_group_ranks(self._connections)
        with noticing_loss(), self._sockets.opening():
            connections = dist.new_group(
                [world[rank] for rank in ranks], timeout=self._timeout, use_local_synchronization=True
            )
        place = ranks.index(self.rank)
        return Group(
            place,
            len(ranks),
            heart,
            sharers,
            connections=connections,
            store=self._store,
            timeout=self._timeout,
            sockets=self._sockets,
        )

    def local_ranks(self) -> list[int]:
        """Every worker's number on its host, as launchers tell it, in rank order, everywhere."""
        return self.gather_json(int(os.environ.get("LOCAL_RANK", "0")))

    def tell(self, news: str) -> None:
        """Wake those that wait in `await_news`; not collective."""
        if self._store is not None:
            self._store.set(_NEWS, news)

    def await_news(self) -> str:
        """What another worker tells, however long that takes; not collective."""
        assert self._store is not None, "a group of one has nobody to wait for"
        with waiting_for_others(self.heart):
            self._store.wait([_NEWS], FOR_EVER)
        return str(self._store.get(_NEWS).decode())

    def await_first(self, deed: str) -> None:
        """Return when the first worker has come this far, however long its `deed` takes, which is done only once."""
        if self.size == 1:
            return
        assert self._store is not None, "only groups of a launcher's making have a store"
        with waiting_for_others(self.heart):
            if self.is_first:
                self._store.set(_DONE + deed, "")
            else:
                self._store.wait([_DONE + deed], FOR_EVER)

    def barrier(self) -> None:
        """Return when every worker has come this far."""
        self.agree(False)

    def agree(self, vote: bool) -> bool:
        """Whether any worker voted yes: the same answer everywhere, so that no worker leaves a loop alone."""
        votes = torch.tensor([int(vote)])
        self.all_reduce(votes)
        return bool(votes.item())

    def gather_json(self, value: Any) -> list[Any]:
        """Every worker's value, in rank order, everywhere."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(data)
        self.all_reduce(lengths)
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        padded[: len(data)] = data
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with waiting_for_others(self.heart):
            dist.all_gather(parts, padded, group=self._connections)
        sizes = lengths.tolist()
        return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]

    def broadcast_json(self, value: Any, source: int = 0) -> Any:
        """The `source` worker's value everywhere; the others pass anything."""
        return self.gather_json(value if self.rank == source else None)[source]


@contextlib.contextmanager
def noticing_loss() -> Iterator[None]:
    """A collective fails if another worker dies: gloo, the store and torch all raise RuntimeErrors."""
    try:
        yield
    except RuntimeError as error:
        raise LostGroupError(f"the connection to the other workers is lost: {error}") from error


@contextlib.contextmanager
def waiting_for_others(heart: Heart) -> Iterator[None]:
    """A collective in which this worker waits."""
    with heart.waiting(), noticing_loss():
        yield


class _WatchedWork:
    """A collective under way, which the launcher sees when it is waited for."""

    def __init__(self, work: Pending, heart: Heart) -> None:
        self._work = work
        self._heart = heart

    def wait(self) -> object:
        with waiting_for_others(self._heart):
            return self._work.wait()


def join_group(timeout_s: float, heart: Heart | None = None, sockets: Sockets | None = None) -> Group:
    """The group this process was started into, from the environment that torchrun also sets.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who and where. ECHELON_STORE_FD, for rank 0, is a
    listening socket made by the launcher: the store then listens on that socket's address only, while TCPStore
    by itself would listen on every address of the machine. ECHELON_FOLDER is "own" if this host's workers have
    a run folder to themselves.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group(0, 1, heart)
    heart, sockets = heart or Heart(), sockets or Sockets()
    rank, timeout = int(os.environ["RANK"]), timedelta(seconds=timeout_s)
    listen = os.environ.get("ECHELON_STORE_FD")
    with waiting_for_others(heart), sockets.opening():
        store = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            size,
            is_master=rank == 0,
            timeout=timeout,
            master_listen_fd=int(listen) if listen and rank == 0 else None,
            use_libuv=True,
        )
        # Sums of loss and votes, and all JSON, are of CPU tensors even if gradients lie on a GPU.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return Group(rank, size, heart, _find_sharers(), store=store, timeout=timeout, sockets=sockets)


def abandon(sockets: Sockets) -> None:
    """Leave a group that has lost a worker, however far it has been joined; this process can then join another.

    Collectives under way fail, here and at the other workers, who may be waiting for this one rather than for the one
    that was lost. gloo has no other way to end them.
    """
    sockets.shut_down()
    if dist.is_initialized():
        dist.destroy_process_group()


def _find_sharers() -> Sharers | None:
    if os.environ.get("ECHELON_FOLDER") != "own":
        return None
    return Sharers(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
