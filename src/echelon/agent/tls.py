"""TLS around the agents' connections, if the run was started with --tls.

Every start of a run has an authority of its own (cluster/authority.py), which signs one certificate for each host and
is then forgotten. Both ends of a connection show theirs, so who has none is sent away before a message is read, and a
host cannot speak in another's name. Messages and their proofs stay as they are (wire.py).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Credentials:
    """One host's certificate and key, and the authority that it checks others with; in PEM."""

    authority: str
    certificate: str
    key: str = field(repr=False)


def host_identity(number: int) -> str:
    """The name in a certificate."""
    return f"host-{number}.echelon"


class Tls:
    """One host's side of all its connections."""

    def __init__(self, credentials: Credentials) -> None:
        self._calling = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        self._called = _context(ssl.PROTOCOL_TLS_SERVER, credentials)

    async def call(self, writer: asyncio.StreamWriter, called: int) -> None:
        """Encrypt a connection to host `called`; OSError if it does not show that host's certificate."""
        await writer.start_tls(self._calling, server_hostname=host_identity(called))

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        """Encrypt a connection from another host; OSError if it has no certificate of the run."""
        await writer.start_tls(self._called)


def is_from(writer: asyncio.StreamWriter, caller: int) -> bool:
    """Whether an encrypted connection comes from the host that its caller says it is."""
    shown = (writer.get_extra_info("peercert") or {}).get("subjectAltName", ())
    return ("DNS", host_identity(caller)) in shown


def _context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.authority)
    # Python's ssl reads keys from files only; this one has no name and is never on a disk.
    descriptor = os.memfd_create("echelon-certificate")
    with open(descriptor, "w") as file:
        file.write(credentials.certificate + credentials.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context
