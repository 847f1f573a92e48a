"""Manifests as YAML that people can read: keys in their order, texts of several lines as blocks, no aliases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_AMBIGUOUS = re.compile(r"(?:[yYnN]|[-+]?[.0-9].*)\Z")
"""Texts to quote: kubectl and others read y as a truth value and 1e3 or 0o17 as a number, which PyYAML does not."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if not text.replace("\n", "").isprintable():
        style = '"'  # the only style in which PyYAML escapes U+0085 instead of folding it into a space
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _AMBIGUOUS, list("yYnN+-.0123456789"))


def to_yaml(documents: Sequence[dict[str, Any]]) -> str:
    """The documents, one after the other."""
    parts = (
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))
        for document in documents
    )
    return "---\n".join(parts)
