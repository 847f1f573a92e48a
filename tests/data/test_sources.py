from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sentencepiece

from echelon.data.exclusive_folder import locked
from echelon.data.prepare import find_prepared, prepare
from echelon.data.prepared import Prepared
from echelon.data.progress import Progress
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.errors import DataError, RecipeError
from echelon.recipe.loading import check_recipe, load_recipe
from echelon.recipe.schema import Corpus, Data, Download, TrainingCorpus, TranslationRecipe
from tests.data.corpus_files import MakeData, random_lines
from tests.data.mirror import Mirror
from tests.data.test_streams import tar_of

EN, DE = random_lines(300, 1), random_lines(300, 2)
ARCHIVE = gzip.compress(
    tar_of(
        {
            "training/x.en": "\n".join(EN).encode(),
            "training/x.de": "\n".join(DE).encode(),
            "dev/x-src.en.sgm": b"<seg>a small dog</seg>",
            "dev/x-ref.de.sgm": b"<seg>ein kleiner Hund</seg>",
        }
    )
)
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
NAME = "news/x.tgz"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    made = Mirror(ARCHIVE)
    yield made
    made.close()


def data_from(urls: list[str], *, sha256: str | None = SHA256, mirrors: list[str] | None = None) -> Data:
    return Data(
        train=[TrainingCorpus(archive=NAME, source="training/x.en", target="training/x.de")],
        valid=Corpus(archive=NAME, source="dev/x-src.en.sgm", target="dev/x-ref.de.sgm"),
        vocabulary=300,
        download=[Download(name=NAME, urls=urls, bytes=len(ARCHIVE), sha256=sha256)],
        mirrors=mirrors or [],
    )


def prepare_in(folder: Path, data: Data, told: list[Progress] | None = None) -> Prepared:
    report = (told if told is not None else []).append
    return prepare(data, recipe_folder=folder, cache=folder / "cache", progress=report)


def test_one_call_fetches_an_archive_and_prepares_its_members(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks_after = [len(ARCHIVE) // 2]
    data, told = data_from([mirror.url]), list[Progress]()
    assert find_prepared(data, recipe_folder=tmp_path, cache=tmp_path / "cache") is None
    assert mirror.ranges == [], "looking does not fetch"
    prepared = prepare_in(tmp_path, data, told)
    assert len(prepared.train[0]) == 300
    assert prepared.valid.reference_lines() == ["ein kleiner Hund"]
    fetched = [progress for progress in told if progress.stage == "fetch"]
    assert (fetched[-1].done, fetched[-1].total, fetched[-1].what) == (len(ARCHIVE), len(ARCHIVE), NAME)
    assert len(mirror.ranges) == 2
    assert [entry.name for entry in prepared.manifest.inputs][:2] == [
        'train-0.source#"training/x.en"',
        'train-0.target#"training/x.de"',
    ]
    assert prepare_in(tmp_path, data).folder == prepared.folder
    assert find_prepared(data, recipe_folder=tmp_path, cache=tmp_path / "cache") is not None
    assert len(mirror.ranges) == 2


def test_waiting_for_another_process_that_fetches_is_told(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "cache" / "downloads" / "news").mkdir(parents=True)
    told: list[str] = []
    with ExitStack() as other:
        other.enter_context(locked(tmp_path / "cache" / "downloads" / f"{NAME}.lock"))

        def tell(progress: Progress) -> None:
            if progress.stage == "wait":
                told.append(progress.what)
                other.close()

        prepare(data_from([mirror.url]), recipe_folder=tmp_path, cache=tmp_path / "cache", progress=tell)
    assert told == [f"for another process that fetches {NAME}"]


def test_a_local_mirror_is_used_before_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("mirror", "data"):
        (tmp_path / place / "news").mkdir(parents=True)
        (tmp_path / place / NAME).write_bytes(ARCHIVE)
    nowhere = ["http://127.0.0.1:9/x.tgz"]
    first = prepare_in(tmp_path, data_from(nowhere, mirrors=[str(tmp_path / "mirror")]))
    monkeypatch.setenv("ECHELON_DATA", str(tmp_path / "data"))
    assert prepare_in(tmp_path, data_from(nowhere)).key == first.key
    monkeypatch.delenv("ECHELON_DATA")
    with pytest.raises(DataError, match="could not be fetched"):
        prepare_in(tmp_path, data_from(nowhere))


def test_a_mirror_folder_may_have_its_files_without_their_folders(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "x.tgz").write_bytes(ARCHIVE)
    data = data_from(["http://127.0.0.1:9/x.tgz"], mirrors=[str(tmp_path / "flat")])
    assert len(prepare_in(tmp_path, data).train[0]) == 300
    (tmp_path / "flat" / "x.tgz").write_bytes(b"another corpus's")
    with pytest.raises(DataError, match="could not be fetched"):
        prepare_in(tmp_path, data)


def test_a_mirror_folder_lies_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "x.tgz").write_bytes(ARCHIVE)
    data = data_from(["http://127.0.0.1:9/x.tgz"], mirrors=["mirror"])
    assert len(prepare_in(tmp_path, data).train[0]) == 300


def test_a_mirror_folder_that_is_not_there_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.mirrors: .*mirorr is no folder"):
        prepare_in(tmp_path, data_from(["http://127.0.0.1:9/x.tgz"], mirrors=["mirorr"]))


def test_a_mirror_in_the_home_folder_of_nobody_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="~nosuchuser/mirror: there is no such user's home folder"):
        prepare_in(tmp_path, data_from(["http://127.0.0.1:9/x.tgz"], mirrors=["~nosuchuser/mirror"]))


