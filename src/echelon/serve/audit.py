"""The audit log: a line of JSON for each request, never its content, the answer or the token."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from echelon.errors import UserError

log = logging.getLogger("echelon.serve")
_LONGEST_PATH = 200


@dataclass
class Handled:
    """A request and its outcome, without any content."""

    method: str
    path: str
    """As it was sent, without the query."""
    client: str
    route: str = "other"
    """The path of its endpoint, or "other": clients can make up any number of paths."""
    token: str = ""
    """Its name; empty if it had none, or a wrong one."""
    status: int = 499
    """499: the client was gone before it was answered."""
    received_bytes: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0

    def to_json(self, now: datetime) -> str:
        return json.dumps(
            {
                "time": now.isoformat(timespec="milliseconds"),
                "token": self.token or None,
                "client": self.client,
                "method": self.method[:20],
                "path": self.path[:_LONGEST_PATH],
                "status": self.status,
                "received_bytes": self.received_bytes,
                "sent_bytes": self.sent_bytes,
                "seconds": round(self.seconds, 4),
            }
        )


class AuditLog:
    """Appends to a file that only its owner and group may read. What cannot be written is counted, and lost."""

    def __init__(self, path: Path) -> None:
        """UserError if the file cannot be opened."""
        self.path = path
        self.num_lost = 0
        self._is_cut = False
        """Whether the file ends in an incomplete line."""
        self._file = self._open()

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise UserError(f"--audit-log {self.path}: cannot be written: {error.strerror}") from None

    def reopen(self) -> None:
        """Reopen the file, if it was moved away."""
        file, self._file = self._file, self._open()
        os.close(file)
        self._is_cut = False

    def write(self, handled: Handled) -> None:
        line = f"{handled.to_json(datetime.now(UTC))}\n".encode()
        try:
            if self._is_cut:
                line = b"\n" + line
            self._is_cut = os.write(self._file, line) < len(line)
            if self._is_cut:
                raise OSError("the disk is full")
        except OSError as error:
            if not self.num_lost:
                log.error("%s: cannot be written (%s); the server keeps running", self.path, error)
            self.num_lost += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
