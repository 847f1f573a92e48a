"""The control groups of this process, which set the limits of containers and jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

Read = Callable[[Path], str | None]
"""Returns a file's text, None if it is missing."""

_GROUPS = Path("/sys/fs/cgroup")


def groups_of(controller: str, read: Read) -> Iterator[Path]:
    """Folders of this process's groups and of all above them, of cgroup v1 and v2: any of them may set a limit."""
    for line in (read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [_GROUPS, _GROUPS / "unified"]
        else:
            roots = [_GROUPS / controller] if controller in controllers.split(",") else []
        for root in roots:
            group = root / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def read_text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