def test_a_mirror_on_the_web_is_asked_before_the_file_s_own_address(mirror: Mirror, tmp_path: Path) -> None:
    address = mirror.url.removesuffix("/file.bin")
    prepare_in(tmp_path, data_from(["http://127.0.0.1:9/x.tgz"], mirrors=[address]))
    assert mirror.ranges == [None]


def test_a_local_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "news").mkdir()
    (tmp_path / NAME).write_bytes(ARCHIVE)
    with pytest.raises(DataError, match="but the recipe says aaaa"):
        prepare_in(tmp_path, data_from(["http://127.0.0.1:9/x.tgz"], sha256="a" * 64))


def test_a_local_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "news").mkdir()
    (tmp_path / NAME).write_bytes(ARCHIVE + b"x")
    with pytest.raises(
        DataError, match=f"has {len(ARCHIVE) + 1:,} bytes, but the recipe says {len(ARCHIVE):,}"
    ):
        prepare_in(tmp_path, data_from(["http://127.0.0.1:9/x.tgz"], sha256=None))


def test_a_download_that_changed_since_it_was_fetched_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    data = data_from([mirror.url], sha256=None)
    prepare_in(tmp_path, data)
    kept = tmp_path / "cache" / "downloads" / NAME
    kept.write_bytes(ARCHIVE[:-1] + b"x")
    with pytest.raises(DataError, match=f"but had {SHA256} when it was fetched"):
        prepare_in(tmp_path, data)


def test_addresses_make_a_corpus_without_more_ado(mirror: Mirror, tmp_path: Path) -> None:
    mirror.content = "\n".join(f"{en}\t{de}" for en, de in zip(EN, DE, strict=True)).encode()
    (tmp_path / "valid.tsv").write_text("a small dog\tein kleiner Hund\n")
    address = f"{mirror.url.removesuffix('file.bin')}pairs.tsv"
    data = Data(train=[TrainingCorpus(pairs=address)], valid=Corpus(pairs="valid.tsv"), vocabulary=300)
    assert len(prepare_in(tmp_path, data).train[0]) == 300


def pieces_of(model: Path, lines: list[str]) -> str:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return "".join(" ".join(processor.encode(line, out_type=str)) + "\n" for line in lines)


def data_in_pieces(folder: Path, model: Path, lines: tuple[list[str], list[str]]) -> Data:
    for side, text in zip(("en", "de"), lines, strict=True):
        (folder / f"{side}.tok").write_text(pieces_of(model, text))
    (folder / "own.model").write_bytes(model.read_bytes())
    return Data(
        train=[TrainingCorpus(source="en.tok", target="de.tok", pieces=True)],
        valid=Corpus(source="en.tok", target="de.tok", pieces=True),
        tokeniser="own.model",
    )


def test_pieces_of_a_given_model_are_taken_as_they_are(real_data: Path, tmp_path: Path) -> None:
    """The model is a real one that others have trained with."""
    lines = []
    for side in ("en", "de"):
        with gzip.open(real_data / "wmt" / f"newstest2013.{side}.gz", "rt", encoding="utf-8") as file:
            lines.append([line.rstrip("\n") for line in file][:300])
    model = real_data / "wmt" / "m_common.model"
    prepared = prepare_in(tmp_path, data_in_pieces(tmp_path, model, (lines[0], lines[1])))
    assert prepared.manifest.vocabulary == 32768
    tokeniser = Tokeniser.load(prepared.tokeniser_path)
    for index, line in enumerate((tmp_path / "en.tok").read_text().split("\n")[:-1]):
        assert prepared.valid.source(index).tolist() == [*tokeniser.ids(line.split(" ")), EOS]
    assert prepared.valid.reference_lines() == [" ".join(line.split()) for line in lines[1]], (
        "scores see text"
    )


