"""The hosts of a run, written into its folder, so that any later command finds them again.

It says what to run where, so only one that this user's own run has written, or that they have accepted, is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from echelon.agent.spec import HostSpec
from echelon.cluster.host_session import HostSession
from echelon.errors import RunError
from echelon.launch.ray_cluster import NodesElsewhere, RayPlace
from echelon.launch.ssh import Remote
from echelon.launch.trust import digest_of, is_trusted, trust
from echelon.runfolder import RunFolder, read_file, write_atomically


@dataclass(frozen=True)
class RosterEntry:
    """One host: how to reach it, and its Python with Echelon."""

    host: HostSpec
    python: tuple[str, ...]
    sees_our_folder: bool


@dataclass(frozen=True)
class Roster:
    """All hosts of a run, in the order of their numbers."""

    launcher: str
    """The machine whose view `sees_our_folder` is."""
    ssh_config: str | None
    entries: tuple[RosterEntry, ...]
    is_shared: bool = False
    """Whether all hosts see one run folder."""
    container: str | None = None
    """The image in whose containers the agents run."""
    ray: RayPlace | None = None
    """Where to find the hosts if they are nodes of a Ray cluster."""


_ROSTER = TypeAdapter(Roster)


def write_roster(
    run: RunFolder,
    sessions: Sequence[HostSession],
    launcher: str,
    ssh_config: Path | None,
    *,
    is_shared: bool = False,
    container: str | None = None,
    ray: RayPlace | None = None,
) -> None:
    """Write the hosts down."""
    entries = tuple(
        RosterEntry(session.spec, session.python, session.sees_our_folder) for session in sessions
    )
    roster = Roster(launcher, str(ssh_config) if ssh_config else None, entries, is_shared, container, ray)
    content = _ROSTER.dump_json(roster, indent=2)
    write_atomically(run.hosts, content)
    with contextlib.suppress(RunError):  # then later commands want --trust-hosts
        trust(digest_of(content))


def trust_roster(run: RunFolder) -> None:
    """Accept the hosts that are written in a run folder, as they are now."""
    try:
        trust(digest_of(read_file(run.hosts)))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{run.hosts}: cannot be read: {error.strerror}") from None


def read_roster(run: RunFolder) -> Roster | None:
    """The run's hosts; None for a run on one machine. RunError if another user wrote them."""
    try:
        content = read_file(run.hosts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{run.hosts}: cannot be read: {error.strerror}") from None
    if not is_trusted(content):
        raise RunError(
            f"{run.hosts}: says what to run on which hosts, and no run that you started wrote it on this machine; "
            "look at it and, if it is right, use --trust-hosts"
        )
    try:
        return _ROSTER.validate_json(content)
    except ValueError:
        raise RunError(f"{run.hosts}: is damaged; start the run again with --hosts") from None


@contextlib.contextmanager
def open_sessions(roster: Roster) -> Iterator[list[HostSession]]:
    """Connections to the run's hosts, made when they are needed, and closed at the end."""
    config = Path(roster.ssh_config) if roster.ssh_config else None
    with contextlib.ExitStack() as stack:
        connect: Callable[[str], Remote] = partial(Remote, config=config)
        if roster.ray is not None:
            connect = stack.enter_context(contextlib.closing(NodesElsewhere(roster.ray))).remote
        yield [
            HostSession(
                number,
                stack.enter_context(connect(entry.host.name)),
                entry.python,
                entry.host,
                entry.sees_our_folder,
            )
            for number, entry in enumerate(roster.entries)
        ]
