"""Records: what is written is read, whatever a killed process left behind and while the file grows."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from echelon.errors import RunError
from echelon.monitor.records import RecordReader, RecordWriter, read_records, skim_records
from tests.conftest import filled


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records" / "worker-0.jsonl"


def test_what_is_written_is_read(path: Path) -> None:
    before = time.time()
    writer = RecordWriter(path)
    writer.write("start", step=0, steps=10)
    writer.write("sample", source="Grüße\n", output="\u2028")
    writer.close()
    first, second = read_records(path)
    assert (first["kind"], first["step"], first["steps"]) == ("start", 0, 10)
    assert (second["source"], second["output"]) == ("Grüße\n", "\u2028")
    assert before - 1 <= first["time"] <= second["time"] <= time.time() + 1


def test_a_record_is_never_from_the_future(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1700000000.9996)
    writer = RecordWriter(path)
    writer.write("failure", message="before a restart")
    writer.close()
    assert read_records(path)[0]["time"] == 1700000000.999


def test_a_file_that_is_not_there_has_no_records(path: Path) -> None:
    assert read_records(path) == []


def test_numbers_that_are_not_finite_become_null(path: Path) -> None:
    writer = RecordWriter(path)
    writer.write("step", loss=math.nan, norms=[math.inf, 1.0], more={"x": -math.inf})
    writer.close()
    (line,) = path.read_text().splitlines()
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (record["loss"], record["norms"], record["more"]) == (None, [None, 1.0], {"x": None})


def test_half_a_line_is_not_read_before_it_is_whole(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"kind": "step", "step": 1}\n{"kind": "st')
    reader = RecordReader(path)
    assert [record["step"] for record in reader.read()] == [1]
    assert list(reader.read()) == []
    with open(path, "a") as file:
        file.write('ep", "step": 2}\n')
    assert [record["step"] for record in reader.read()] == [2]


@pytest.mark.parametrize("torn", ['{"kind": "st', "{", "ü"])
def test_a_writer_starts_a_new_line_after_a_torn_one(path: Path, torn: str) -> None:
    path.parent.mkdir()
    path.write_text('{"kind": "step", "step": 1}\n' + torn)
    writer = RecordWriter(path)
    writer.write("step", step=2)
    writer.close()
    assert [record["step"] for record in read_records(path)] == [1, 2]


def test_a_writer_adds_nothing_to_a_file_that_ends_well(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"kind": "step", "step": 1}\n')
    RecordWriter(path).close()
    assert path.read_text() == '{"kind": "step", "step": 1}\n'


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(small_disk: Path) -> None:
    file = small_disk / "worker-0.jsonl"
    writer = RecordWriter(file, flush_s=0.0)
    with filled(small_disk):
        for step in range(1000):
            writer.write("step", step=step, loss=1.0)
        writer.write("event", message="the disk is full")
        assert len(read_records(file)) < 1000
    writer.write("end", outcome="finished")
    writer.close()
    kinds = [record["kind"] for record in read_records(file)]
    assert kinds == ["step"] * 1000 + ["event", "end"]


def test_a_writer_opens_and_closes_on_a_full_disk(small_disk: Path) -> None:
    file = small_disk / "worker-0.jsonl"
    file.write_bytes(b"torn".rjust(4096))  # up to the end of a block
    with filled(small_disk):
        writer = RecordWriter(file)
        writer.write("event", message="there is no room for this")
        writer.close()
    assert read_records(file) == []


def test_lines_that_are_no_records_are_passed_over(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'\xff\xfe\n\n[1]\n3\n{"no": "kind"}\n{"kind": "step", "step": 1}\nnull\n')
    assert read_records(path) == [{"kind": "step", "step": 1}]


@pytest.mark.parametrize(
    "value",
    [
        '"step": -1',
        '"step": true.5',
        '"step": 1e400',
        f'"steps": 1{"0" * 400}',
        f'"loss": 1{"0" * 5000}',
        '"time": -1',
        '"seconds": "long"',
        '"seconds": null',
        '"hosts": [1]',
        '"bytes": -1e300',
        '"phases": {"forward": {}}',
        '"phases": 1',
        '"message": {"a": 1}',
        '"loss": true',
        '"steps": true',
        '"bytes": false',
        f'"gpus": [{{"busy": 1{"0" * 400}}}]',
        '"gpus": Infinity',
        '"gpus": [1]',
        f'"cards": {{"eth0": [1{"0" * 400}, 1]}}',
        '"cards": {"eth0": [1]}',
        '"cards": {"eth0": {"a": 1}}',
    ],
)
def test_records_that_cannot_be_true_are_ignored(path: Path, value: str) -> None:
    path.parent.mkdir()
    path.write_text(f'{{"kind": "step", {value}}}\n{{"kind": "step", "step": 1}}\n')
    assert read_records(path) == skim_records(path) == [{"kind": "step", "step": 1}]


def test_a_line_without_end_is_an_error_and_not_read_into_memory(path: Path) -> None:
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.truncate(2**31)
    with pytest.raises(RunError, match="cannot be read as records: a line has"):
        read_records(path)


def test_long_lines_are_not_kept_together(path: Path) -> None:
    path.parent.mkdir()
    line = b'{"kind": "event", "message": "' + b"x" * (1 << 20) + b'"}\n'
    path.write_bytes(line * 20)
    sizes = [len(batch) for batch in RecordReader(path).read_batches()]
    assert sum(sizes) == 20
    assert max(sizes) < 8


def test_a_reader_follows_a_growing_file_and_reads_every_record_once(path: Path) -> None:
    reader = RecordReader(path)
    assert list(reader.read()) == []
    writer = RecordWriter(path, flush_s=0.0)
    seen = []
    for step in range(5):
        writer.write("valid", step=step)
        seen += [record["step"] for record in reader.read()]
    writer.close()
    assert seen == [0, 1, 2, 3, 4]
    assert list(reader.read()) == []


def test_a_reader_from_the_end_sees_only_what_comes_later(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"kind": "step", "step": 1}\n{"kind": "torn')
    reader = RecordReader(path, from_end=True)
    writer = RecordWriter(path)
    writer.write("valid", step=2)
    writer.close()
    assert [record["step"] for record in reader.read()] == [2]


def test_a_reader_from_the_end_of_a_missing_file_sees_everything(path: Path) -> None:
    reader = RecordReader(path, from_end=True)
    writer = RecordWriter(path)
    writer.write("start", step=0)
    writer.close()
    assert len(list(reader.read())) == 1


def test_steps_wait_for_the_next_flush_and_everything_else_is_written_at_once(path: Path) -> None:
    writer = RecordWriter(path, flush_s=3600.0)
    writer.write("step", step=1)
    assert read_records(path) == []
    writer.write("valid", step=1)
    assert [record["kind"] for record in read_records(path)] == ["step", "valid"]
    writer.write("step", step=2)
    writer.close()
    assert len(read_records(path)) == 3


def test_a_full_disk_does_not_end_the_writer(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records.jsonl")
    with open("/dev/full", "wb", buffering=0) as full:
        good, writer._file = writer._file, full
        writer.write("event", message="no room")
        writer._file = good
    writer.write("event", message="room again")
    writer.close()
    told = [record["message"] for record in read_records(tmp_path / "records.jsonl")]
    assert told == ["no room", "room again"]
