from __future__ import annotations

import errno
import gzip
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from echelon.data import prepare as module
from echelon.data import shards
from echelon.data.cleaning import Dropped
from echelon.data.demo_corpus import generate
from echelon.data.exclusive_folder import exclusive
from echelon.data.prepare import default_cache, prepare
from echelon.data.prepared import Prepared, open_prepared
from echelon.data.progress import Progress
from echelon.data.tokeniser import EOS, UNK, Tokeniser
from echelon.errors import DataError
from echelon.recipe.schema import Clean, Corpus, Data, TrainingCorpus
from tests.data.corpus_files import MakeData, random_lines

SCRIPT = """
import sys
from pathlib import Path
from echelon.data.prepare import prepare
from echelon.recipe.schema import Data

def main():
    folder = Path(sys.argv[1])
    data = Data.model_validate_json((folder / "data.json").read_text())
    tell = lambda progress: print(progress.stage, flush=True)
    prepared = prepare(data, recipe_folder=folder, cache=folder / "cache", progress=tell)
    # Not getrusage: its maximum includes the process that started this one.
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(prepared.key, peak, flush=True)

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Child:
    """A process that prepares what data.json in a folder says."""

    process: subprocess.Popen[str]

    def wait_for(self, stage: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(stage):
                return
        raise AssertionError(f"{stage} was never reached")

    def result(self) -> tuple[str, int]:
        """The key, and the most memory used in MiB."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0
        key, kibibytes = output.split("\n")[-2].split()
        return key, int(kibibytes) // 1024