@pytest.mark.parametrize("side", ["en", "de"])
def test_text_that_subword_nmt_has_cut_is_refused(tmp_path: Path, make_data: MakeData, side: str) -> None:
    sides = {name: random_lines(300, seed) for seed, name in enumerate(("en", "de"))}
    sides[side] = [re.sub(r"(\w{3})(?=\w)", r"\1@@ ", line) for line in sides[side]]
    with pytest.raises(
        DataError, match=r"train0\.en \| .*train0\.de: .* by subword-nmt.* with sed 's/@@ //g'"
    ):
        prepare_in(tmp_path, make_data((sides["en"], sides["de"])))
    joined = {name: [line.replace("@@ ", "") for line in lines] for name, lines in sides.items()}
    prepare_in(tmp_path, make_data((joined["en"], joined["de"])))


def test_at_signs_of_ordinary_text_are_no_pieces(tmp_path: Path, make_data: MakeData) -> None:
    lines = random_lines(300, 1)
    odd = [f"{line} @@ -1,2 +1,3 @@ mail@@example.org" for line in lines]
    some = [f"user@@ {line}" for line in lines[:20]] + lines[20:]
    prepare_in(tmp_path, make_data((odd, some)))


def test_pieces_of_another_model_are_refused(real_data: Path, tmp_path: Path) -> None:
    data = data_in_pieces(tmp_path, real_data / "wmt" / "m_common.model", (EN, DE))
    plain = Data(
        train=[TrainingCorpus(source="en", target="de")],
        valid=Corpus(source="en", target="de"),
        vocabulary=300,
    )
    for side, text in (("en", EN), ("de", DE)):
        (tmp_path / side).write_text("\n".join(text))
    (tmp_path / "own.model").write_bytes(prepare_in(tmp_path, plain).tokeniser_path.read_bytes())
    with pytest.raises(DataError, match="are cut into other pieces than"):
        prepare_in(tmp_path, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": "x.tmx"}, "has pairs, which hold both sides, and source or target"),
        ({"source": None}, "needs both source and target, or pairs"),
        ({"columns": [2, 3]}, "is for pairs"),
        ({"pieces": True}, "need the model that made the pieces"),
    ],
)
def test_what_does_not_go_together_is_said(change: dict[str, object], message: str) -> None:
    corpus = {"source": "a", "target": "b"}
    changed = {key: value for key, value in {**corpus, **change}.items() if value is not None}
    table = {
        "version": 1,
        "name": "x",
        "data": {"train": [changed], "valid": corpus},
        "train": {"steps": 1},
        "schedule": {"kind": "fixed", "learning_rate": 1.0},
    }
    with pytest.raises(RecipeError, match=message):
        check_recipe(table, "x.toml")


def test_the_headline_job_names_every_file_with_its_size() -> None:
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "wmt16-en-de-base.toml")
    assert isinstance(recipe, TranslationRecipe)
    data = recipe.data
    known = {download.name for download in data.download}
    corpora = [*data.train, data.valid, data.test]
    assert {corpus.archive for corpus in corpora if corpus is not None} == known
    training = [download for download in data.download if "training" in download.name]
    assert len(training) == 3
    assert all(download.sha256 and download.bytes for download in training)
    assert sum(download.bytes or 0 for download in training) == 1_651_121_778


def test_no_cache_and_no_prepared_data_have_the_secrets_of_an_address(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHELON_URL_SECRET", "s3cr3t-s3cr3t")
    address = f"{mirror.url}?sig=${{ECHELON_URL_SECRET}}&other=public"
    data = Data(
        train=[TrainingCorpus(archive=address, source="training/x.en", target="training/x.de")],
        valid=Corpus(archive=address, source="dev/x-src.en.sgm", target="dev/x-ref.de.sgm"),
        vocabulary=300,
    )
    prepare_in(tmp_path, data)
    assert mirror.paths == ["/file.bin?sig=s3cr3t-s3cr3t&other=public"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if b"s3cr3t" in path.read_bytes() or "s3cr3t" in path.name] == []


def test_a_corpus_is_called_by_its_address_without_the_query() -> None:
    """So it is named in prepared data, model cards and messages."""
    assert Corpus(pairs="https://me@h/x.tsv?sig=s3cr3t").label == "https://***@h/x.tsv?***"
    assert Corpus(source="a.en", target="https://h/a.de?k=v").label == "a.en | https://h/a.de?***"
