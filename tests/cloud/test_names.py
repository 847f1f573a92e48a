"""A cluster's name is a folder, a tag and a host name: what is none is refused before anything is deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.resources import find_everything
from echelon.cloud.inventory import host_name, render_known_hosts
from echelon.cloud.journal import Journal, known_clusters
from echelon.commands import cloud
from echelon.commands.cluster_options import ClusterOptions, on_rented
from echelon.errors import UserError
from tests.cloud.clusters import down, sample_spec, up
from tests.cloud.server import everything_left

BAD = [
    "",
    ".",
    "..",
    "/",
    "../clusters",
    "a/b",
    "a\\b",
    "wmt\n",
    "-rf",
    "\x1b[2J",
    "wmt*",
    "WMT",
    "a",
    "x" * 40,
]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two clusters with keys."""
    folder = tmp_path / "state"
    monkeypatch.setenv("ECHELON_STATE", str(folder))
    for name in ("one", "two"):
        (folder / "clusters" / name).mkdir(parents=True)
        (folder / "clusters" / name / "key").write_text("secret")
    return folder


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_none_is_refused_and_nothing_is_deleted(state: Path, name: str) -> None:
    def ask(question: str) -> bool:
        pytest.fail("asked")

    acts: list[Callable[[], object]] = [
        lambda: Journal(name),
        lambda: cloud.down(name, None, ask, Console(quiet=True)),
        lambda: cloud.ssh_command(name, 0, None, []),
        lambda: on_rented(name, ClusterOptions([])),
        lambda: sample_spec(name=name),
    ]
    for act in acts:
        with pytest.raises(UserError, match="2 to 32 small letters"):
            act()
    with pytest.raises(ValueError, match="2 to 32 small letters"):
        host_name(name, 0)
    with pytest.raises(ValueError, match="2 to 32 small letters"):
        render_known_hosts(name, "ssh-ed25519 key")
    assert sorted(path.name for path in state.glob("clusters/*/*")) == ["key", "key"]


@pytest.mark.parametrize("name", ["", ".."])
def test_the_command_line_refuses_it_as_the_users_mistake(state: Path, name: str) -> None:
    command = [sys.executable, "-m", "echelon", "cloud", "down", name, "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 2, done.stderr
    assert "2 to 32 small letters" in " ".join(done.stderr.split())
    assert len(list(state.glob("clusters/*/key"))) == 2


def test_a_record_under_another_name_is_damaged(aws: Clients) -> None:
    up(aws)
    folder = Journal("wmt").folder
    folder.rename(folder.with_name("other"))
    with pytest.raises(UserError, match="is damaged"):
        Journal("other").read()
    folder.with_name("other").rename(folder.with_name("Not a name"))
    assert known_clusters() == []


def remove(name: str, region: str | None = None) -> None:
    cloud.down(name, region, lambda question: True, Console(quiet=True))


def test_removing_a_mistyped_name_is_an_error_that_suggests_the_right_one(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "Clients", lambda region: aws)
    up(aws)
    before = everything_left()
    with pytest.raises(UserError, match=r"no cluster 'wtm'.*did you mean wmt\?"):
        remove("wtm")
    with pytest.raises(UserError, match=r"did you mean wmt\?"):
        cloud.ssh_command("wnt", 0, None, [])
    assert everything_left() == before
    Journal("wmt").forget()
    with pytest.raises(UserError, match=r"did you mean wmt\?"):
        remove("wtm")  # a second laptop's: only the tags know it
    remove("wmt")
    assert everything_left() == []
    with pytest.raises(UserError, match="no cluster 'wmt'"):
        remove("wmt")


def test_a_cluster_in_another_region_is_another_cluster(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second laptop has the same name elsewhere: what one of them removes is its own."""
    first = up(aws)
    home, other = os.environ["ECHELON_STATE"], Clients("eu-west-1")
    monkeypatch.setenv("ECHELON_STATE", f"{home}-2")
    up(other, sample_spec(region="eu-west-1"))
    monkeypatch.setenv("ECHELON_STATE", home)
    monkeypatch.setattr(cloud, "Clients", lambda region: other)
    before = everything_left()
    remove("wmt", "eu-west-1")
    assert everything_left() == [each for each in before if "eu-west-1" not in each]
    assert Journal("wmt").require() == first, "the record is of the one that is left"
    assert [found.kind for found in find_everything(other)] == []
    assert down(aws).left == []
    assert everything_left() == []