def start(folder: Path, data: Data) -> Child:
    (folder / "data.json").write_text(data.model_dump_json())
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return Child(
        subprocess.Popen(
            [sys.executable, str(folder / "script.py"), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
    )


def prepare_in(folder: Path, data: Data, **options: Path) -> Prepared:
    return prepare(data, recipe_folder=folder, cache=folder / "cache", **options)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def texts(prepared: Prepared, corpus: int = 0) -> list[tuple[str, str]]:
    """The training pairs, decoded."""
    tokeniser, store = Tokeniser.load(prepared.tokeniser_path), prepared.train[corpus]
    source = tokeniser.decode([store.source(index).tolist() for index in range(len(store))])
    target = tokeniser.decode([store.target(index).tolist() for index in range(len(store))])
    return list(zip(source, target, strict=True))


def test_training_text_is_cleaned_and_counted(make_data: MakeData, tmp_path: Path) -> None:
    source = [
        "a  small\u200b dog",
        "",
        "same",
        "a small dog",
        "one " * 12,
        "longer than all that one here is",
    ]
    target = ["ein Hund", "x", "same", "ein Hund", "eins", "kurz"]
    prepared = prepare_in(tmp_path, make_data((source, target), clean=Clean(max_words=10, max_ratio=6.0)))
    assert texts(prepared) == [("a small dog", "ein Hund")]
    entry = prepared.manifest.corpora[0]
    assert (entry.name, entry.label) == ("train-0", "train0.en | train0.de")
    assert (entry.lines, entry.pairs) == (6, 1)
    assert entry.dropped == Dropped(empty=1, identical=1, duplicate=1, too_long=1, ratio=1)
    assert (entry.source.words, entry.source.bytes) == (3, 11)
    assert entry.source.tokens == len(prepared.train[0].source(0))


def test_validation_and_test_sets_keep_every_line(make_data: MakeData, tmp_path: Path) -> None:
    source = ["z  z", "", "same", "a", "a", "long " * 200]
    target = ["Z\u00a0Z ", "x\u2028y", "same", "b\t", "", "u\u0308"]
    train = (random_lines(20, 1), random_lines(20, 2))
    prepared = prepare_in(tmp_path, make_data(train, valid=(source, target), test=(target, source)))
    assert prepared.valid.source_lines() == ["z z", "", "same", "a", "a", ("long " * 200).strip()]
    assert prepared.valid.reference_lines() == target
    assert prepared.valid.source(1).tolist() == [EOS]
    assert len(prepared.valid) == 6
    assert prepared.test is not None
    assert prepared.test.reference_lines() == source
    assert prepared.test.source_lines()[:2] == ["Z Z", "x y"]
    assert prepared.manifest.corpora[1].dropped == Dropped()


def test_byte_order_mark_and_windows_line_ends_do_not_reach_the_references(
    make_data: MakeData, tmp_path: Path
) -> None:
    data = make_data((["a b"], ["c d"]), valid=(["a", "b"], ["c", "d"]))
    (tmp_path / "valid.de").write_bytes("\ufeffc\r\n d\r\n".encode())
    assert prepare_in(tmp_path, data).valid.reference_lines() == ["c", " d"]


def test_first_of_duplicates_is_kept_across_corpora(make_data: MakeData, tmp_path: Path) -> None:
    first = (["a", "b", "a", "a"], ["x", "y", "x", "z"])
    second = (["c", "b", "c"], ["w", "y", "w"])
    prepared = prepare_in(tmp_path, make_data(first, second))
    assert texts(prepared, 0) == [("a", "x"), ("b", "y"), ("a", "z")]
    assert texts(prepared, 1) == [("c", "w")]
    assert [entry.dropped.duplicate for entry in prepared.manifest.corpora] == [1, 2, 0]
    kept = prepare_in(tmp_path, make_data(first, second, clean=Clean(drop_duplicates=False)))
    assert [len(store) for store in kept.train] == [4, 3]


def test_corpus_that_cleaning_empties_is_no_error_beside_another(make_data: MakeData, tmp_path: Path) -> None:
    prepared = prepare_in(tmp_path, make_data((["same"], ["same"]), (["a"], ["b"])))
    assert [len(store) for store in prepared.train] == [0, 1]


def test_text_that_cleaning_empties_is_explained(make_data: MakeData, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepare_in(tmp_path, make_data((["same", ""], ["same", "x"])))
    assert str(caught.value) == (
        "cleaning left no training pair: train0.en | train0.de had 2 pairs, dropped were 1 empty, 1 identical"
    )


def test_same_content_is_found_again_wherever_it_lies(make_data: MakeData, tmp_path: Path) -> None:
    lines = (random_lines(30, 1), random_lines(30, 2))
    first = prepare_in(tmp_path, make_data(lines))
    stamp = first.folder.stat().st_mtime_ns
    (tmp_path / "train0.en").rename(tmp_path / "moved.en")
    (tmp_path / "train0.de").write_bytes(gzip.compress((tmp_path / "train0.de").read_bytes()))
    data = make_data(lines)
    again = prepare_in(tmp_path, data.model_copy(update={"max_tokens": 5}))
    assert (again.key, again.folder.stat().st_mtime_ns) == (first.key, stamp)


def test_whatever_changes_the_result_changes_the_key(make_data: MakeData, tmp_path: Path) -> None:
    source, target = random_lines(30, 1), random_lines(30, 2)
    base = prepare_in(tmp_path, make_data((source, target)))
    keys = {
        base.key,
        prepare_in(tmp_path, make_data((source, target), vocabulary=200)).key,
        prepare_in(tmp_path, make_data((source, target), clean=Clean(unicode="NFKC"))).key,
        prepare_in(tmp_path, make_data((source, target), valid=(["a"], ["c"]))).key,
        prepare_in(tmp_path, make_data((target, source))).key,
        prepare_in(tmp_path, make_data((source, target), (["a"], ["b"]))).key,
        prepare_in(tmp_path, make_data((source, target)), tokeniser=base.tokeniser_path).key,
    }
    assert len(keys) == 7


def test_a_name_that_makes_segments_of_lines_changes_the_key(make_data: MakeData, tmp_path: Path) -> None:
    text = b"<doc>\n<seg>a</seg>\n<seg>b</seg>\n"
    made = make_data((["a b"], ["c d"]))
    results = []
    for ending in ("txt", "sgm"):
        for side in ("en", "de"):
            (tmp_path / f"{side}.{ending}").write_bytes(text)
        valid = Corpus(source=f"en.{ending}", target=f"de.{ending}")
        prepared = prepare_in(tmp_path, made.model_copy(update={"valid": valid}))
        results.append((prepared.manifest.corpora[-1].lines, prepared.manifest.inputs[-1].name))
    assert results == [(3, "valid.target"), (2, "valid.target.sgm")]


def test_given_tokeniser_is_used(make_data: MakeData, tmp_path: Path) -> None:
    first = prepare_in(tmp_path, make_data((random_lines(30, 1), random_lines(30, 2))))
    second = prepare_in(tmp_path, make_data((["ab"], ["cd"])), tokeniser=first.tokeniser_path)
    assert second.tokeniser_path.read_bytes() == first.tokeniser_path.read_bytes()
    assert second.manifest.vocabulary == first.manifest.vocabulary == 300
    assert texts(second) == [("ab", "cd")]
    with pytest.raises(DataError, match=r"gone\.model cannot be read"):
        prepare_in(tmp_path, make_data((["ab"], ["cd"])), tokeniser=tmp_path / "gone.model")


def test_several_processes_make_the_same_files(
    make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random_lines(9000, 1) + random_lines(3000, 1)
    data = make_data((source, random_lines(12000, 2)), (source[:100], random_lines(100, 2)))
    alone = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "alone")
    monkeypatch.setattr(module, "POOL_FROM_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    together = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "together")
    assert together.manifest == alone.manifest
    open_prepared(together.folder, verify=True)


def test_progress_of_every_stage_ends_at_its_total(make_data: MakeData, tmp_path: Path) -> None:
    seen: list[Progress] = []
    data = make_data((random_lines(5000, 1), random_lines(5000, 2)))
    prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=seen.append)
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == ["hash", "clean", "count", "vocabulary", "encode"]
    for stage in stages:
        counts = [(progress.done, progress.total) for progress in seen if progress.stage == stage]
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1] > 0


def test_errors_leave_nothing_behind(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data((random_lines(10, 1), random_lines(9, 2)))
    with pytest.raises(DataError, match=r"train0\.en has 10 lines, but .*train0\.de has 9"):
        prepare_in(tmp_path, data)
    assert names(tmp_path / "cache" / "prepared") == []
    assert names(tmp_path / "cache" / "halfway") == []


def test_a_nul_byte_in_a_validation_set_is_named(make_data: MakeData, tmp_path: Path) -> None:
    lines = random_lines(300, 1)
    data = make_data((lines, lines[::-1]), valid=(["a", "sm\0all dog"], ["ein", "Hund"]))
    with pytest.raises(DataError, match=r"valid\.en, line 2: has a NUL byte; is it text\?"):
        prepare_in(tmp_path, data)


def test_a_word_of_5_mb_is_not_prepared(make_data: MakeData, tmp_path: Path) -> None:
    lines = random_lines(300, 1)
    data = make_data(([*lines, "x" * 5_000_000], [*lines[::-1], "Wort"]), clean=Clean(max_ratio=1e9))
    (corpus, _) = prepare_in(tmp_path, data).manifest.corpora
    assert (corpus.dropped.too_long, corpus.pairs) == (1, 300)
    assert corpus.source.tokens < 100_000


def test_how_text_is_cleaned_is_part_of_the_key(
    make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = random_lines(300, 1)
    data = make_data((lines, lines[::-1]))
    key = prepare_in(tmp_path, data).key
    monkeypatch.setattr(module, "CLEANING_VERSION", 1)
    assert prepare_in(tmp_path, data).key != key


def test_faulty_validation_set_is_found_before_the_long_work(make_data: MakeData, tmp_path: Path) -> None:
    seen: list[str] = []
    data = make_data((["a"], ["b"]), valid=(["a", "b"], ["c"]))
    with pytest.raises(DataError, match=r"valid\.en has 2 lines, but .*valid\.de has 1"):
        prepare(data, recipe_folder=tmp_path, cache=tmp_path, progress=lambda p: seen.append(p.stage))
    assert "clean" not in seen


@pytest.mark.parametrize(
    ("code", "message"), [(errno.ENOSPC, "no space left on the disk of"), (errno.EROFS, "cannot write into")]
)
def test_full_disk_is_explained_and_cleared(
    code: int, message: str, make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, data: bytes) -> None:
        raise OSError(code, os.strerror(code))

    data = make_data((["a"], ["b"]))
    with monkeypatch.context() as patch:
        patch.setattr(shards.HashingFile, "write", refuse)
        with pytest.raises(DataError, match=f"{message}.*set ECHELON_CACHE to another"):
            prepare_in(tmp_path, data)
    assert names(tmp_path / "cache" / "prepared") == []
    prepare_in(tmp_path, data)


def test_file_that_changes_while_it_is_read_is_named(
    make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data((["a"], ["b"]))

    def append(progress: Progress) -> None:
        if progress.stage == "encode":
            with (tmp_path / "train0.en").open("a") as file:
                file.write("more\n")

    with pytest.raises(DataError, match=r"train0\.en changed while it was being read"):
        prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=append)


def test_killed_process_leaves_nothing_that_the_next_does_not_remove(
    make_data: MakeData, tmp_path: Path
) -> None:
    data = make_data((random_lines(40_000, 1), random_lines(40_000, 2)))
    child = start(tmp_path, data)
    child.wait_for("encode")
    helpers = psutil.Process(child.process.pid).children(recursive=True)
    child.process.kill()
    child.process.communicate()
    assert [re.sub("^[0-9a-f]{64}", "KEY", name) for name in names(tmp_path / "cache" / "prepared")] == [
        "KEY.lock",
        "KEY.partial",
    ]
    psutil.wait_procs(helpers)  # they do not outlive the process that started them
    stages: list[str] = []
    tell = lambda progress: stages.append(progress.stage)  # noqa: E731
    prepared = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=tell)
    assert set(stages) == {"hash", "encode"}, "what was cleaned and learnt is not done again"
    assert names(tmp_path / "cache" / "prepared") == [prepared.key]
    assert names(tmp_path / "cache" / "halfway") == []
    open_prepared(prepared.folder, verify=True)
    again = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "other")
    assert again.manifest.files == prepared.manifest.files, "going on gives the same bytes"


@pytest.mark.parametrize("step", ["_write_manifest", "publish"])
def test_what_was_learnt_outlives_an_end_while_finishing(
    step: str, make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    data = make_data((random_lines(300, 1), random_lines(300, 2)))
    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_in(tmp_path, data)
    stages: set[str] = set()
    tell = lambda progress: stages.add(progress.stage)  # noqa: E731
    prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=tell)
    assert stages - {"hash"} == {"encode"}
    assert names(tmp_path / "cache" / "halfway") == []


def interrupt_at_encode(progress: Progress) -> None:
    if progress.stage == "encode":
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "lost_bytes"), [("clean-0.temporary", 1), ("kept.temporary", 1), ("kept.temporary", 400)]
)
def test_cleaned_text_that_lost_its_end_is_cleaned_again(
    name: str, lost_bytes: int, make_data: MakeData, tmp_path: Path
) -> None:
    source, target = random_lines(200, 1), random_lines(200, 2)
    data = make_data((source * 2, target * 2))
    with pytest.raises(KeyboardInterrupt):
        prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=interrupt_at_encode)
    (folder,) = (tmp_path / "cache" / "halfway").iterdir()
    (folder / name).write_bytes((folder / name).read_bytes()[:-lost_bytes])
    whole = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "whole")
    assert len(whole.train[0]) == 200
    assert prepare_in(tmp_path, data).manifest == whole.manifest


