"""The connections of a group, which torch opens and gives no handle to."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def can_list_sockets() -> bool:
    """Whether this system tells which sockets a process has: Linux does."""
    return _DESCRIPTORS.is_dir()


class Sockets:
    """Records the sockets that are opened for a group, so that they can be shut down."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._before: set[str] | None = None
        """The sockets that existed before the ones being opened now."""

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Sockets opened inside belong to the group. Meanwhile only the main thread may open connections."""
        self._before = set(_find_sockets())
        try:
            yield
        finally:
            self._names |= set(_find_sockets()) - self._before
            self._before = None

    def shut_down(self) -> None:
        """End the group's connections; any thread may call this. Reading from them, here or at their other ends, then
        fails. torch still has to close them."""
        before = self._before
        for name, descriptor in _find_sockets().items():
            if name in self._names or (before is not None and name not in before):
                with contextlib.suppress(OSError):
                    _shut_down(name, descriptor)


def _shut_down(name: str, descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        # Another thread may have closed the descriptor meanwhile, and something else may have its number.
        is_same = os.readlink(_DESCRIPTORS / str(connection.fileno())) == name
        if is_same and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()  # raises for a socket that listens: gloo would end the process
            connection.shutdown(socket.SHUT_RDWR)


def _find_sockets() -> dict[str, int]:
    """This process's sockets: the kernel's names for them, and their descriptors."""
    found: dict[str, int] = {}
    if can_list_sockets():
        for entry in _DESCRIPTORS.iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(entry)
                if name.startswith("socket:"):
                    found[name] = int(entry.name)
    return found
