"""The SSH keys of a cluster, made here: the user's, whose public half a provider gets, and the hosts' own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from echelon.errors import CloudError


def make_key(path: Path, comment: str) -> str:
    """The public key of the pair at `path`, which is made if it is missing."""
    public = path.with_name(f"{path.name}.pub")
    if not path.exists() or not public.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise CloudError("there is no `ssh-keygen` on this machine; install the OpenSSH client") from None
        except subprocess.CalledProcessError as error:
            raise CloudError(f"ssh-keygen could not make {path}: {error.stderr.strip()}") from None
    return public.read_text().strip()
