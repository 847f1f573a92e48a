"""Rented machines are made ready once they have started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from echelon.cloud.journal import ClusterRecord
from echelon.commands import rented_hosts
from echelon.errors import HostsError
from echelon.launch.ssh import Remote


def test_a_machine_that_nothing_would_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_local(_: str, __: object) -> Iterator[list[Remote]]:
        yield [Remote("local")]

    def install(*_: object) -> None:
        raise HostsError("it has come to installing")

    monkeypatch.setattr(rented_hosts, "_open", open_local)
    monkeypatch.setattr(rented_hosts, "wait_for_answer", lambda _: None)
    monkeypatch.setattr(rented_hosts, "install", install)
    systemctl = tmp_path / "systemctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = SimpleNamespace(name="wmt", container="trainer")
    cluster = cast(ClusterRecord, SimpleNamespace(spec=spec, hosts=(), hourly=3.0))
    for status, said in ((3, "the timer that ends the machine"), (0, "it has come to installing")):
        systemctl.write_text(
            f'#!/bin/sh\n[ "$*" = "is-active --quiet echelon-end.service" ] && exit {status}\n'
        )
        systemctl.chmod(0o755)
        with pytest.raises(HostsError, match=rf"{said}[^$]*\n.*the machines run, at \$3\.00 an hour"):
            rented_hosts.make_ready(cluster, Console(quiet=True))
