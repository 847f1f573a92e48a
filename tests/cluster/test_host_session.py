"""What the agents of a run are told, and how many hosts must be there."""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.agent.spec import HostSpec, dump_spec, parse_spec
from echelon.agent.tls import Credentials
from echelon.cluster.host_session import (
    HostSession,
    Size,
    choose_size,
    is_folder_shared,
    passed_on,
    render_specs,
    start_agents,
    warn_of_two_parts,
)
from echelon.errors import HostsError, RemoteError, RunError
from echelon.launch.ssh import Completed, Remote
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.agent.cluster import open_cluster
from tests.sample_recipe import sample_recipe


@pytest.fixture
def sessions() -> list[HostSession]:
    specs = [HostSpec(f"host{n}", f"10.0.0.{n}", "eth0", n) for n in (1, 2)]
    return [
        HostSession(number, Remote(spec.name), ("python3",), spec, sees_our_folder=number == 0)
        for number, spec in enumerate(specs)
    ]


@pytest.mark.parametrize(
    ("text", "is_shared", "size"),
    [
        (None, True, Size(1, 5)),
        (None, False, Size(3, 5)),
        ("2", False, Size(2, 5)),
        ("2:4", True, Size(2, 4)),
    ],
)
def test_how_many_hosts_there_must_be(text: str | None, is_shared: bool, size: Size) -> None:
    assert choose_size(text, 5, is_shared=is_shared) == size


@pytest.mark.parametrize("text", ["", "0", "6", "3:2", "2:6", "two", "2x"])
def test_numbers_of_hosts_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(HostsError, match="--num-hosts"):
        choose_size(text, 5, is_shared=True)


def test_agents_are_told_who_they_are_and_get_the_files_they_do_not_see(
    sessions: list[HostSession], tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.write_text("the recipe")
    specs = render_specs(sessions, run, sample_recipe(), Size(1, 2), port=4321, is_shared=True)
    assert [spec.host for spec in specs] == [0, 1]
    assert [spec.me.name for spec in specs] == ["host1", "host2"]
    assert {spec.port for spec in specs} == {4321}
    assert len({spec.secret for spec in specs}) == 1
    assert specs[0].files == {}
    assert {name: base64.b64decode(text) for name, text in specs[1].files.items()} == {
        "recipe.toml": b"the recipe"
    }
    again = render_specs(sessions, run, sample_recipe(), Size(1, 2), port=None, is_shared=True)
    assert again[0].secret != specs[0].secret, "every start has a secret of its own"
    assert parse_spec(dump_spec(specs[1])) == specs[1]


def test_with_tls_every_host_has_a_certificate_of_its_own_and_new_ones_with_every_start(
    tmp_path: Path, sessions: list[HostSession]
) -> None:
    run = RunFolder(tmp_path)

    def credentials(is_encrypted: bool) -> list[Credentials | None]:
        specs = render_specs(
            sessions, run, sample_recipe(), Size(1, 2), port=None, is_shared=True, is_encrypted=is_encrypted
        )
        return [spec.credentials for spec in specs]

    first, second = credentials(True)
    assert first
    assert second
    assert first.authority == second.authority
    assert first.certificate != second.certificate
    assert credentials(True)[0] != first
    assert credentials(False) == [None, None]
    assert list(tmp_path.iterdir()) == [], "no key is in a file"


def test_what_a_user_sets_for_training_reaches_the_hosts_and_nothing_else() -> None:
    environment = {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "PATH": "/bin"}
    assert passed_on(environment) == {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}


def test_a_host_that_fails_while_folders_are_compared_leaves_no_marks_on_the_others(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    specs = [HostSpec(name, "127.0.0.1", "lo", 1) for name in ("good", "bad")]
    pythons = [(sys.executable,), ("false",)]
    sessions = [
        HostSession(number, Remote("localhost"), pythons[number], spec, sees_our_folder=True)
        for number, spec in enumerate(specs)
    ]
    with pytest.raises(RemoteError, match="bad"):
        is_folder_shared(sessions, run)
    assert list(run.path.glob(".probe-*")) == []


class LostRemote(Remote):
    """This machine, over a line that breaks before the first answer has come."""

    is_broken = False

    def run(self, command: Sequence[str], *, stdin: bytes | None = None, timeout_s: float) -> Completed:
        completed = super().run(command, stdin=stdin, timeout_s=timeout_s)
        if not self.is_broken:
            self.is_broken = True
            raise RemoteError(self.host, "connection lost", "the connection was lost")
        return completed


def test_the_same_command_again_leaves_the_agents_of_the_run_that_is_going_on_alone(tmp_path: Path) -> None:
    """Of three hosts the first is at work already, and what came of the third is not known."""
    runs = [RunFolder(tmp_path / f"host{number}" / "run") for number in range(3)]
    for run in runs:
        run.create()
        run.recipe.write_text("")
    with open_cluster(runs, 3) as cluster:
        cluster.start(0)
        before = cluster.agent(0)
        remotes = [Remote("localhost"), Remote("localhost"), LostRemote("localhost")]
        sessions = [
            HostSession(number, remotes[number], (sys.executable,), spec, sees_our_folder=False)
            for number, spec in enumerate(cluster.spec.hosts)
        ]
        again = replace(cluster.spec, secret=secrets.token_hex(32))
        specs = [replace(again, run=str(run.path), host=number) for number, run in enumerate(runs)]
        with pytest.raises(RunError, match=r"is under way; `echelon attach .*run` follows it"):
            start_agents(sessions, specs)
        assert before is not None
        assert cluster.agent(0) == before
        starts = [len(read_records(runs[host].agent_records(host))) for host in (1, 2)]
        assert all(starts), "they were started,"
        assert [cluster.agent(1), cluster.agent(2)] == [None, None], "and stopped again"


@pytest.mark.parametrize(
    ("fewest", "hosts", "is_warned"), [(1, 2, True), (2, 4, True), (2, 3, False), (1, 1, False)]
)
def test_hosts_with_own_folders_are_warned_of_two_runs_unless_a_majority_must_be_there(
    fewest: int, hosts: int, is_warned: bool
) -> None:
    warning = warn_of_two_parts(Size(fewest, hosts), hosts)
    assert bool(warning) == is_warned
    assert not warning or f"use --num-hosts {hosts // 2 + 1}:{hosts}" in warning
