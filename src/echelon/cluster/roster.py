"""The hosts of a run, written into its folder, so that any later command finds them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from echelon.agent.spec import HostSpec
from echelon.cluster.starting import Seat
from echelon.errors import RunError
from echelon.launch.ssh import Remote
from echelon.runfolder import RunFolder, write_atomically


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


_ROSTER = TypeAdapter(Roster)


def write_roster(run: RunFolder, seats: Sequence[Seat], launcher: str, ssh_config: Path | None) -> None:
    """Note the hosts down."""
    entries = tuple(RosterEntry(seat.spec, seat.python, seat.sees_our_folder) for seat in seats)
    roster = Roster(launcher, str(ssh_config) if ssh_config else None, entries)
    write_atomically(run.hosts, _ROSTER.dump_json(roster, indent=2))


def read_roster(run: RunFolder) -> Roster | None:
    """The run's hosts; None for a run on one machine."""
    try:
        return _ROSTER.validate_json(run.hosts.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise RunError(f"{run.hosts}: is damaged; start the run again with --hosts") from None


def open_seats(roster: Roster) -> list[Seat]:
    """Connections to the run's hosts, made when they are needed."""
    config = Path(roster.ssh_config) if roster.ssh_config else None
    return [
        Seat(number, Remote(entry.host.name, config), entry.python, entry.host, entry.sees_our_folder)
        for number, entry in enumerate(roster.entries)
    ]
