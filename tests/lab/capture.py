"""Counts the bytes on eth0 by who talks to whom; run on a host of the lab by tests/lab/test_wireguard.py.

Writes {"ADDRESS ADDRESS | PROTOCOL PORT PORT": bytes} into OUTPUT every half second, and the number of packets that it
could not read, until a file of that name with the ending .over appears.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections import Counter
from pathlib import Path

OUTPUT = Path("OUTPUT")
"""The test puts a path in its place."""
_ALL, _IPV4 = 0x0003, 0x0800
"""What is sent is seen only by who asks for all protocols."""
_SOL_PACKET, _PACKET_STATISTICS, _SO_RCVBUFFORCE = 263, 6, 33


def describe(packet: bytes) -> str:
    """Who talks to whom, and how, from an IPv4 packet."""
    header = 4 * (packet[0] & 15)
    pair = sorted(socket.inet_ntoa(address) for address in (packet[12:16], packet[16:20]))
    ports = sorted(int.from_bytes(packet[at : at + 2], "big") for at in (header, header + 2))
    return f"{' '.join(pair)} | {packet[9]} {ports[0]} {ports[1]}"


def capture(card: socket.socket) -> None:
    counts, told, dropped, is_over = Counter[str](), 0.0, 0, False
    while not is_over:
        is_over = OUTPUT.with_suffix(".over").exists()
        with contextlib.suppress(TimeoutError):
            packet, (_, protocol, *_) = card.recvfrom(2**16)
            if protocol == _IPV4:
                counts[describe(packet)] += len(packet)
        if is_over or time.monotonic() - told > 0.5:
            told = time.monotonic()
            new = OUTPUT.with_suffix(".new")
            dropped += struct.unpack("II", card.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1]
            new.write_text(json.dumps({**counts, "dropped": dropped, "over": int(is_over)}))
            os.replace(new, OUTPUT)


if __name__ == "__main__":
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL)) as eth0:
        eth0.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 2**26)
        eth0.bind(("eth0", 0))
        eth0.settimeout(0.1)
        capture(eth0)
