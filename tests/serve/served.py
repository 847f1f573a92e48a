"""A server as users start it: a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Served:
    address: str
    token: str | None
    process: subprocess.Popen[str]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


@contextmanager
def serve(
    model: Path, *options: str, python: str = sys.executable, environ: Mapping[str, str] = os.environ
) -> Iterator[Served]:
    command = [python, "-m", "echelon", "serve", str(model), "--port", "0", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            announced = _read_document(process)
            yield Served(announced["address"], announced["token"], process)
        finally:
            process.kill()


def _read_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON document that says where it is; stdout stays open behind it."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            break
    document: dict[str, Any] = json.loads(text)
    return document
