"""Which tests share a process when pytest-xdist runs them side by side.

`xdist_group` marks would say it too, but pytest-xdist 3.8 ignores them without a word under pytest 9.2
(https://github.com/pytest-dev/pytest-xdist/issues/1386): every process made every file's fixtures, and labs disturbed
each other.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

TOGETHER = ("lab",)
"""Folders whose files share costly fixtures; in `lab` hosts also take turns, so as not to slow each other down."""
LONG = ("lab", "integration")
"""Folders with the longest tests. They begin first, so that no process is left with them when the others are done."""


def group_of(test: str) -> str:
    """The file of a test, or its folder if the whole folder stays together."""
    file = PurePosixPath(test.partition("::")[0])
    return str(file.parent if file.parent.name in TOGETHER else file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: (*LONG, item.path.parent.name).index(item.path.parent.name))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist=loadgroup`, send the tests of a group to one process, in the order in which they were collected."""
    if config.getvalue("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
