"""Answers of hosts, which may say anything."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.agent.spec import HostSpec
from echelon.cluster.host_session import HostSession
from echelon.errors import RemoteError
from echelon.launch.dialogue import MARK, Dialogue, parse_answer
from echelon.launch.ssh import Remote

NO_ANSWERS = ["5", "null", "[]", "{", '"\\ud800"', "[" * 100_000, '{"error": [1, {"a": "\\u001b[2J"}]}']
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("line", NO_ANSWERS, ids=lambda line: line[:12])
def test_what_is_no_answer_is_the_host_s_failure(line: str) -> None:
    with (
        Dialogue(Remote("localhost"), ["printf", "%s\\n", MARK + line]) as other,
        pytest.raises(RemoteError, match=r"^localhost: the test failed there: "),
    ):
        other.answer("the test", 20.0)
    session = HostSession(
        0, Remote("localhost"), ("printf", "%s\\n%.0s%.0s%.0s", line), HostSpec("a", "", "", 1), True
    )
    with pytest.raises(RemoteError, match=r"^localhost: |^a: "):
        session.run_agent("ask")


@settings(deadline=None, database=None, max_examples=200)
@given(st.binary(max_size=50) | json_values.map(lambda value: json.dumps(value).encode()))
def test_an_answer_is_an_object_or_an_error(line: bytes) -> None:
    with contextlib.suppress(RemoteError):
        assert isinstance(parse_answer("host", line), dict)
