"""What a lab needs of the machine."""

from __future__ import annotations

import os
import shutil
import sys

from echelon.errors import UserError

_PACKAGES = {
    "iproute2": ("ip", "tc"),
    "util-linux": ("unshare", "nsenter", "setsid"),
    "mount": ("mount", "umount"),
    "openssh-server": ("sshd",),
    "openssh-client": ("ssh", "ssh-keygen"),
}
"""Programs by the Debian package that has them."""


def search_path() -> str:
    """PATH with the folders of system programs, which a user's PATH may lack."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def find_program(name: str) -> str:
    """A program's path; UserError if it is missing."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise UserError(_format_missing([name]))
    return found


def check_machine() -> None:
    """UserError if this machine cannot have a lab; it names everything that is missing."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"the lab needs Linux: its hosts are Linux namespaces, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise UserError("the lab needs root, to make network namespaces; run it with sudo")
    programs = [program for programs in _PACKAGES.values() for program in programs]
    missing = [program for program in programs if shutil.which(program, path=search_path()) is None]
    if missing:
        raise UserError(_format_missing(missing))


def _format_missing(missing: list[str]) -> str:
    packages = [package for package, programs in _PACKAGES.items() if set(programs) & set(missing)]
    return f"the lab needs {', '.join(missing)}; on Debian: apt-get install {' '.join(packages)}"
