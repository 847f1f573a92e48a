"""YAML as another program reads it back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.launch.yaml import to_yaml

TEXTS = st.text(max_size=30) | st.sampled_from(
    [
        "yes",
        "No",
        "null",
        "~",
        "1e3",
        "0x1f",
        "2001-01-01",
        "a: b",
        "# x",
        "- x",
        "a\nb\n",
        "  a\n b\n",
        "a\n\n",
        "\n",
        "",
    ]
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_whatever_is_written_is_read_back(documents: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(to_yaml(documents))) == documents


@given(st.dictionaries(st.just("text"), TEXTS, min_size=1))
def test_texts_are_read_back(document: dict[str, str]) -> None:
    assert list(yaml.safe_load_all(to_yaml([document]))) == [document]


def test_it_reads_as_people_write_it() -> None:
    document = {
        "kind": "Job",
        "spec": {
            "count": 2,
            "is": True,
            "args": ["a", {"b": "c", "d": ["e"]}],
            "none": {},
            "text": "one\n\ntwo\n",
        },
    }
    assert to_yaml([document, {"kind": "Service"}]) == (
        "kind: Job\n"
        "spec:\n"
        "  count: 2\n"
        "  is: true\n"
        "  args:\n"
        "  - a\n"
        "  - b: c\n"
        "    d:\n"
        "    - e\n"
        "  none: {}\n"
        "  text: |\n"
        "    one\n"
        "\n"
        "    two\n"
        "---\n"
        "kind: Service\n"
    )


@pytest.mark.parametrize("text", ["1e3", "1e-3", "0o17", "y", "N", "1_000", ".5", "+1", "12:30"])
def test_texts_that_other_readers_take_for_numbers_or_truth_values_are_quoted(text: str) -> None:
    assert to_yaml([{"argument": text}]) == f"argument: '{text}'\n"


def test_what_occurs_twice_is_written_twice() -> None:
    shared = {"name": "recipe"}
    assert to_yaml([{"one": shared, "two": shared}]) == "one:\n  name: recipe\ntwo:\n  name: recipe\n"


def test_long_lines_stay_lines() -> None:
    command = "true && " * 40 + "true"
    assert to_yaml([{"run": command}]) == f"run: {command}\n"
