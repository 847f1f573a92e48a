from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from echelon.errors import TrainingError
from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, clear_for_saving
from echelon.lease import LEASE_S, Lease, fence, file_name, newest_generation
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import list_checkpoints
from echelon.train.checkpoint_writer import CheckpointWriter, SaveJob, plan_files
from tests.conftest import filled

RACER = """
import sys, time
from pathlib import Path
from echelon.lease import Lease
from echelon.runfolder import RunFolder
lease = Lease(RunFolder(Path(sys.argv[1])), sys.argv[2])
lease.look()
print("here", flush=True)
sys.stdin.read(1)
print(lease.claim(1), flush=True)
"""


class Clock:
    """Each host has its own."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def test_of_several_hosts_that_race_for_a_number_one_gets_it(run: RunFolder) -> None:
    command = [sys.executable, "-c", RACER, str(run.path)]
    racers = [
        subprocess.Popen([*command, f"host{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "here\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("!")
        racer.stdin.flush()
    claims = [racer.communicate()[0].strip() for racer in racers]
    assert sorted(claims) == ["1", "None", "None", "None"]


def test_a_fresh_lease_is_not_taken_over_and_a_stale_one_is(run: RunFolder) -> None:
    clock = Clock()
    one, two = Lease(run, "host1", clock), Lease(run, "host2", clock)
    assert one.claim(1) == 1
    assert two.claim(2) is None
    for _ in range(5):
        clock.now += LEASE_S * 0.6
        assert one.renew()
        assert two.claim(2) is None, "it is renewed"
    clock.now += LEASE_S
    assert two.claim(2) == 2
    assert not one.renew(), "the first host is told that it has lost the folder"
    assert two.renew()


def test_a_host_that_has_just_come_waits_although_the_file_is_old(run: RunFolder) -> None:
    early, late = Clock(), Clock()
    assert Lease(run, "host1", early).claim(1) == 1
    late.now += 10**6
    newcomer = Lease(run, "host2", late)
    assert newcomer.claim(2) is None, "clocks of hosts are not compared"
    late.now += LEASE_S
    assert newcomer.claim(2) == 2


def test_a_lease_that_was_given_back_is_free_at_once(run: RunFolder) -> None:
    one, two = Lease(run, "host1"), Lease(run, "host2")
    assert one.claim(1) == 1
    one.give_back()
    assert two.claim(2) == 2
    one.give_back()  # which no longer is its own to give
    assert two.renew()


def test_its_holder_goes_on_with_the_next_free_number(run: RunFolder) -> None:
    lease = Lease(run, "host1")
    assert [lease.claim(1), lease.claim(2), lease.claim(2)] == [1, 2, 3]
    assert newest_generation(run.generations) == 3


def test_a_folder_that_is_gone_is_an_error_not_a_free_folder(run: RunFolder) -> None:
    lease = Lease(run, "host1")
    assert lease.claim(1) == 1
    run.path.rename(run.path.with_name("away"))
    with pytest.raises(OSError, match="No such file"):
        lease.look()
    with pytest.raises(OSError, match="No such file"):
        lease.renew()
    with pytest.raises(OSError, match="No such file"):
        lease.claim(2)


def test_a_generation_that_was_replaced_cannot_vouch_for_a_checkpoint(run: RunFolder) -> None:
    """Its files may be there, but nothing says that they are whole, so that nobody loads them."""
    clock = Clock()
    one, two = Lease(run, "host1", clock), Lease(run, "host2", clock)
    assert one.claim(1) == 1
    save(run, step=10, generation=1)
    assert [checkpoint.step for checkpoint in list_checkpoints(run.checkpoints)] == [10]
    two.look()
    clock.now += LEASE_S
    assert two.claim(2) == 2
    with pytest.raises(TrainingError, match="generation 1 has been replaced by 2"):
        save(run, step=20, generation=1)
    assert [checkpoint.step for checkpoint in list_checkpoints(run.checkpoints)] == [10]
    save(run, step=20, generation=2)
    assert len(list_checkpoints(run.checkpoints)) == 2


def test_a_save_that_froze_halfway_leaves_the_newer_generations_checkpoint_as_it_is(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.generations.mkdir()
    (run.generations / file_name(1)).touch()
    fsync, num_calls = os.fsync, 0

    def freeze(descriptor: int) -> None:
        """While the first file is on its way to the disk the others take over, and save the same step."""
        nonlocal num_calls
        num_calls += 1
        fsync(descriptor)
        if num_calls == 1:
            (run.generations / file_name(2)).touch()
            with monkeypatch.context() as other:
                other.setattr("os.getpid", lambda: 1)
                save(run, step=20, generation=2, value=2.0)

    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", freeze)
    with pytest.raises(TrainingError, match="generation 1 has been replaced by 2"):
        save(run, step=20, generation=1, value=1.0)
    (checkpoint,) = list_checkpoints(run.checkpoints)
    checkpoint.verify()
    assert checkpoint.load_model()["weights"].eq(2.0).all()


def save(run: RunFolder, step: int, generation: int, value: float = 1.0) -> None:
    """As a worker of that generation does; raises what went wrong."""
    folder, weights = checkpoint_folder(run.checkpoints, step), torch.full((10,), value)
    clear_for_saving(folder)
    files, names = plan_files({"weights": weights}, {"exp_avg/weights": weights}, 0, 1)
    writer = CheckpointWriter()
    writer.start(SaveJob(folder, files, TrainingState(step=step), names, fence(run, generation)))
    writer.wait_written()
    error = writer.take_error()
    if error is not None:
        raise error


def test_a_lease_is_renewed_on_a_full_disk(small_disk: Path) -> None:
    run, clock = RunFolder(small_disk / "run"), Clock()
    run.create()
    holder, other = Lease(run, "holder", clock), Lease(run, "other", clock)
    assert holder.claim(1) == 1
    with filled(small_disk):
        for _ in range(12):
            other.look()
            clock.now += LEASE_S / 2
            assert holder.renew()
        other.look()
        assert other.claim(2) is None
