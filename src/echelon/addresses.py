"""Addresses on the web and in object stores, and how the secrets in them stay out of everything that is kept or shown.

A recipe holds no secrets: it is copied into run folders, exported models, manifests and trackers. If an address needs
one, the recipe has `${ECHELON_URL_NAME}`, which is filled in from the environment when the address is asked for. Only
variables with such names: somebody else's recipe must not send others away. An address is shown, and written down, as
`redact_url` returns it.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from echelon.errors import UserError

HIDDEN = "***"
PREFIX = "ECHELON_URL_"
_REFERENCE = re.compile(rf"\$\{{({PREFIX}[A-Za-z0-9_]+)\}}")
_ANY_REFERENCE = re.compile(r"\$\{[^}]*\}")
_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://\S*?(?=[:;,.)\]'"]*(?:\s|$))""")
"""In a text; what ends a sentence does not belong to it."""
_PARTS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.S
)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_SECRET_NAME = re.compile(
    r"sig$|signature|token|secret|passw|pwd|credential|auth(?!or)|session|^(x-amz|x-goog|x-ms)-"
    r"|(^|[-_.]|api|access|rl)key(id)?$",
    re.IGNORECASE,
)
"""Parameters that sign an address, or grant access by themselves: of S3, Google, Azure, Dropbox, GitLab and others."""
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{32,}")
"""A long value without words in it."""


def is_web_address(text: str) -> bool:
    """Whether the text is an http or https address."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def redact_url(address: str) -> str:
    """The address without user, password, query and fragment. Any other text stays as it is."""
    parts = _PARTS.fullmatch(address)
    if parts is None:
        return address
    user, at, host = parts["authority"].rpartition("@")
    if not _HOST.fullmatch(host):  # "user:pass/word@host" is cut in the middle of the password
        return f"{parts['scheme']}://{HIDDEN}"
    query = f"{parts['rest'][0]}{HIDDEN}" if len(parts["rest"]) > 1 else ""
    return f"{parts['scheme']}://{HIDDEN if user else ''}{at}{host}{parts['path']}{query}"


def redact_text(text: str) -> str:
    """The text with every address in it redacted."""
    return _ADDRESS.sub(lambda match: redact_url(match[0]), text)


def find_secret(address: str) -> str | None:
    """Name what looks like a secret in an address, e.g. "the parameter sig"; None if nothing does.

    References such as `${ECHELON_URL_TOKEN}` are not secrets. A secret within the path cannot be told from the path.
    """
    parts = _PARTS.fullmatch(_REFERENCE.sub("", address))
    if parts is None:
        return None
    user, _, host = parts["authority"].rpartition("@")
    is_login = bool(user.strip(":")) if parts["scheme"] in ("http", "https") else ":" in user.rstrip(":")
    if is_login or not _HOST.fullmatch(host):
        return "the user and password"
    for pair in re.split(r"[&;]", parts["rest"].lstrip("?").partition("#")[0]):
        name, _, value = pair.partition("=")
        if value and (_SECRET_NAME.search(unquote(name)) or _RANDOM.fullmatch(unquote(value))):
            return f"the parameter {name}"
    return None


def fill_in(address: str) -> str:
    """The address with the environment's values in place of references; UserError if that is impossible."""

    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if not value:
            raise UserError(
                f"{redact_url(address)}: the environment variable {match[1]}, which it refers to, is not set here"
            )
        return value

    if wrong := _ANY_REFERENCE.search(_REFERENCE.sub("", address)):
        raise UserError(
            f"{redact_url(address)}: {wrong[0]} is not filled in: use a variable whose name begins with {PREFIX}"
        )
    return _REFERENCE.sub(value_of, address)


def take_out(text: str, address: str) -> str:
    """The text of an error about an address with the references in place of what was filled in for them."""
    for name in _REFERENCE.findall(address):
        if value := os.environ.get(name):
            text = text.replace(value, f"${{{name}}}").replace(unquote(value), f"${{{name}}}")
    return redact_text(text)
