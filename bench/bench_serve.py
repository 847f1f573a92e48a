"""The server under load: so many clients at once for so long, each asking again as soon as it has its answer. Usage:
    python bench/bench_serve.py [--model runs/demo] [--clients 50] [--seconds 60] [--engine auto]

Prints requests a second and the time to an answer: median, 90th and 99th percentile, longest. Exit status 1 where any
request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

SENTENCES = (
    "A man in an orange hat is staring at something.",
    "Two dogs are playing in the snow.",
    "A woman reads a book on a bench.",
    "Children run along the beach with a kite while their parents watch them from afar.",
)


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def put_under_load(address: str, clients: int, seconds: float) -> Load:
    """So many connections that are kept open, each with one request at a time."""
    load, end = Load(), time.monotonic() + seconds
    await asyncio.gather(*(_client(address, number, end, load) for number in range(clients)))
    return load


async def _client(address: str, number: int, end: float, load: Load) -> None:
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    count = number
    while time.monotonic() < end:
        body = json.dumps({"text": SENTENCES[count % len(SENTENCES)]}).encode()
        head = f"POST /v1/translate HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        started = time.monotonic()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            status = await _read_answer(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            load.statuses[type(error).__name__] += 1
            return
        load.statuses[status] += 1
        load.seconds.append(time.monotonic() - started)
        count += 1
    writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")
    )
    await reader.readexactly(length)
    return head.split(" ")[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/demo"))
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    if not options.model.is_dir():
        print(f"left out: there is no {options.model}; `make demo` makes a run")
        return
    serve = [sys.executable, "-m", "echelon", "serve", str(options.model), "--port", "0", "--json"]
    choices = ["--requests-per-second", "1000000", "--engine", options.engine]
    with subprocess.Popen([*serve, *choices], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "}\n")
        announced = json.loads("".join(lines) + "}")
        load = asyncio.run(put_under_load(announced["address"], options.clients, options.seconds))
        server.terminate()
    shares = {"median": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}
    times = ", ".join(f"{name} {1000 * load.percentile(share):,.0f} ms" for name, share in shares.items())
    print(f"{announced['model']}, {announced['engine']} {announced['precision']}; {options.clients} clients")
    print(f"{len(load.seconds) / options.seconds:,.1f} requests/s; {times}; answers {dict(load.statuses)}")
    sys.exit(0 if set(load.statuses) == {"200"} and server.returncode == 0 else 1)


if __name__ == "__main__":
    main()
