"""Which files that say what to run are this user's own: a run folder may come from anyone, and its hosts.json too.

~/.echelon/rosters/SHA256      an empty file for each that a run of this user's has written, or that they accepted
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from echelon.errors import RunError


def digest_of(content: bytes) -> str:
    """The SHA-256 by which a file is known, wherever it is."""
    return hashlib.sha256(content).hexdigest()


def trust(digest: str) -> None:
    """Trust a file from now on; RunError if that cannot be recorded."""
    note = _note(digest)
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.touch()
    except OSError as error:
        raise RunError(f"{note}: cannot be made: {error.strerror}") from None


def is_trusted(content: bytes) -> bool:
    return _note(digest_of(content)).exists()


def _note(digest: str) -> Path:
    return Path.home() / ".echelon" / "rosters" / digest
