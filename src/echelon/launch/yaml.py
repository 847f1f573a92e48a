"""Plain values as YAML: dictionaries, lists, texts, whole numbers and truth values, as manifests hold them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NOT_A_TEXT = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}


def to_yaml(documents: Sequence[dict[str, Any]]) -> str:
    """The documents, one after the other."""
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in documents)


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _entry(_scalar(key), entry)
    else:
        for entry in value:
            first, *others = _lines(entry) if isinstance(entry, dict | list) and entry else [_scalar(entry)]
            yield f"- {first}"
            yield from map(_indented, others)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        yield f"{key}:"
        yield from map(_indented, _lines(value))
    elif isinstance(value, list) and value:
        yield f"{key}:"
        yield from _lines(value)
    elif isinstance(value, str) and _is_block(value):
        yield f"{key}: |"
        yield from map(_indented, value[:-1].split("\n"))
    else:
        yield f"{key}: {_scalar(value)}"


def _indented(line: str) -> str:
    return f"  {line}" if line else ""


def _is_block(text: str) -> bool:
    """Whether a text can stand as it is, line by line."""
    is_printable = all(character.isprintable() or character == "\n" for character in text)
    return (
        is_printable and "\n" in text[:-1] and re.search(r"\A[^\s].*[^\n]\n\Z", text, re.DOTALL) is not None
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_A_TEXT:
        return value
    # JSON is YAML, but for characters that are not to be seen, which YAML wants escaped in its own way.
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
