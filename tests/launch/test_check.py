"""Checks of hosts, over a real ssh server; all its names are this one machine."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from echelon.errors import RemoteError
from echelon.launch import check
from echelon.launch.check import HostReport, check_hosts
from echelon.launch.findings import Needs, PreparedData
from echelon.launch.hosts import parse_hosts
from echelon.launch.probe import Probe
from echelon.launch.session import ProbeSession, find_python
from echelon.launch.ssh import Remote
from tests.sshd import Sshd

Check = Callable[..., dict[str, HostReport]]


@pytest.fixture
def check_them(sshd: Sshd) -> Iterator[Check]:
    remotes = dict[str, Remote]()

    def run(text: str, needs: Needs) -> dict[str, HostReport]:
        hosts = parse_hosts(text)
        remotes.update({host.name: Remote(host.name, sshd.config) for host in hosts})
        return {report.host.name: report for report in check_hosts(hosts, remotes, needs)}

    yield run
    for remote in remotes.values():
        remote.close()


@pytest.fixture(scope="module")
def alpha(sshd: Sshd) -> Iterator[Remote]:
    with Remote("alpha", sshd.config) as remote:
        yield remote


def test_every_problem_of_every_host_comes_at_once(check_them: Check, tmp_path: Path) -> None:
    needs = Needs(
        tmp_path / "run", PreparedData(tmp_path / "data", "abc"), disk_bytes=1 << 60, measures_link=False
    )
    reports = check_them("alpha:2,no-such-host.invalid,localhost", needs)
    for name in ("alpha", "localhost"):
        whats = [finding.what for finding in reports[name].findings if finding.is_fatal]
        assert f"the recipe's data are not in {tmp_path}/data: manifest.json: No such file" in whats[-1]
        assert f"free at {tmp_path}" in whats[0]
        assert not reports[name].is_fit
    assert [f.what for f in reports["no-such-host.invalid"].findings] == ["there is no host of this name"]


def test_hosts_that_are_fit_are_described(check_them: Check, tmp_path: Path) -> None:
    reports = check_them("alpha:2,beta,localhost", Needs(tmp_path, measures_link=False))
    for name, report in reports.items():
        assert report.is_fit, report.findings
        assert report.python == (sys.executable,)
        assert report.facts is not None
        assert report.route is not None
        assert report.route.interface == "lo"
        assert report.facts.shares_run_folder is True
        assert abs(report.facts.clock.seconds) <= report.facts.clock.uncertainty_s
        assert report.facts.machine.ssh_address == (None if name == "localhost" else "127.0.0.1")
    assert list(tmp_path.iterdir()) == []  # the token has gone


@pytest.mark.parametrize("num_lost", [1, 2])
def test_whoever_has_no_answer_is_called_once_more(
    check_them: Check, monkeypatch: pytest.MonkeyPatch, num_lost: int
) -> None:
    calls, real = Counter[tuple[str, str]](), ProbeSession.ask

    def ask(session: ProbeSession, question: str, timeout_s: float, **values: Any) -> Any:
        answer = real(session, question, timeout_s, **values)
        for number, (name, address, _) in enumerate(values.get("targets", ())):
            calls[name.split()[1], address] += 1
            if calls[name.split()[1], address] <= num_lost:
                answer[number] = ["no answer", "127.0.0.1"]
        return answer

    monkeypatch.setattr(ProbeSession, "ask", ask)
    reports = check_them("alpha,beta", Needs(measures_link=False))

    assert [report.is_fit for report in reports.values()] == [num_lost == 1] * 2
    assert max(calls.values()) == 2
    if num_lost > 1:
        told = [finding.what for report in reports.values() for finding in report.findings]
        assert sum("no answer" in what for what in told) == 2, told


@pytest.mark.slow
def test_a_real_all_reduce_gives_the_speed_of_the_network(check_them: Check) -> None:
    reports = check_them("alpha,beta", Needs())
    links = {report.link for report in reports.values()}
    assert len(links) == 1
    (link,) = links
    assert link is not None
    assert link.bytes_per_s > 1e6
    assert 0 < link.latency_s < 1


@pytest.mark.slow
def test_an_all_reduce_that_fails_is_a_finding(check_them: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_LINK_S", 0.1)
    reports = check_them("alpha,beta", Needs())
    for report in reports.values():
        assert report.link is None
        assert (
            "a test all-reduce over all hosts failed: the test all-reduce did not end within 0.1 seconds"
            in [finding.what for finding in report.findings]
        )


@pytest.mark.slow
def test_a_folder_that_is_not_the_same_there_is_not_taken_for_shared(
    check_them: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "token")
    (tmp_path / "here").mkdir()
    real = ProbeSession.ask

    def ask(session: ProbeSession, question: str, timeout_s: float, **values: str) -> object:
        if question == "sees_file":  # as on a host where the folder has another file of that name
            Path(values["path"]).write_text("other")
        return real(session, question, timeout_s, **values)

    monkeypatch.setattr(ProbeSession, "ask", ask)
    report = check_them("alpha", Needs(tmp_path / "here", measures_link=False))["alpha"]
    assert report.facts is not None
    assert report.facts.shares_run_folder is False


def test_the_same_python_as_here_is_found_first_and_one_that_was_named_is_the_only_one(alpha: Remote) -> None:
    assert find_python(alpha) == sys.executable
    with pytest.raises(RemoteError, match="no Python with Echelon in /bin/false; --install puts it there"):
        find_python(alpha, "/bin/false")


@pytest.fixture
def installed(alpha: Remote, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host's home folder with what `--install` makes in it."""
    python = tmp_path / "home with space" / ".echelon" / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    run, home = alpha.run, tmp_path / "home with space"
    monkeypatch.setattr(
        alpha, "run", lambda command, timeout_s: run(["env", f"HOME={home}", *command], timeout_s=timeout_s)
    )
    return python


