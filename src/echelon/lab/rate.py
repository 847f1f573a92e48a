"""Line rates as `tc` writes them, and the filter that keeps them."""

from __future__ import annotations

import re

from echelon.errors import UserError

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_LOWEST, _HIGHEST = 64e3, 100e9
_BURST_S = 0.002
_LEAST_BURST_KB = 32


def parse_rate(text: str) -> float:
    """Bits per second of `100mbit`; UserError if it is not a rate."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    if match is None:
        raise UserError(f"rate {text!r} is not allowed: write it as 100mbit or 1gbit")
    rate = float(match[1]) * _UNITS[match[2]]
    if not _LOWEST <= rate <= _HIGHEST:
        raise UserError(f"rate {text!r} is not allowed: use 64kbit to 100gbit")
    return rate


def render_limit(namespace: str, interface: str, rate: str) -> list[str]:
    """The command that limits what `interface` sends; a switch's queue of 50 ms stands before it."""
    bits = parse_rate(rate)
    # A small bucket keeps the rate honest over milliseconds; too small a one costs a CPU wake-up for every packet.
    burst_kb = max(_LEAST_BURST_KB, round(bits / 8 * _BURST_S / 1024))
    # Each size of bucket has a queue of its own: a packet that was queued for a larger one would never fit into it.
    words = f"tc -n {namespace} qdisc replace dev {interface} root handle {burst_kb:x}: tbf"
    return [*words.split(), "rate", f"{bits:.0f}bit", "burst", f"{burst_kb}kb", "latency", "50ms"]
