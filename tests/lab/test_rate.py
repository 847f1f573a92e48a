from __future__ import annotations

import shlex

import pytest

from echelon.errors import UserError
from echelon.lab.rate import parse_rate, render_limit


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 1e9), ("2.5gbit", 2.5e9), ("100mbit", 1e8), ("64kbit", 64e3)]
)
def test_rates_are_read_as_tc_writes_them(text: str, bits: float) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "100 mbit", "-1gbit", "1Gbit", "0mbit", "1kbit", "200gbit", "1gbit;"]
)
def test_what_is_no_rate_is_told(text: str) -> None:
    with pytest.raises(UserError, match="is not allowed"):
        parse_rate(text)


def test_the_bucket_holds_two_milliseconds_of_a_fast_line_and_a_few_packets_of_a_slow_one() -> None:
    assert shlex.join(render_limit("space", "eth0", "1gbit")) == (
        "tc -n space qdisc replace dev eth0 root handle f4: tbf rate 1000000000bit burst 244kb latency 50ms"
    )
    assert "32kb" in render_limit("space", "eth0", "10mbit")