def test_the_installed_python_is_found_in_the_home_folder(
    alpha: Remote, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert find_python(alpha) == str(installed)


def test_a_python_with_the_same_code_is_taken_before_one_with_other_code(
    alpha: Remote, installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\n")  # imports anything, and has no version
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(other))
    assert find_python(alpha) == str(installed)
    installed.unlink()
    assert find_python(alpha) == str(other)


def test_a_probe_that_cannot_start_is_told(alpha: Remote) -> None:
    with (
        ProbeSession(alpha, ["/usr/bin/env", "no-such-python"]) as session,
        pytest.raises(RemoteError) as caught,
    ):
        session.ask("clock", 30)
    assert caught.value.reason == "command not found"


def probes_of(sshd: Sshd) -> list[psutil.Process]:
    """The probes that run there."""
    below = psutil.Process(sshd.pid).children(recursive=True)
    return [process for process in below if "echelon.launch.probe" in process.cmdline()]


@pytest.mark.slow
def test_a_question_that_fails_there_is_told_and_the_next_is_answered(alpha: Remote, sshd: Sshd) -> None:
    with ProbeSession(alpha, [sys.executable]) as session:
        with pytest.raises(RemoteError, match="'open_store' failed there"):
            session.ask("open_store", 30, address="203.0.113.1")
        (probe,) = probes_of(sshd)
        probe.suspend()  # on a quiet machine it might answer at once
        with pytest.raises(RemoteError, match="no answer about 'reach' within 0 seconds"):
            session.ask("reach", 0, targets=[])
        probe.resume()
    with ProbeSession(alpha, [sys.executable]) as session:
        assert abs(session.ask("clock", 30) - time.time()) < 60


def test_a_probe_ends_with_its_session(alpha: Remote, sshd: Sshd) -> None:
    with ProbeSession(alpha, [sys.executable]) as session:
        session.ask("clock", 30)
        probes = probes_of(sshd)
    assert len(probes) == 1
    psutil.wait_procs(probes)


def test_prepared_data_are_there_only_whole_and_with_their_key(tmp_path: Path) -> None:
    manifest = {"key": "abc", "files": [{"name": "x.tokens", "bytes": 3}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    probe = Probe()
    assert probe.data(str(tmp_path), "abc") == "x.tokens: No such file or directory"
    (tmp_path / "x.tokens").write_bytes(b"12")
    assert probe.data(str(tmp_path), "abc") == "x.tokens is not whole"
    (tmp_path / "x.tokens").write_bytes(b"123")
    assert probe.data(str(tmp_path), "abc") is None
    assert probe.data(str(tmp_path), "def") == "holds other data (abc)"
    (tmp_path / "manifest.json").write_text("{}")
    assert probe.data(str(tmp_path), "abc") == "its manifest is damaged"


def test_another_listener_at_the_same_address_is_not_taken_for_the_host() -> None:
    probe = Probe()
    port = probe.listen(["127.0.0.1", "203.0.113.1"], "alpha")["127.0.0.1"]
    right, wrong = probe.reach([["alpha", "127.0.0.1", port], ["beta", "127.0.0.1", port]])
    assert right == [None, "127.0.0.1"]
    assert wrong[0] == "another machine answers"
    probe.stop_listening()
    assert probe.reach([["alpha", "127.0.0.1", port]])[0][0] == "Connection refused"
