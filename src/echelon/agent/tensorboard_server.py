"""TensorBoard on the machine that has a run's curves, on loopback only."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

from echelon.errors import RunError
from echelon.runfolder import RunFolder, to_json

_START_S = 60.0
_POLL_S = 0.1


@contextlib.contextmanager
def serve_tensorboard(run: RunFolder, port: int) -> Iterator[None]:
    """Serve a run's curves at a port of loopback inside the `with` block; RunError if TensorBoard does not start."""
    command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", str(run.tensorboard)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_it_listens(process, port)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(_POLL_S)
    raise RunError(
        f"TensorBoard does not start; `{sys.executable} -m tensorboard.main --version` may say why"
    )


def tensorboard_time(run: RunFolder) -> float:
    """Return when a run's event files last changed; 0 if there are none."""
    return max((path.stat().st_mtime for path in run.tensorboard.rglob("*") if path.is_file()), default=0.0)


def offer_tensorboard(run: RunFolder, until: IO[bytes], out: IO[str]) -> None:
    """Serve a run's curves at a free port, say which, and end when `until` ends: with the connection."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serve_tensorboard(run, port):
        out.write(to_json({"port": port}) + "\n")
        out.flush()
        until.read()
