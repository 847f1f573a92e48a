"""Reads the pictures of strangers in a process of its own, with little memory and time.

A few bytes that somebody made for it cost Pillow and the libraries below it hours or all memory, or worse. Then this
process ends, and the next picture gets another: the server and its other clients are not disturbed.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from echelon.data.images.image_store import Pixels
from echelon.data.images.pixels import TooManyPixelsError, open_picture
from echelon.inference.pictures import PictureRules
from echelon.serve.limits import PICTURE_PIXELS

PROGRAM = (sys.executable, "-P", "-m", "echelon.serve.picture_reader")
_SIZE = struct.Struct("!Q")
_SEEN, _REFUSED, _TOO_MANY = b"P", b"N", b"M"
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""What the process gets of ours: no tokens."""


@dataclass(frozen=True)
class ReadingLimits:
    """What one picture may take."""

    pixels: int = PICTURE_PIXELS
    seconds: int = 10
    """Of processor time."""
    memory_bytes: int = 1536 << 20
    """The largest pictures, with transparency, take half of it."""


class PictureReader:
    """The process, started when it is needed. One thread uses it at a time."""

    def __init__(self, rules: PictureRules, limits: ReadingLimits | None = None) -> None:
        self._rules, self._limits = rules, limits or ReadingLimits()
        self._process: subprocess.Popen[bytes] | None = None

    def see(self, content: bytes) -> Pixels:
        """A picture as the model sees it; ValueError if it is none, or takes more than the limits."""
        side, process = self._rules.pixels, self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        data = b""
        with suppress(OSError):
            process.stdin.write(_SIZE.pack(len(content)) + content)
            process.stdin.flush()
            verdict = process.stdout.read(1)
            if verdict == _TOO_MANY:
                raise TooManyPixelsError(f"it has more than {self._limits.pixels:,} pixels")
            if verdict == _REFUSED:
                raise ValueError("it is no picture that can be read")
            data = process.stdout.read(side * side * 3)
        if len(data) < side * side * 3:
            self.close()
            raise ValueError("reading it takes too much time or memory")
        return np.frombuffer(data, np.uint8).reshape(side, side, 3)

    def _start(self) -> subprocess.Popen[bytes]:
        rules = replace(self._rules, classes=())
        orders = json.dumps({"rules": asdict(rules), "limits": asdict(self._limits)})
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [*PROGRAM, orders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries print what is in the picture
            env={**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the server, which finishes what it has begun
        )
        return self._process

    def close(self) -> None:
        """End the process; the next picture starts another."""
        if self._process is not None:
            self._process.kill()
            with suppress(OSError):  # what was not sent any more
                self._process.communicate()
            self._process = None


def main(orders: str) -> None:
    """Answer until standard input ends."""
    document = json.loads(orders)
    rules, limits = PictureRules(**document["rules"]), ReadingLimits(**document["limits"])
    answers, source = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # what libraries print is no answer
    _bound("AS", _memory_held() + limits.memory_bytes)
    _bound("CORE", 0)
    while len(size := source.read(_SIZE.size)) == _SIZE.size:
        _bound("CPU", int(sum(os.times()[:2])) + limits.seconds + 1)
        _answer(source.read(*_SIZE.unpack(size)), rules, limits, answers)


def _answer(content: bytes, rules: PictureRules, limits: ReadingLimits, answers: IO[bytes]) -> None:
    try:
        with open_picture(content) as picture:
            width, height = picture.size
        if width * height > limits.pixels:
            raise TooManyPixelsError
        answers.write(_SEEN + rules.see(content).tobytes())
    except TooManyPixelsError:
        answers.write(_TOO_MANY)
    except (OSError, ValueError, MemoryError):
        answers.write(_REFUSED)
    answers.flush()


def _bound(what: str, most: int) -> None:
    """A limit of this process, enforced by the kernel; a lower one that it has already stays."""
    kind = getattr(resource, f"RLIMIT_{what}")
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _memory_held() -> int:
    """Bytes of address space in use, which the limit counts; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


if __name__ == "__main__":
    main(sys.argv[1])
