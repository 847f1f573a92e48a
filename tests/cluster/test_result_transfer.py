"""Results that come home from a host as a stream."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest

from echelon.agent.result_archive import BEGIN, chosen_checkpoints, last_step, pack
from echelon.agent.spec import HostSpec
from echelon.cluster.host_session import HostSession
from echelon.cluster.result_transfer import fetch_results, have_no_checkpoint, unpack
from echelon.errors import TrainingError
from echelon.launch.ssh import Remote
from echelon.runfolder import RunFolder
from tests.archives import sparse_tar
from tests.cluster.own_folders import write_whole


def make_run(folder: Path, best: int) -> RunFolder:
    run = RunFolder(folder)
    run.create()
    for step in (10, 20, 30):
        write_whole(run.checkpoints, step, best)
        (run.checkpoints / f"step-{step:08d}" / ".model.safetensors.1.tmp").write_text("a save under way")
    run.score_file("test").write_text("{}")
    run.outputs_file("test").write_text("ein Haus\n")
    run.references_file("test").write_text("ein Haus\n")
    return run


def test_scores_and_the_best_and_the_last_checkpoint_come_home(tmp_path: Path) -> None:
    stream = io.BytesIO()
    stream.write(b"Welcome to there!\n")
    pack(make_run(tmp_path / "there", best=10), stream)
    stream.seek(0)
    home = RunFolder(tmp_path / "here")
    unpack(stream, home.path)
    assert sorted(str(path.relative_to(home.path)) for path in home.path.rglob("*") if path.is_file()) == [
        "checkpoints/step-00000010/model.safetensors",
        "checkpoints/step-00000010/model.safetensors.checksum.json",
        "checkpoints/step-00000010/state.json",
        "checkpoints/step-00000010/state.json.checksum.json",
        "checkpoints/step-00000030/model.safetensors",
        "checkpoints/step-00000030/model.safetensors.checksum.json",
        "checkpoints/step-00000030/state.json",
        "checkpoints/step-00000030/state.json.checksum.json",
        "scores/test.json",
        "scores/test.references",
        "scores/test.txt",
    ]
    assert (home.checkpoints / "step-00000030/model.safetensors").read_bytes() == b"weights 30"


def test_the_step_of_the_newest_checkpoint_is_told(tmp_path: Path) -> None:
    assert last_step(make_run(tmp_path / "run", best=10)) == 30
    empty = RunFolder(tmp_path / "empty")
    empty.create()
    assert last_step(empty) == 0


@pytest.mark.parametrize("missing", ["model.safetensors", "model.safetensors.checksum.json"])
def test_a_save_that_was_cut_short_is_not_taken_for_the_last_checkpoint(tmp_path: Path, missing: str) -> None:
    """A host that was killed while it saved has the new state.json, and not yet everything that it names."""
    run = make_run(tmp_path / "run", best=20)
    (run.checkpoints / "step-00000030" / missing).unlink()
    assert last_step(run) == 20
    assert [folder.name for folder in chosen_checkpoints(run)] == ["step-00000020"]


def test_a_best_checkpoint_that_is_not_whole_stays_where_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", best=10)
    (run.checkpoints / "step-00000010" / "model.safetensors").unlink()
    assert [folder.name for folder in chosen_checkpoints(run)] == ["step-00000030"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("/etc/passwd", tarfile.REGTYPE),
        ("recipe.toml", tarfile.REGTYPE),
        ("scores/../../outside.txt", tarfile.REGTYPE),
        ("scores/test.txt", tarfile.SYMTYPE),
    ],
)
def test_a_host_cannot_write_anywhere_else(tmp_path: Path, name: str, kind: bytes) -> None:
    stream = io.BytesIO()
    stream.write(BEGIN)
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
        archive.addfile(entry)
    stream.seek(0)
    with pytest.raises(tarfile.TarError, match="does not belong to a run"):
        unpack(stream, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def huge_header() -> bytes:
    """A pax header that is said to be 4 GiB long, of which little comes."""
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, 2**32
    return BEGIN + entry.tobuf(tarfile.GNU_FORMAT) + bytes(2**16)


@pytest.mark.parametrize(
    "content",
    [
        BEGIN + sparse_tar("scores/test.json", 2**24),
        BEGIN + sparse_tar("scores/test.txt", 2**24),
        huge_header(),
    ],
    ids=["json", "text", "header"],
)
def test_few_bytes_from_a_host_never_become_many(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(tarfile.TarError, match=r"does not belong to a run|has a header of"):
        unpack(io.BytesIO(content), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_thousands_of_headers_before_a_file_are_no_archive(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2
    chain = (header.tobuf(tarfile.USTAR_FORMAT) + b"a\0".ljust(512, b"\0")) * 5000
    with pytest.raises(tarfile.TarError, match="no archive of a run"):
        unpack(io.BytesIO(BEGIN + chain), tmp_path / "run")


def test_json_from_a_host_is_not_read_without_end(tmp_path: Path) -> None:
    stream = io.BytesIO()
    stream.write(BEGIN)
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        entry = tarfile.TarInfo("scores/test.json")
        entry.size = 2**26 + 1
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    stream.seek(0)
    with pytest.raises(tarfile.TarError, match="does not belong to a run"):
        unpack(stream, tmp_path / "run")


def test_a_transfer_that_breaks_off_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    stream = io.BytesIO()
    pack(make_run(tmp_path / "there", best=10), stream)
    cut = stream.getvalue()[: stream.getvalue().index(b"weights 30") + 5]
    with pytest.raises(tarfile.TarError):
        unpack(io.BytesIO(cut), tmp_path / "here")
    newest = tmp_path / "here" / "checkpoints" / "step-00000030"
    assert list(newest.iterdir()) == []


def test_a_result_that_cannot_be_brought_home_is_told_with_each_host_s_reason(tmp_path: Path) -> None:
    """The stand-in for Python answers nothing, and then packs nothing."""
    run = RunFolder(tmp_path / "run")
    run.create()
    specs = [HostSpec(name, "127.0.0.1", "lo", 1) for name in ("here", "there")]
    sessions = [HostSession(n, Remote("localhost"), ("false",), spec, False) for n, spec in enumerate(specs)]
    with pytest.raises(TrainingError, match=r"the same command tries again:\nhere: .*\nthere: "):
        fetch_results(sessions, run)


def test_a_host_that_cannot_be_asked_may_have_the_only_checkpoint(tmp_path: Path) -> None:
    """`cloud down` would remove it."""
    empty = RunFolder(tmp_path / "empty")
    empty.create()
    spec = HostSpec("here", "127.0.0.1", "lo", 1)
    answers = HostSession(0, Remote("localhost"), (sys.executable,), spec, False)
    is_silent = HostSession(1, Remote("localhost"), ("false",), spec, False)
    assert have_no_checkpoint([answers], empty)
    assert not have_no_checkpoint([answers, is_silent], empty)
    assert not have_no_checkpoint([answers], make_run(tmp_path / "run", best=10))
