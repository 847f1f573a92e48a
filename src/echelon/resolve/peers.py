"""What resolving "auto" needs of the group of workers."""

from __future__ import annotations

from typing import Any, Protocol


class Peers(Protocol):
    """A group of workers, as comm/group.py's Group is one; that needs torch. All methods are collective."""

    @property
    def is_first(self) -> bool: ...

    @property
    def keeps_folder(self) -> bool: ...

    def agree(self, vote: bool) -> bool: ...

    def barrier(self) -> None: ...

    def gather_json(self, value: Any) -> list[Any]: ...

    def broadcast_json(self, value: Any, source: int = 0) -> Any: ...

    def local_ranks(self) -> list[int]: ...


def count_hosts(peers: Peers) -> int:
    """Hosts of the group, from what launchers tell every worker. Collective."""
    return peers.local_ranks().count(0)
