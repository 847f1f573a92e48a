"""Following what a host writes; the host is this machine, without ssh."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echelon.agent.spec import HostSpec
from echelon.cluster import host_watch
from echelon.cluster.host_session import HostSession
from echelon.cluster.host_watch import HostWatch, SharedFiles, watch_hosts
from echelon.errors import TrainingError
from echelon.launch.ssh import Remote
from echelon.launch.stop_requests import StopRequests
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from tests.agent.cluster import Cluster
from tests.conftest import filled
from tests.waiting import wait_until


def test_a_host_whose_login_script_prints_is_followed_all_the_same(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.create()
    records = RecordWriter(run.agent_records(0))
    records.write("outcome", outcome="finished", message="")
    records.close()
    python = ("sh", "-c", f'echo "Welcome! 5"; echo 5; exec {sys.executable} "$@"', "sh")
    session = HostSession(
        0, Remote("localhost"), python, HostSpec("here", "127.0.0.1", "lo", 1), sees_our_folder=True
    )
    told = list[str]()
    watch = HostWatch(session, None, run, told.append)
    wait_until(lambda: watch.outcome or told)
    watch.close()
    assert (watch.outcome, told) == ("finished", [])


@pytest.mark.parametrize(
    "news",
    [
        {"file": "../../outside", "data": "", "at": 0},
        {"file": "records/worker-0.jsonl"},
        {"file": ["records"], "data": "", "at": 0},
        {"file": "records/worker-0.jsonl", "data": 5, "at": 0},
        {"file": "records/worker-0.jsonl", "data": "\u00e9", "at": 0},
        {"file": "records/worker-0.jsonl", "data": "", "at": "x"},
    ],
)
def test_a_host_that_sends_what_is_no_part_of_a_run_is_told_of_and_watched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, news: dict[str, Any]
) -> None:
    monkeypatch.setattr(host_watch, "_RETRY_S", 0.05)
    run = RunFolder(tmp_path / "run")
    run.create()
    before = sorted(tmp_path.rglob("*"))
    script = f"test -e {tmp_path}/again || echo {shlex.quote(json.dumps(news))}; touch {tmp_path}/again; "
    script += """echo '{"alive": false, "outcome": "finished"}'"""
    spec = HostSpec("there", "127.0.0.1", "lo", 1)
    session = HostSession(0, Remote("localhost"), ("sh", "-c", script), spec, sees_our_folder=False)
    told = list[str]()
    watch = HostWatch(session, None, run, told.append)
    wait_until(lambda: watch.outcome)
    watch.close()
    assert watch.outcome == "finished"
    assert "cannot be reached" in told[0]
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "again"])


@pytest.mark.parametrize(
    "sent",
    [
        [(0, b"abc"), (0, b"abc")],
        [(0, b"abc"), (0, b"ab"), (2, b"c")],
        [(0, b"a"), (0, b"ab"), (1, b"bc"), (2, b"c")],
    ],
)
def test_no_byte_is_kept_twice(tmp_path: Path, sent: list[tuple[int, bytes]]) -> None:
    run = RunFolder(tmp_path)
    run.create()
    files = SharedFiles(run, [])
    for at, data in sent:
        files.append(tmp_path / "records" / "worker-0.jsonl", "records/worker-0.jsonl", at, data)
    assert (tmp_path / "records" / "worker-0.jsonl").read_bytes() == b"abc"


def test_our_full_disk_is_told_once_and_what_came_meanwhile_is_kept_when_there_is_room(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_watch, "_RETRY_S", 0.05)
    there, here = RunFolder(tmp_path / "there"), RunFolder(small_disk / "run")
    for run in (there, here):
        run.create()
    with contextlib.closing(RecordWriter(there.worker_records(0))) as records:
        for step in range(200):
            records.write("step", step=step, loss=0.5, seconds=0.25)
    with contextlib.closing(RecordWriter(there.agent_records(0))) as records:
        records.write("outcome", outcome="finished", message="")
    # The host's Python has its run folder at another path than we.
    script = f'set -- "$1" "$2" "$3" {there.path} "$5"; exec {sys.executable} "$@"'
    spec = HostSpec("there", "127.0.0.1", "lo", 1)
    session = HostSession(0, Remote("localhost"), ("sh", "-c", script, "sh"), spec, sees_our_folder=False)
    told = list[str]()
    with filled(small_disk):
        watch = HostWatch(session, None, here, told.append)
        wait_until(lambda: bool(told))
        time.sleep(5 * host_watch._RETRY_S)
    wait_until(lambda: watch.outcome is not None)
    watch.close()
    assert len(told) == 1
    assert told[0].startswith("what there writes cannot be kept here: [Errno 28] No space left on device")
    assert here.worker_records(0).read_bytes() == there.worker_records(0).read_bytes()


AGENT = """
folder=$1 verb=$4
case "$verb" in
start)
    cat > "$folder/orders" && rm "$folder/last" && echo "{}" ;;