def test_cleaned_text_is_on_the_disk_before_it_is_called_whole(
    make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    prepare_in(tmp_path, make_data((["a", "b"], ["c", "d"]), (["e"], ["f"])))
    called_whole = next(index for index, name in enumerate(synced) if name.startswith(".clean.json"))
    assert {"clean-0.temporary", "clean-1.temporary", "kept.temporary"} <= set(synced[:called_whole])


def test_ctrl_c_leaves_nothing(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data((random_lines(40_000, 1), random_lines(40_000, 2)))
    child = start(tmp_path, data)
    child.wait_for("clean")
    os.killpg(child.process.pid, signal.SIGINT)  # as a terminal does: to the helpers as well
    _, messages = child.process.communicate()
    assert child.process.returncode != 0
    assert messages.count("Traceback") == 1, messages
    assert names(tmp_path / "cache" / "prepared") == []
    assert names(tmp_path / "cache" / "halfway") == []


def test_two_processes_that_prepare_the_same_do_it_once(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data((random_lines(20_000, 1), random_lines(20_000, 2)))
    first = start(tmp_path, data)
    first.wait_for("clean")
    second = start(tmp_path, data)
    second_output, messages = second.process.communicate()
    assert second.process.returncode == 0, messages
    key, _ = first.result()
    assert second_output.split("\n")[-2].split()[0] == key
    assert "clean" not in second_output
    assert names(tmp_path / "cache" / "prepared") == [key]


def test_waiting_for_another_process_is_told(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data((["a"], ["b"]))
    key = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "other").key
    folder = tmp_path / "cache" / "prepared" / key
    told: list[str] = []
    with ExitStack() as other:
        other.enter_context(exclusive(folder))

        def tell(progress: Progress) -> None:
            if progress.stage == "wait":
                told.append(progress.what)
                other.close()

        prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache", progress=tell)
    assert told == [f"for another process that makes {folder}"]


def test_memory_does_not_grow_with_the_text(make_data: MakeData, tmp_path: Path) -> None:
    source, target = (random_lines(3000, seed, words_a_line=8) for seed in (1, 2))
    words = sorted({word for line in source for word in line.split()})[:1000]

    def peak_mib(count: int) -> int:
        numbered = [f"{words[i // 1000]} {words[i % 1000]} {source[i % 3000]}" for i in range(count)]
        lines = (numbered, [target[i % 3000] for i in range(count)])
        _, mib = start(tmp_path, make_data(lines, vocabulary=500)).result()
        return mib

    small, large = peak_mib(20_000), peak_mib(300_000)
    text_mib = sum((tmp_path / f"train0.{side}").stat().st_size for side in ("en", "de")) >> 20
    assert text_mib > 30
    assert large - small < text_mib // 2


def test_chinese_keeps_its_pairs_and_its_characters(make_data: MakeData, tmp_path: Path) -> None:
    rng = random.Random(1)
    characters = [chr(0x4E00 + 5 * rank) for rank in range(3000)]
    frequencies = [1 / (rank + 10) for rank in range(3000)]
    chinese = [
        "".join(rng.choices(characters, frequencies, k=rng.randint(5, 50))) + "。" for _ in range(2000)
    ]
    words = " ".join(random_lines(50, 1)).split()
    english = [" ".join(rng.choices(words, k=2 * len(line) // 3)) for line in chinese]
    prepared = prepare_in(tmp_path, make_data((english, chinese), vocabulary=8000))
    assert prepared.manifest.corpora[0].pairs >= 0.95 * len(chinese)
    tokens = [side.tokens for side in prepared.train[0].sides]
    assert sum(np.count_nonzero(side == UNK) for side in tokens) < 0.001 * sum(map(len, tokens))


def test_embedded_corpus_is_prepared_like_any_other(tmp_path: Path) -> None:
    own = Corpus(embedded=True)
    data = Data(train=[TrainingCorpus(embedded=True)], valid=own, test=own, vocabulary=2000)
    prepared = prepare_in(tmp_path, data)
    corpus = generate()
    assert len(prepared.train[0]) == len(corpus.train)
    assert prepared.valid.reference_lines() == [pair.target for pair in corpus.valid]
    assert prepared.test is not None
    assert prepared.test.source_lines() == [pair.source for pair in corpus.test]
    tokeniser = Tokeniser.load(prepared.tokeniser_path)
    assert tokeniser.decode([prepared.train[0].source(5)[:-1].tolist()]) == [corpus.train[5].source]
    assert [entry.name for entry in prepared.manifest.inputs] == [
        "train-0.embedded",
        "valid.embedded",
        "test.embedded",
    ]


def test_corpus_of_one_file_is_refused(tmp_path: Path) -> None:
    data = Data(train=[TrainingCorpus(source="x")], valid=Corpus(embedded=False, source="a", target="b"))
    with pytest.raises(DataError, match=r"data\.train needs both"):
        prepare_in(tmp_path, data)


def test_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("ECHELON_CACHE")
    assert default_cache() == Path.home() / ".cache" / "echelon"


def test_no_torch_is_loaded() -> None:
    code = "import sys, echelon.data.prepare, echelon.data.batches; assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
