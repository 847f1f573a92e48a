"""How processes that a site's launcher started find each other: by files in the run folder, which they share.

runs/NAME/rendezvous/LAUNCHER-JOB/
  invitation.json      where process 0 listens, and a secret that shows who has read it
  host-RANK.json       the addresses of another host, so that process 0 knows which network interface leads there
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import RunError, UserError
from echelon.launch.interfaces import (
    LOOPBACK,
    interface_named,
    interface_towards,
    is_loopback,
    own_interfaces,
    resolve,
)
from echelon.launch.site import Address, Place
from echelon.runfolder import RunFolder, read_json, write_json

RENDEZVOUS_HINT = (
    "put the run folder (--run) where all hosts see it, or set MASTER_ADDR and MASTER_PORT to an address and a free "
    "port of process 0's host"
)
_INVITATION = "invitation.json"
_POLL_S = 0.2


@dataclass(frozen=True)
class Invitation:
    """Where process 0 listens, and the secret by which it and the others know each other."""

    address: Address
    secret: str = ""

    @property
    def fingerprint(self) -> str:
        """Tells invitations apart without telling the secret."""
        return hashlib.sha256(b"invitation " + self.secret.encode()).hexdigest()


class RendezvousFolder:
    """The files of one start of a run."""

    def __init__(self, run: RunFolder, place: Place) -> None:
        self._run = run
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{place.launcher}-{place.job}".strip("-"))
        self.folder = run.rendezvous / name

    @contextlib.contextmanager
    def invite(self, address: Address) -> Iterator[Invitation]:
        """Say where process 0 listens for as long as this lasts; it leaves no empty run folder behind."""
        invitation = Invitation(address, secrets.token_hex(16))
        note = {"host": address.host, "port": address.port, "secret": invitation.secret}
        self._pin(_INVITATION, note)
        try:
            yield invitation
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            for folder in (self._run.rendezvous, self._run.path):
                with contextlib.suppress(OSError):  # not empty
                    folder.rmdir()

    def find(self) -> Invitation | None:
        """The current invitation."""
        note = self._read(_INVITATION)
        match note:
            case {"host": str(host), "port": int(port), "secret": str(secret)}:
                return Invitation(Address(host, port), secret)
        return None

    def announce_host(self, rank: int) -> None:
        """Tell process 0 how this host is reached."""
        addresses = [
            interface.address for interface in own_interfaces() if not is_loopback(interface.address)
        ]
        self._pin(f"host-{rank}.json", {"name": socket.gethostname(), "addresses": addresses})

    def wait_for_another_host(self, limit_s: float) -> list[str]:
        """Addresses of a host that is not this one, its name's first; UserError if none announces itself."""
        own = {interface.address for interface in own_interfaces()}
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for name in self._names():
                match self._read(name) if name.startswith("host-") else None:
                    case {"name": str(host), "addresses": [*addresses]} if not own.issuperset(addresses):
                        return [*_by_name(host), *(str(a) for a in addresses if a not in own)]
            time.sleep(_POLL_S)
        raise UserError(
            f"no other host has written into {self.folder} within {limit_s:.0f} seconds; {RENDEZVOUS_HINT}"
        )

    def _pin(self, name: str, note: dict[str, Any]) -> None:
        self._run.refuse_links()  # or the secret would go elsewhere, and what is there be removed
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # anyone who knows the secret may take part
            write_json(self.folder / name, note)
        except OSError as error:
            raise RunError(
                f"{self.folder}: cannot be written: {error.strerror}; choose another folder with --run"
            ) from None

    def _names(self) -> list[str]:
        # Listing also makes a network file system look again for files that it has not found before.
        try:
            return sorted(os.listdir(self.folder))
        except OSError:
            return []

    def _read(self, name: str) -> Any:
        if name not in self._names():
            return None
        try:
            return read_json(Path(self.folder / name))
        except (OSError, ValueError):
            return None


def _by_name(host: str) -> list[str]:
    """The address that this host's name service has for another: the one that the site intends."""
    try:
        address = resolve(host)
    except UserError:
        return []
    own = {interface.address for interface in own_interfaces()}
    return [] if is_loopback(address) or address in own else [address]


def address_for_others(place: Place, folder: RendezvousFolder, limit_s: float) -> str:
    """This host's address at which the other processes reach it, if no MASTER_ADDR says so."""
    if place.has_one_host:
        return LOOPBACK
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        return interface_named(chosen).address
    problems = []
    for address in folder.wait_for_another_host(limit_s):
        try:
            return interface_towards(address).address
        except UserError as error:
            problems.append(str(error))
    raise UserError(
        f"{'; '.join(problems)}; set MASTER_ADDR and MASTER_PORT to an address of this host that the others reach"
    )