follow)
    while [ -d "$folder" ] && [ ! -f "$folder/last" ]; do cat "$folder/word" && sleep 0.1 || exit; done
    [ ! -d "$folder" ] || cat "$folder/last" ;;
esac
"""
"""In place of the agent of one host: says the `word` in its folder until there is a `last` one; a start removes it."""
TRAINS, WAITS = '{"alive": true, "trains": true}', '{"alive": true, "trains": false}'
ALONE = '{"alive": false, "outcome": "alone", "message": "too few hosts were left"}'
FINISHED = '{"alive": false, "outcome": "finished", "message": ""}'


class Trio:
    """Three hosts of a run, a folder each, and a watch on each."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder(folder / "run")
        self.run.create()
        self.hosts = [folder / name for name in ("a", "b", "c")]
        self.told: list[str] = []
        self.watches: list[HostWatch] = []
        self._agent = folder / "agent.sh"
        self._agent.write_text(AGENT)
        for host in self.hosts:
            host.mkdir()

    def say(self, word: str, *hosts: int, last: bool = False) -> None:
        for host in hosts:
            new = self.hosts[host] / "new"
            new.write_text(word + "\n")
            new.replace(self.hosts[host] / ("last" if last else "word"))

    def watch(self) -> None:
        orders = replace(Cluster([self.run], 3).spec, run=str(self.run.path))
        for number, host in enumerate(self.hosts):
            spec = HostSpec(host.name, "127.0.0.1", "lo", 1)
            session = HostSession(
                number, Remote("localhost"), ("sh", str(self._agent), str(host)), spec, True
            )
            self.watches.append(HostWatch(session, orders, self.run, self.told.append))

    def end(self, on_poll: Callable[[], None]) -> str:
        return watch_hosts(self.watches, self.run.path, StopRequests(), on_poll)

    def was_started(self, host: int) -> bool:
        return (self.hosts[host] / "orders").exists()


@pytest.fixture
def trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trio]:
    monkeypatch.setattr(host_watch, "_RETRY_S", 0.1)
    trio = Trio(tmp_path)
    yield trio
    with contextlib.suppress(OSError):
        trio.say(FINISHED, 0, 1, 2, last=True)
    for watch in trio.watches:
        watch.close()


def test_a_host_that_waited_in_vain_is_with_the_others_again(trio: Trio) -> None:
    trio.say(TRAINS, 0, 1)
    trio.say(WAITS, 2)
    trio.say(ALONE, 2, last=True)
    trio.watch()

    def on_poll() -> None:
        if trio.was_started(2):
            trio.say(FINISHED, 0, 1, 2, last=True)

    assert trio.end(on_poll) == "finished"
    assert trio.told == ["c: its agent had ended and was restarted"]


def test_hosts_that_have_all_waited_in_vain_have_failed(trio: Trio) -> None:
    trio.say(WAITS, 0, 1, 2)
    trio.say(ALONE, 2, last=True)
    trio.watch()

    def on_poll() -> None:
        if trio.watches[2].outcome:
            trio.say(ALONE, 0, 1, last=True)

    with pytest.raises(TrainingError, match="too few hosts were left"):
        trio.end(on_poll)
    assert not any(trio.was_started(host) for host in (0, 1, 2))


def test_hosts_that_cannot_be_reached_may_go_on_without_the_one_that_can(trio: Trio, tmp_path: Path) -> None:
    away = [host.rename(tmp_path / f"away-{host.name}") for host in trio.hosts[:2]]
    trio.say(ALONE, 2, last=True)
    trio.watch()
    polls = 0

    def on_poll() -> None:
        nonlocal polls
        polls += bool(trio.watches[2].outcome) and not any(watch.is_reached for watch in trio.watches[:2])
        if polls == 5 and away:
            for folder, host in zip(away, trio.hosts, strict=False):
                (folder / "word").write_text(TRAINS + "\n")
                folder.rename(host)
            away.clear()
        if trio.was_started(2):
            trio.say(FINISHED, 0, 1, 2, last=True)

    assert trio.end(on_poll) == "finished"


def test_hosts_that_stay_away_are_not_waited_for(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_watch, "_IN_DOUBT_S", 0.0)
    for host in trio.hosts[:2]:
        host.rmdir()
    trio.say(ALONE, 2, last=True)
    trio.watch()
    with pytest.raises(TrainingError, match="too few hosts were left"):
        trio.end(lambda: None)


def test_a_host_whose_agent_keeps_dying_does_not_end_the_run(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_watch, "_MOST_RESTARTS", 0)
    monkeypatch.setattr(host_watch, "_LAST_WORDS_S", 0.0)
    trio.say(TRAINS, 0, 1)
    trio.say('{"alive": false}', 2, last=True)
    trio.watch()
    polls = 0

    def on_poll() -> None:
        nonlocal polls
        polls += bool(trio.watches[2].outcome)
        if polls == 5:
            trio.say(FINISHED, 0, 1, last=True)

    assert trio.end(on_poll) == "finished"
    assert [message.partition(";")[0] for message in trio.told] == ["c: its agent keeps dying"]
