"""What a stranger on the network does to listening ports; run on a host of the lab by tests/lab/test_strangers.py.

listeners               prints the TCP ports that this host listens on: [[address, port], ...]
attack ADDRESS:PORT...  sends garbage and leaves connections half open; prints how connecting went: {outcome: count}
scan ADDRESS:PORT...    connects to these and to every seventh port from 1024 on; prints how it went, and what was open
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import time
from collections import Counter
from pathlib import Path

PATIENCE_S = 1.0
AT_ONCE = 300
STORE_HELLO = b"\x00" + struct.pack("<I", 0x3C85F7CE)
"""How a client of torch's TCPStore begins: its VALIDATE query with the magic number."""


def garbage() -> list[bytes]:
    store = [
        STORE_HELLO,
        STORE_HELLO + os.urandom(200),
        STORE_HELLO + b"\x01" + struct.pack("<Q", 2**62),  # a key that is longer than any memory
        b"\x02" + b"\xff" * 8,
        b"\x0d",
    ]
    gloo = [struct.pack("<Q", number) + bytes(size) for number in range(12) for size in (0, 64)]
    gloo += [struct.pack("<QQQQ", 2**40, 3, 2, 1), struct.pack("<q", -1)]
    noise = [os.urandom(size) for size in (1, 4, 7, 8, 9, 64, 1000, 60_000)]
    http = [b"GET / HTTP/1.1\r\nHost: host1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    return [b"", bytes(4096), b"\xff" * 4096, *noise, *http, *store, *gloo]


async def throw(address: str, port: int, data: bytes, held: list[asyncio.StreamWriter]) -> str:
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(address, port)
            writer.write(data)
            await writer.drain()
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "cut off"
    held.append(writer)
    return "open"


async def attack(targets: list[str]) -> dict[str, dict[str, int]]:
    """Each piece of garbage once with the connection closed behind it, and once with it left open."""
    outcomes: dict[str, Counter[str]] = {target: Counter() for target in targets}
    held: list[asyncio.StreamWriter] = []

    async def attack_one(target: str, data: bytes, *, stays: bool) -> None:
        address, _, port = target.rpartition(":")
        opened: list[asyncio.StreamWriter] = []
        outcomes[target][await throw(address, int(port), data, opened)] += 1
        for writer in opened:
            if stays:
                held.append(writer)
            else:
                writer.close()

    pieces = [(data, stays) for data in garbage() for stays in (False, True)]
    for data, stays in pieces[:4]:  # one after the other, and then all at once
        await asyncio.gather(*(attack_one(target, data, stays=stays) for target in targets))
    for target in targets:
        await asyncio.gather(*(attack_one(target, data, stays=stays) for data, stays in pieces[4:]))
    await asyncio.sleep(1.0)
    return {target: dict(counter) for target, counter in outcomes.items()}


async def scan(targets: list[str]) -> dict[str, object]:
    address = targets[0].rpartition(":")[0]
    ports = sorted({*range(1024, 65536, 7), *(int(target.rpartition(":")[2]) for target in targets)})
    outcomes: Counter[str] = Counter()
    found: list[int] = []
    started, room = time.monotonic(), asyncio.Semaphore(AT_ONCE)

    async def try_port(port: int) -> None:
        async with room:
            held: list[asyncio.StreamWriter] = []
            outcome = await throw(address, port, b"", held)
            outcomes[outcome] += 1
            if held:
                held[0].close()
                found.append(port)

    await asyncio.gather(*map(try_port, ports))
    return {**outcomes, "ports": sorted(found), "seconds": round(time.monotonic() - started, 1)}


def listeners() -> list[tuple[str, int]]:
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                digits, port = local.split(":")
                words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
                found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return sorted(found)


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    match verb:
        case "listeners":
            result: object = listeners()
        case "attack":
            result = asyncio.run(attack(words))
        case _:
            result = asyncio.run(scan(words))
    print(json.dumps(result))
