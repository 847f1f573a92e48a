"""The hosts of a run, as they are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.agent.spec import HostSpec
from echelon.cluster.host_session import HostSession
from echelon.cluster.roster import open_sessions, read_roster, trust_roster, write_roster
from echelon.commands.resume import refuse_to_leave_hosts
from echelon.errors import RunError
from echelon.launch.ray_cluster import RayPlace
from echelon.launch.ray_remote import RayRemote
from echelon.launch.ssh import Remote
from echelon.launch.trust import digest_of, trust
from echelon.runfolder import RunFolder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = RunFolder(tmp_path / "run")
    run.create()
    return run


def session() -> HostSession:
    return HostSession(0, Remote("gpu1"), ("/opt/python",), HostSpec("gpu1", "10.0.0.1", "eth0", 2), True)


def test_the_hosts_of_one_s_own_run_are_found_again(run: RunFolder) -> None:
    assert read_roster(run) is None
    write_roster(run, [session()], "desk", Path("/home/ann/ssh_config"))
    roster = read_roster(run)
    assert roster is not None
    with open_sessions(roster) as (found,):
        assert (found.number, found.name, found.python) == (0, "gpu1", ("/opt/python",))
        assert found.remote.by_hand == "ssh -F /home/ann/ssh_config gpu1"


def test_the_nodes_of_a_run_on_ray_are_found_again(run: RunFolder) -> None:
    place = RayPlace("10.0.0.1:6379", "echelon-0a")
    write_roster(run, [session()], "desk", None, ray=place)
    roster = read_roster(run)
    assert roster is not None
    with open_sessions(roster) as (found,):
        assert isinstance(found.remote, RayRemote)
    assert (roster.ray, place.actor_name("ray-2")) == (place, "echelon-0a-ray-2")
    with pytest.raises(
        RunError, match=r"--launcher ray --address 10\.0\.0\.1:6379 --workers 2` resumes it there"
    ):
        refuse_to_leave_hosts(run)


def test_hosts_that_were_changed_by_somebody_else_are_refused_until_accepted(run: RunFolder) -> None:
    write_roster(run, [session()], "desk", None)
    run.hosts.write_text(run.hosts.read_text().replace("/opt/python", "/tmp/python"))
    with pytest.raises(RunError, match="use --trust-hosts"):
        read_roster(run)
    trust_roster(run)
    roster = read_roster(run)
    assert roster is not None
    assert roster.entries[0].python == ("/tmp/python",)


def test_a_host_that_was_told_the_digest_reads_them_too(run: RunFolder) -> None:
    write_roster(run, [session()], "desk", None)
    digest = digest_of(run.hosts.read_bytes())
    (Path.home() / ".echelon" / "rosters" / digest).unlink()
    with pytest.raises(RunError):
        read_roster(run)
    trust(digest)
    assert read_roster(run) is not None


def test_a_damaged_file_says_so(run: RunFolder) -> None:
    run.hosts.write_text("[")
    trust_roster(run)
    with pytest.raises(RunError, match="is damaged"):
        read_roster(run)


def test_a_home_that_cannot_be_written_is_told(run: RunFolder) -> None:
    Path.home().write_text("not a folder")
    with pytest.raises(RunError, match="cannot be made"):
        trust("0" * 64)
    write_roster(run, [session()], "desk", None)
    assert run.hosts.exists(), "training goes on all the same"
