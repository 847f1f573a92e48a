from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echelon.data.prepare import prepare
from echelon.data.prepared import FORMAT_VERSION, Prepared, open_prepared
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.errors import DataError
from tests.data.corpus_files import MakeData, random_lines


@pytest.fixture
def prepared(make_data: MakeData, tmp_path: Path) -> Prepared:
    data = make_data((random_lines(50, 1), random_lines(50, 2)), test=(["x"], ["y"]))
    return prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache")


def edit_manifest(prepared: Prepared, **changes: Any) -> None:
    path = prepared.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_stores_hold_the_encoded_sentences(prepared: Prepared) -> None:
    (store,) = prepared.train
    tokeniser = Tokeniser.load(prepared.tokeniser_path)
    assert len(store) == 50
    for index, line in enumerate(random_lines(50, 1)):
        assert store.source(index).tolist() == [*tokeniser.encode([line])[0], EOS]
        assert len(store.source(index)) == store.source_lengths[index]
        assert len(store.target(index)) == store.target_lengths[index]
    assert tokeniser.decode([store.target(49).tolist()]) == [random_lines(50, 2)[-1]]


def test_stores_are_mapped_and_cannot_be_written(prepared: Prepared) -> None:
    for side in prepared.train[0].sides:
        for array in (side.tokens, side.lengths, side.offsets):
            assert isinstance(array.base, np.memmap)
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_what_was_written_opens_verified(prepared: Prepared) -> None:
    again = open_prepared(prepared.folder, verify=True)
    assert again.manifest == prepared.manifest
    assert again.key == prepared.folder.name
    assert {entry.name for entry in again.manifest.files} | {"manifest.json"} == {
        path.name for path in again.folder.iterdir()
    }


def test_missing_or_shortened_file_is_named_with_the_cure(prepared: Prepared) -> None:
    path = prepared.folder / "valid.source.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"valid\.source\.tokens has .* bytes instead of") as caught:
        open_prepared(prepared.folder)
    assert f"delete {prepared.folder} and prepare again" in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=r"valid\.source\.tokens No such file"):
        open_prepared(prepared.folder)


@pytest.mark.parametrize("folder", ["/etc", "/home/me", "/", "/home/me/prepared", "/home/me/prepared/notes"])
def test_nobody_is_told_to_delete_a_folder_that_is_not_ours(folder: str) -> None:
    with pytest.raises(DataError) as caught:
        open_prepared(Path(folder))
    assert "delete" not in str(caught.value)
    assert "leave it as it is" in str(caught.value)


def test_changed_content_is_found_by_verifying(prepared: Prepared) -> None:
    path = prepared.folder / "train-0.target.tokens"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    open_prepared(prepared.folder)
    with pytest.raises(DataError, match=r"train-0\.target\.tokens does not have the content"):
        open_prepared(prepared.folder, verify=True)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/b.text", "..", ".hidden", ""])
def test_manifest_cannot_name_files_elsewhere(name: str, prepared: Prepared) -> None:
    edit_manifest(prepared, files=[{"name": name, "bytes": 1, "sha256": "0"}])
    with pytest.raises(DataError, match="cannot be one of its own"):
        open_prepared(prepared.folder)


def test_corpus_cannot_be_named_elsewhere(prepared: Prepared) -> None:
    corpora = json.loads((prepared.folder / "manifest.json").read_text())["corpora"]
    corpora[0]["name"] = "../train-0"
    edit_manifest(prepared, corpora=corpora)
    with pytest.raises(DataError, match="damaged"):
        open_prepared(prepared.folder)


def test_broken_manifest_is_named(prepared: Prepared) -> None:
    edit_manifest(prepared, format_version=99)
    with pytest.raises(
        DataError, match=rf"manifest\.json has format 99, this Echelon reads {FORMAT_VERSION}"
    ):
        open_prepared(prepared.folder)
    edit_manifest(prepared, format_version=FORMAT_VERSION, corpora=[])
    with pytest.raises(DataError, match="names no training or validation set"):
        open_prepared(prepared.folder)
    (prepared.folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is not a manifest"):
        open_prepared(prepared.folder)
    (prepared.folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest\.json No such file"):
        open_prepared(prepared.folder)


def test_counts_that_disagree_with_the_files_are_found(prepared: Prepared) -> None:
    corpora = json.loads((prepared.folder / "manifest.json").read_text())["corpora"]
    corpora[0]["pairs"] += 1
    edit_manifest(prepared, corpora=corpora)
    with pytest.raises(DataError, match=r"and train-0\.source\.lengths disagree"):
        open_prepared(prepared.folder)
