"""`train` as one of several processes, up to where they begin."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from echelon.agent.outcome import RunOutcome
from echelon.commands import site_training
from echelon.commands.site_training import own_workers, train_at_site
from echelon.commands.training import TrainOptions
from echelon.errors import StoppedError, UserError
from echelon.launch.interfaces import is_loopback, own_interfaces
from echelon.launch.site import Address, Place
from echelon.recipe.workers import WorkerRange
from tests.sample_recipe import sample_recipe

HOST = Place("by hand", rank=0, size=2, is_host=True)


def test_a_host_among_several_is_told_how_many_workers_to_start() -> None:
    recipe, options = sample_recipe("train.workers=auto"), TrainOptions(Path("recipe.toml"))
    with pytest.raises(UserError, match="say how many each host starts: --workers N"):
        own_workers(options, HOST, recipe)
    assert own_workers(options, HOST, sample_recipe("train.workers=3")) == 3


def test_no_number_of_workers_is_measured_where_a_launcher_has_started_them(
    toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TrainOptions] = []

    def begin(options: TrainOptions, _console: Console) -> None:
        asked.append(options)
        raise StoppedError("far enough")

    monkeypatch.setattr(site_training, "begin", begin)
    place = Place("mpirun", rank=0, size=2, local_size=2, master=Address("127.0.0.1", 0))
    options = TrainOptions(toy_recipe, tmp_path / "run", None, ["train.workers=auto"])
    with pytest.raises(StoppedError, match="far enough"):
        train_at_site(options, place, Console(quiet=True))
    assert [each.workers for each in asked] == [WorkerRange(2, 2)], (
        "as many as on this host, kept with the run"
    )


def test_hosts_may_differ_in_their_number_of_workers(toy_recipe: Path, tmp_path: Path) -> None:
    options = [TrainOptions(toy_recipe, tmp_path / "run", WorkerRange(count, count)) for count in (1, 2)]
    hellos = [site_training._SiteProcess(each, HOST, Console(quiet=True))._hello() for each in options]
    assert [hello.workers for hello in hellos] == [1, 2]
    assert hellos[0].recipe == hellos[1].recipe


def own_card() -> str:
    """An address of this machine that others could reach."""
    return next(
        (interface.address for interface in own_interfaces() if not is_loopback(interface.address)), ""
    )


@pytest.mark.parametrize("is_open", [True, False], ids=["on the network", "on loopback"])
@pytest.mark.parametrize("secret", ["", "0123456789abcdef"])
def test_who_listens_on_the_network_without_a_secret_is_warned(
    toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool, secret: str
) -> None:
    address = own_card() if is_open else "127.0.0.1"
    if not address:
        pytest.skip("this machine has no network")

    def begin(_options: TrainOptions, _console: Console) -> None:
        raise StoppedError("far enough")

    monkeypatch.setattr(site_training, "begin", begin)
    monkeypatch.setenv("ECHELON_SECRET", secret)
    place = Place("by hand", rank=0, size=2, master=Address(address, 0), is_host=True)
    told = io.StringIO()
    options = TrainOptions(toy_recipe, tmp_path / "run", WorkerRange(1, 1))
    with pytest.raises(StoppedError, match="far enough"):
        train_at_site(options, place, Console(file=told, width=500))
    assert ("can take a host's place" in told.getvalue()) == (is_open and not secret)


def test_what_other_hosts_failed_of_is_safe_to_print() -> None:
    assert str(site_training._failure(RunOutcome("failed", "a\x1b[2Jb\n  c"))) == "a\\u001b[2Jb\n  c"
    assert [
        site_training._failure(RunOutcome("failed", "", is_final=final)).exit_status
        for final in (False, True)
    ] == [1, 2]
