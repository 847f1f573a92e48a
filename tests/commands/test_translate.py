"""`echelon translate`: from file to file, with everything that can be asked for, by one process or several."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.translate import (
    Source,
    TranslateOptions,
    as_json,
    as_text,
    open_output,
    translate,
    translate_all,
    translate_in_processes,
)
from echelon.errors import DataError, UserError
from echelon.inference.decoding import Alternative, Translation
from echelon.inference.translator import LINES_AT_A_TIME
from echelon.runfolder import RunFolder
from tests.small_run import sentences

Echelon = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(trained_run: RunFolder) -> RunFolder:
    return trained_run


def test_a_file_is_translated_line_by_line_with_progress(run: RunFolder, tmp_path: Path) -> None:
    lines = [*sentences(7), "", "one \x0c two"]
    with gzip.open(tmp_path / "lines.gz", "wb") as file:
        file.write("".join(f"{line}\n" for line in lines).encode() + b"\xff\xfe broken")
    screen = Console(file=StringIO(), force_terminal=True, width=100)
    options = TranslateOptions(run.path, None, {"beam": 2})
    found = list(translate(options, Source(tmp_path / "lines.gz"), screen))
    assert len(found) == 10
    assert found[7].text == ""
    assert "translating 10 lines" in screen.file.getvalue()  # type: ignore[attr-defined]
    assert "100%" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_progress_does_not_wait_for_the_end_of_a_chunk(run: RunFolder, tmp_path: Path) -> None:
    lines = ["one two red two one red two red\n"] * 1000  # two chunks of several batches each
    (tmp_path / "lines").write_text("".join(lines))
    shown: list[float] = []

    list(
        translate_all(TranslateOptions(run.path, None, {"beam": 1}), Source(tmp_path / "lines"), shown.append)
    )

    assert shown == sorted(shown)
    assert shown[-1] == 1000
    assert len({done for done in shown if done % LINES_AT_A_TIME}) > 2, "only whole chunks were counted"


def test_what_is_printed() -> None:
    found = Translation((Alternative("gut", -0.5), Alternative("besser", -1.25)))
    assert as_text(3, found, with_scores=False) == "gut\n"
    assert as_text(3, found, with_scores=True) == "3\t-0.5000\tgut\n3\t-1.2500\tbesser\n"
    assert as_json(found, with_scores=False) == "gut"
    assert as_json(found, with_scores=True)["alternatives"][1] == {"text": "besser", "score": -1.25}


def test_a_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    def fail() -> None:
        with open_output(tmp_path / "out.txt") as writer:
            writer.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with open_output(tmp_path / "out.txt") as writer:
        writer.write("whole\n")
    assert (tmp_path / "out.txt").read_text() == "whole\n"
    with pytest.raises(UserError, match="cannot be written"), open_output(tmp_path / "no" / "out.txt"):
        pass


def test_links_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with open_output(tmp_path / "link") as writer:
        writer.write("whole\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "whole\n"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: list(Source(tmp_path / "pipe")))
        with open_output(tmp_path / "pipe") as writer:
            writer.write("one\ntwo\n")
        assert read.result() == ["one", "two"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_to_write_to_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a file in it"), open_output(tmp_path):
        pass


def test_mistakes_are_named(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Source(tmp_path / "nowhere")
    (tmp_path / "lines").write_text("one\n")
    options = TranslateOptions(run.path, None, {"n_best": 0})
    with pytest.raises(UserError, match="n_best = 0 must be at least 1"):
        list(translate(options, Source(tmp_path / "lines"), Console(file=StringIO())))


@pytest.mark.slow
def test_several_processes_give_what_one_gives(run: RunFolder, tmp_path: Path) -> None:
    lines = sentences(700)
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    console = Console(file=StringIO())
    alone = list(translate(TranslateOptions(run.path, None, {}), Source(tmp_path / "lines"), console))
    together = list(translate_in_processes(TranslateOptions(run.path, None, {}, processes=2), lines))
    assert [found.text for found in together] == [found.text for found in alone]
    wrong = TranslateOptions(run.path / "nowhere", None, {}, processes=2)
    with pytest.raises(UserError, match="there is no run here"):
        list(translate_in_processes(wrong, lines))


@pytest.mark.slow
def test_the_command_line_has_all_of_it(run: RunFolder, tmp_path: Path, echelon: Echelon) -> None:
    listed = echelon("translate", run.path, "--n-best", "2", stdin="one two\n\nred\n").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == ["1", "1", "2", "3", "3"]
    options = (
        "--sample",
        "1.0",
        "--seed",
        "4",
        "--prefix",
        "Vogel",
        "--max-length",
        "6",
        "--json",
        "--alignment",
    )
    (found,) = json.loads(echelon("translate", run.path, *options, stdin="one two").stdout)["translations"]
    assert found["text"].startswith("Vogel")
    assert found["alignment"]["weights"]
    echelon("export", run.path, "--format", "ctranslate2", "--precision", "int8", "--to", tmp_path / "out")
    (tmp_path / "in.txt").write_text("one\n\ntwo\n")
    files = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    echelon("translate", tmp_path / "out", *files)
    assert (tmp_path / "out.txt").read_text().count("\n") == 3
    refused = echelon("translate", run.path, "--top-k", "3", stdin="one", status=2)
    assert "give a temperature too" in refused.stderr
