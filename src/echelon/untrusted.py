"""Text that someone else wrote: how it is shown without harm, and what may go into other programs' files and commands.

Run folders, hosts, recipes and cluster files may come from anyone. What they hold reaches a terminal, an ssh
configuration, a shell or a YAML file through the functions here, or not at all.
"""

from __future__ import annotations

import re

_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline: with ESC and CSI begin terminal commands
    "\u2028-\u202e\u2066-\u2069"  # line separators, and marks that show the text after them in another order
    "\ud800-\udfff]"  # halves of a character, which no terminal and no file takes
)


def printable(text: str) -> str:
    r"""The text with every character that a terminal would act on as its number, `\u001b`. JSON stays JSON."""
    return _HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


# What may be named, as parts of patterns. None begins with a dash, which programs would read as an option, and none has
# a character that a shell, an ssh configuration or YAML reads as its own.
USER = r"[A-Za-z0-9_][A-Za-z0-9_.\\-]*"
"""`DOMAIN\\user` too, so that it is quoted wherever it goes into a shell."""
HOST = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
IPV6 = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?"
_CLUSTER = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")
_LINUX_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_HOST = re.compile(f"{HOST}|{IPV6}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_JUMP = re.compile(rf"(?:[A-Za-z_][A-Za-z0-9_.-]{{0,31}}@)?{HOST}(?::[0-9]{{1,5}})?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,510}")


def require_cluster(text: str) -> str:
    """The name of a cluster, which is a folder, a tag and the beginning of host names; ValueError otherwise."""
    return _require(_CLUSTER, text, "2 to 32 small letters, digits and hyphens, beginning with a letter")


def is_cluster(text: str) -> bool:
    """Whether a cluster can have this name."""
    return _CLUSTER.fullmatch(text) is not None


def require_user(text: str) -> str:
    """The name of a user on Linux; ValueError otherwise."""
    return _require(_LINUX_USER, text, "letters, digits and _ . -, beginning with a letter")


def require_host(text: str) -> str:
    """A host's name or address; ValueError otherwise."""
    return _require(_HOST, text, "a host's name or address")


def require_jump(text: str) -> str:
    """A host to go through; ValueError otherwise."""
    return _require(_JUMP, text, "a host's name or address, as in me@bastion.example.org:2222")


def require_word(text: str) -> str:
    """What providers call regions, machines, networks and images; ValueError otherwise."""
    return _require(_WORD, text, "letters, digits and . _ -, beginning with a letter or digit")


def require_image(text: str) -> str:
    """The name of a container image; ValueError otherwise."""
    return _require(_IMAGE, text, "an image's name, as in registry.example/team/echelon:1")


def require_path(text: str) -> str:
    """A path that can stand in an ssh configuration; ValueError otherwise."""
    if not text or not text.isprintable() or re.search(r'["\\]|\$\{', text):
        raise ValueError("use a path without quotes, backslashes, ${ and invisible characters")
    return text


def ssh_path(text: str) -> str:
    """A path as an ssh configuration has it: quoted, and with percent signs that stand for themselves."""
    return f'"{require_path(text).replace("%", "%%")}"'


def _require(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} cannot be used here; use {what}")
    return text
