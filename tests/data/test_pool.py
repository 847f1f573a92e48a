from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from echelon.data.pool import ordered_map
from echelon.errors import DataError, EchelonError


def square_slowly(number: int) -> int:
    time.sleep(0.02 if number % 5 == 0 else 0)
    return number * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise DataError("three")
    return number


def die(number: int) -> int:
    os._exit(9)


def process_id(number: int) -> int:
    return os.getpid()


def has_sigint_blocked(number: int) -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def sleep_long(number: int) -> int:
    time.sleep(3600)  # longer than pytest waits
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers: int) -> None:
    with ordered_map(workers) as in_order:
        assert list(in_order(square_slowly, range(40))) == [n * n for n in range(40)]
        assert list(in_order(square_slowly, [])) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_than_a_few_items_are_in_memory(workers: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while taken < 100:
            taken += 1
            yield taken

    with ordered_map(workers) as in_order:
        for received, _ in enumerate(in_order(square_slowly, items()), start=1):
            assert taken - received <= 2 * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_error_of_a_worker_arrives(workers: int) -> None:
    with pytest.raises(DataError, match="three"), ordered_map(workers) as in_order:
        list(in_order(fail_at_three, range(10)))


def test_killed_worker_is_reported() -> None:
    with pytest.raises(EchelonError, match="was killed"), ordered_map(2) as in_order:
        list(in_order(die, range(3)))


def test_workers_never_see_ctrl_c_themselves() -> None:
    with ordered_map(2) as in_order:
        assert all(in_order(has_sigint_blocked, range(10)))
    assert not has_sigint_blocked(0), "this process must still see it"


def test_busy_workers_end_at_once_on_ctrl_c() -> None:
    pids: set[int] = set()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_long_work() -> None:
        with ordered_map(2) as in_order:
            pids.update(in_order(process_id, range(20)))
            threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
            list(in_order(sleep_long, range(6)))

    with pytest.raises(KeyboardInterrupt):
        interrupt_long_work()
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def large_result(size: int) -> bytes:
    return bytes(size)


def test_an_error_while_large_results_are_on_their_way_ends_the_workers() -> None:
    """A worker that ends halfway through sending a result must not be waited for."""

    def leave_while_results_come() -> None:
        with ordered_map(2) as in_order:
            next(in_order(large_result, [20_000_000] * 8))
            raise DataError("left")

    with pytest.raises(DataError, match="left"):
        leave_while_results_come()


def sleep_over(work: bytes) -> int:
    return sleep_long(len(work))


def test_an_error_while_large_work_is_on_its_way_ends_the_workers() -> None:
    """The pipe to the workers is full, and nobody reads it any more."""

    def items() -> Iterator[bytes]:
        for _ in range(4):
            yield bytes(2**22)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"), ordered_map(2) as in_order:
        list(in_order(sleep_over, items()))
