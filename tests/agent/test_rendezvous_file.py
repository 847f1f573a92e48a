"""Notes in the run folder by which processes find each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echelon.agent import rendezvous_file
from echelon.agent.rendezvous_file import RendezvousFolder, address_for_others
from echelon.errors import RunError, UserError
from echelon.launch.interfaces import InterfaceAddress
from echelon.launch.site import Address, Place
from echelon.runfolder import RunFolder

ONE_HOST = Place("mpirun", 0, 2, 0, 2, "prterun-node1-4711@1")
TWO_HOSTS = Place("mpirun", 0, 2, 0, 1, "prterun-node1-4711@1")
INTERFACES = [
    InterfaceAddress("lo", "127.0.0.1"),
    InterfaceAddress("docker0", "172.17.0.1"),
    InterfaceAddress("eth1", "10.0.0.1"),
]


@pytest.fixture
def board(tmp_path: Path) -> RendezvousFolder:
    return RendezvousFolder(RunFolder(tmp_path / "runs" / "toy"), TWO_HOSTS)


def test_an_invitation_is_found_while_it_lasts_and_nothing_is_left(
    board: RendezvousFolder, tmp_path: Path
) -> None:
    assert board.find() is None
    with board.invite(Address("10.0.0.1", 4000)) as invitation:
        assert board.find() == invitation
        assert board.folder.name == "mpirun-prterun-node1-4711_1"
        assert board.folder.stat().st_mode & 0o077 == 0, "the secret is for this user alone"
        assert len(invitation.secret) == 32
    assert board.find() is None
    assert not (tmp_path / "runs" / "toy").exists()


def test_a_run_that_has_begun_stays(board: RendezvousFolder, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "toy"
    with board.invite(Address("10.0.0.1", 4000)):
        (run / "recipe.toml").write_text("")
    assert [path.name for path in run.iterdir()] == ["recipe.toml"]


@pytest.mark.parametrize(
    "note", ["", "{", "[]", '{"host": "a"}', '{"host": "a", "port": "x", "secret": "s"}']
)
def test_a_note_that_is_none_is_not_there(board: RendezvousFolder, note: str) -> None:
    board.folder.mkdir(parents=True)
    (board.folder / "invitation.json").write_text(note)
    assert board.find() is None


def test_other_starts_have_other_boards(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    first = RendezvousFolder(run, Place("srun", 0, 2, 0, 2, "17-0"))
    again = RendezvousFolder(run, Place("srun", 0, 2, 0, 2, "17-0-1"))
    with first.invite(Address("10.0.0.1", 4000)):
        assert again.find() is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    board = RendezvousFolder(RunFolder(tmp_path / "file"), TWO_HOSTS)
    with pytest.raises(RunError, match="cannot be written"), board.invite(Address("10.0.0.1", 4000)):
        pass


@pytest.mark.parametrize("name", ["rendezvous", "rendezvous/mine"])
def test_a_link_leads_neither_the_secret_nor_the_removal_elsewhere(
    board: RendezvousFolder, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "elsewhere" / board.folder.name / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    link = board.folder if "/" in name else board.folder.parent
    link.parent.mkdir(parents=True)
    link.symlink_to(precious.parent if "/" in name else precious.parents[1])
    with pytest.raises(RunError, match="is a link"), board.invite(Address("127.0.0.1", 1)):
        pass
    assert [path.name for path in precious.parent.iterdir()] == ["thesis.txt"]


def test_one_host_meets_on_loopback(board: RendezvousFolder) -> None:
    assert address_for_others(ONE_HOST, board, limit_s=0.0) == "127.0.0.1"


def announce(board: RendezvousFolder, rank: int, name: str, addresses: list[str]) -> None:
    board.folder.mkdir(parents=True, exist_ok=True)
    note = json.dumps({"name": name, "addresses": addresses})
    (board.folder / f"host-{rank}.json").write_text(note)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has Docker's bridge, as every host has, and a card for the cluster."""
    monkeypatch.setattr(rendezvous_file, "own_interfaces", lambda: INTERFACES)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)

    def towards(address: str) -> InterfaceAddress:
        if not address.startswith("10.0.0."):
            raise UserError(f"no network interface of this host leads to {address}")
        return INTERFACES[2]

    monkeypatch.setattr(rendezvous_file, "interface_towards", towards)


@pytest.mark.usefixtures("cards")
def test_the_interface_that_leads_to_another_host_is_taken(board: RendezvousFolder) -> None:
    announce(board, 1, "nowhere.invalid", ["172.17.0.1", "192.168.7.2", "10.0.0.2"])
    assert board.wait_for_another_host(0.5) == ["192.168.7.2", "10.0.0.2"], (
        "172.17.0.1 would be this host itself"
    )
    assert address_for_others(TWO_HOSTS, board, 0.5) == "10.0.0.1"


@pytest.mark.usefixtures("cards")
def test_what_the_sites_names_mean_comes_first(
    board: RendezvousFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_file, "resolve", lambda name: {"node2": "10.0.0.2"}[name])
    announce(board, 1, "node2", ["192.168.7.2"])
    assert board.wait_for_another_host(0.5)[0] == "10.0.0.2"


@pytest.mark.usefixtures("cards")
def test_a_process_of_this_very_host_is_no_other_host(board: RendezvousFolder) -> None:
    announce(board, 1, "node1", ["172.17.0.1", "10.0.0.1"])
    with pytest.raises(
        UserError, match=r"put the run folder \(--run\) where all hosts see it, or set MASTER_ADDR"
    ):
        address_for_others(TWO_HOSTS, board, 0.3)


@pytest.mark.usefixtures("cards")
def test_no_way_to_another_host_is_said(board: RendezvousFolder) -> None:
    announce(board, 1, "nowhere.invalid", ["192.168.7.2"])
    with pytest.raises(UserError, match=r"leads to 192\.168\.7\.2; set MASTER_ADDR and MASTER_PORT"):
        address_for_others(TWO_HOSTS, board, 0.3)


def test_the_users_interface_is_taken(board: RendezvousFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    monkeypatch.setattr(rendezvous_file, "interface_named", lambda name: {"eth1": INTERFACES[2]}[name])
    assert address_for_others(TWO_HOSTS, board, 0.0) == "10.0.0.1"


def test_a_host_announces_its_addresses(board: RendezvousFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_file, "own_interfaces", lambda: INTERFACES)
    board.announce_host(3)
    note = json.loads((board.folder / "host-3.json").read_text())
    assert note["addresses"] == ["172.17.0.1", "10.0.0.1"]
