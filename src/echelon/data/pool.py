"""A parallel map over all cores that keeps order and holds only a few results in memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Protocol, TypeVar

from echelon.errors import EchelonError

Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Protocol):
    """The built-in `map`, or one that does the same in several processes."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]: ...


def map_here(function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
    """`map` in this process."""
    return map(function, items)


@contextmanager
def ordered_map(workers: int) -> Iterator[OrderedMap]:
    """A map over `workers` processes; in this process if `processes` is 1.

    Workers end with this process, however it ends, and at once if an exception leaves the block.
    """
    if workers == 1:
        yield map_here
        return
    context = multiprocessing.get_context("spawn")
    lifeline, held_end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(workers, context, _end_with_parent, (lifeline,))

    def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            with _sigint_blocked():
                waiting.append(executor.submit(function, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield map_in_order
        executor.shutdown()
    except BrokenProcessPool as error:
        raise EchelonError("a process of prepare was killed, perhaps because memory ran out") from error
    finally:
        held_end.close()
        _close_workers_ends(executor)
        executor.shutdown(cancel_futures=True)
        lifeline.close()


def _close_workers_ends(executor: ProcessPoolExecutor) -> None:
    """Close this process's copies of the workers' pipe ends.

    A worker that ends while it sends a result leaves half of it in the pipe, and one that ends while it is sent work
    leaves the pipe full. The executor would wait forever for the other half, or for room (in Debian's Python 3.11), as
    long as this process itself could write or read it. The ends lead to /dev/null instead of being closed, because the
    executor closes them in a thread of its own when a worker was killed, and would close a stranger's file.
    """
    results, calls = getattr(executor, "_result_queue", None), getattr(executor, "_call_queue", None)
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for end in (results and results._writer, calls and calls._reader):  # None after an orderly shutdown
            if end is not None and not end.closed:
                os.dup2(nowhere, end.fileno(), inheritable=False)
    finally:
        os.close(nowhere)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C: their parent ends them."""
    resource_tracker.ensure_running()  # it unblocks the signal when it starts, so it must not start below
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent(lifeline: Connection) -> None:
    """Exit when the parent's end of the pipe closes, even by kill -9."""

    def wait() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
