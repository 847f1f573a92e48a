"""Texts of interfaces without the marks of their keyboard shortcuts."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.data.accelerators import PlainLabels, without_accelerator
from echelon.data.corpora import PairFile
from echelon.data.prepare import prepare
from echelon.data.streams import FileLocation
from echelon.errors import RecipeError
from echelon.recipe.schema import Corpus, Data, TrainingCorpus
from tests.sample_recipe import sample_recipe


@pytest.mark.parametrize(
    ("label", "marker", "plain"),
    [
        ("_Out", "_", "Out"),
        ("Save _As...", "_", "Save As..."),
        ("E_xit", "_", "Exit"),
        ("_Öffnen", "_", "Öffnen"),
        ("終了(_Q)", "_", "終了"),
        ("Quit (_Q)", "_", "Quit"),
        ("snake__case", "_", "snake_case"),
        ("my_file_name", "_", "my_file_name"),
        ("a _ b", "_", "a _ b"),
        ("50 _", "_", "50 _"),
        ("_Out", "&", "_Out"),
        ("&File", "&", "File"),
        ("Drag && &Drop", "&", "Drag & Drop"),
        ("a &lt; b", "&", "a &lt; b"),
        ("&Less &lt; more", "&", "Less &lt; more"),
        ("~Edit", "~", "Edit"),
        ("", "_", ""),
    ],
)
def test_the_mark_of_a_shortcut_is_removed(label: str, marker: str, plain: str) -> None:
    assert without_accelerator(label.encode(), marker).decode() == plain


def test_a_catalogue_is_read_without_them(tmp_path: Path) -> None:
    (tmp_path / "de.po").write_text(
        'msgid "_Out"\nmsgstr "_Aus"\n\nmsgid "Save _As"\nmsgstr "Speichern _unter"\n'
    )
    file = PairFile("x", FileLocation(tmp_path / "de.po"), (1, 2), ("en", "de"))
    assert list(PlainLabels(file, "_").pairs()) == [(b"Out", b"Aus"), (b"Save As", b"Speichern unter")]


def test_the_marker_is_part_of_what_the_data_are_known_by(tmp_path: Path) -> None:
    lines = "".join(f"Zoom _in {number}\tHin_ein {number}\n" for number in range(300))
    (tmp_path / "x.tsv").write_text(lines)

    def prepared(**option: str) -> tuple[str, bytes]:
        train = TrainingCorpus.model_validate({"pairs": "x.tsv", **option})
        data = Data(train=[train], valid=Corpus.model_validate({"pairs": "x.tsv", **option}), vocabulary=100)
        found = prepare(data, recipe_folder=tmp_path, cache=tmp_path / "cache")
        return found.key, found.valid.reference_lines()[0].encode()

    plain, marked = prepared(accelerator="_"), prepared()
    assert plain[0] != marked[0]
    assert (plain[1], marked[1]) == (b"Hinein 0", b"Hin_ein 0")


def test_where_it_can_do_nothing_it_is_an_error() -> None:
    with pytest.raises(RecipeError, match="accelerator: does nothing beside embedded = true"):
        sample_recipe("data.valid={embedded=true, accelerator='_'}")
    with pytest.raises(RecipeError, match="accelerator: does not go with pieces"):
        sample_recipe(
            "data.valid={source='a', target='b', pieces=true, accelerator='_'}", "data.tokeniser=x.model"
        )
