"""`python -m echelon.launch.probe`: answers a launcher's questions about the host it runs on, until its input ends.

A question is a line of JSON, `{"ask": NAME, ...}`. launch/check.py asks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echelon.launch.dialogue import say
from echelon.launch.machine import describe_machine, measure_disk
from echelon.launch.routes import NO_ANSWER
from echelon.runfolder import parse_json, read_json

REACH_S = 8.0
"""Longer than the five seconds after which WireGuard repeats a handshake that was lost."""
LINK_PROGRAM = (sys.executable, "-P", "-m", "echelon.comm.linktest")


class Probe:
    """Each method with a question's name answers it."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []
        self._store: socket.socket | None = None

    def machine(self) -> dict[str, Any]:
        return asdict(describe_machine())

    def clock(self) -> float:
        return time.time()

    def disk(self, folder: str) -> dict[str, Any]:
        return asdict(measure_disk(Path(folder)))

    def sees_file(self, path: str, content: str) -> bool:
        """Whether a file with this content is there: a token that tells a shared folder."""
        with contextlib.suppress(OSError):
            return Path(path).read_text() == content
        return False

    def data(self, folder: str, key: str) -> str | None:
        """What is wrong with the prepared data; None if they have this key and all files are complete."""
        try:
            manifest = read_json(Path(folder) / "manifest.json")
            if manifest["key"] != key:
                return f"holds other data ({manifest['key']})"
            for entry in manifest["files"]:
                if (Path(folder) / entry["name"]).stat().st_size != entry["bytes"]:
                    return f"{entry['name']} is not whole"
        except OSError as error:
            return f"{Path(error.filename).name if error.filename else folder}: {error.strerror}"
        except (ValueError, KeyError, TypeError):
            return "its manifest is damaged"
        return None

    def listen(self, addresses: Sequence[str], name: str) -> dict[str, int]:
        """Answer callers on these addresses with `name`; return the ports by address, unusable ones left out."""
        ports = {}
        for address in addresses:
            with contextlib.suppress(OSError):
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                listener = socket.create_server((address, 0), family=family, backlog=128)
                self._listeners.append(listener)
                threading.Thread(target=_answer_callers, args=(listener, name.encode()), daemon=True).start()
                ports[address] = listener.getsockname()[1]
        return ports

    def reach(self, targets: Sequence[Sequence[Any]]) -> list[list[str | None]]:
        """Try `[name, address, port]`s at once: for each, what went wrong, and the address packets leave from."""
        with ThreadPoolExecutor(max(1, min(64, len(targets)))) as threads:
            return list(
                threads.map(lambda target: [_call(*target), _own_address_towards(target[1])], targets)
            )

    def stop_listening(self) -> None:
        for listener in self._listeners:
            # Wakes the thread that waits for callers, which closing does not.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners.clear()

    def open_store(self, address: str) -> int:
        """Bind the socket of the link test's store; return its port."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._store = socket.create_server((address, 0), family=family, backlog=128)
        port: int = self._store.getsockname()[1]
        return port

    def link(self, environment: dict[str, str], seconds: float) -> dict[str, Any]:
        """Take part in a short all-reduce (echelon.comm.linktest); what it measured, or `error`."""
        inherited = [self._store.fileno()] if self._store else []
        extra = {"ECHELON_STORE_FD": str(inherited[0])} if inherited else {}
        try:
            result = subprocess.run(
                [*LINK_PROGRAM, str(seconds)],
                env={**os.environ, **environment, **extra},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                pass_fds=inherited,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"the test all-reduce did not end within {seconds:g} seconds"}
        if result.returncode:
            said = [line for line in result.stderr.splitlines() if line.strip()]
            return {"error": said[-1] if said else f"exit status {result.returncode}"}
        return dict(parse_json(result.stdout))


def _answer_callers(listener: socket.socket, name: bytes) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(name)


def _call(name: str, address: str, port: int) -> str | None:
    """The error of connecting to `name`; None if it answered."""
    try:
        with socket.create_connection((address, port), timeout=REACH_S) as connection:
            answer = b"".join(iter(lambda: connection.recv(256), b""))
    except TimeoutError:
        return NO_ANSWER
    except OSError as error:
        return error.strerror or str(error)
    return None if answer == name.encode() else "another machine answers"


def _own_address_towards(address: str) -> str | None:
    """The address that packets to `address` leave from; the kernel is asked, and nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asker, contextlib.suppress(OSError):
        asker.connect((address, 9))
        own: str = asker.getsockname()[0]
        return own
    return None


def answer(probe: Probe, line: str) -> dict[str, Any]:
    """The answer to one question: `{"answer": VALUE}`, or `{"error": TEXT}` for one that is not understood."""
    try:
        question = parse_json(line)
        ask: Callable[..., Any] = getattr(probe, question.pop("ask"))
        return {"answer": ask(**question)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    probe = Probe()
    for line in sys.stdin:
        say(answer(probe, line))
    os._exit(0)  # at once: threads may be waiting for callers, and no one is left to read an answer


if __name__ == "__main__":
    main()
