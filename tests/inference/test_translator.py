"""Text in, text out: the same by PyTorch and by CTranslate2, whatever the lines are."""

from __future__ import annotations

from dataclasses import replace

import pytest

import echelon
from echelon import Decoding, Translator
from echelon.errors import UserError
from echelon.inference.decoding import Alternative
from echelon.inference.translator import join_alternatives, with_defaults
from echelon.runfolder import RunFolder
from tests.small_run import sentences


def test_lines_come_back_in_order_whatever_their_lengths(translator: Translator) -> None:
    lines = sentences(16, seed=5)
    together = [str(found) for found in translator.translate(lines)]
    assert together == [str(translator.translate([line])[0]) for line in lines]
    assert len(set(together)) > 5  # a model that says always the same would show nothing


def test_one_text_gives_one_translation(translator: Translator) -> None:
    assert translator.translate("one two three") == translator.translate(["one two three"])[0]
    assert repr(translator).startswith("Translator(engine=")


def test_the_package_lists_what_it_offers() -> None:
    assert dir(echelon) == sorted(echelon.__all__)


def test_an_empty_line_stays_empty(translator: Translator) -> None:
    assert [str(found) for found in translator.translate(["", "  \t ", "one two", "\x00\x07"])][:2] == [
        "",
        "",
    ]
    assert translator.translate([]) == []


def test_control_characters_and_halves_of_characters_harm_nothing(translator: Translator) -> None:
    clean, dirty = translator.translate(["one two", "one\x07\u200b \ud800two"])
    assert clean.text
    assert dirty.text


def test_a_line_without_end_is_translated_in_parts(translator: Translator) -> None:
    greedy = Decoding(beam=1, max_length=1)
    for line in ("x" * 2**15, "one two. " * 2**11):
        (found,) = translator.translate([line], greedy)
        assert found.text


def test_a_long_line_is_its_sentences(translator: Translator) -> None:
    parts = ["One two three four five.", "Six seven eight red green.", "Blue house tree bird one."]
    (whole,) = translator.translate([" ".join(parts)])
    assert whole.text == " ".join(str(found) for found in translator.translate(parts))
    short = "One. Two."
    (apart,) = translator.translate([short], replace(translator.decoding, sentences=True))
    assert apart.text == " ".join(str(found) for found in translator.translate(["One.", "Two."]))


def test_alternatives_are_best_first_and_different(translator: Translator) -> None:
    (found,) = translator.translate(["one two three"], Decoding(beam=4, n_best=4))
    scores = [one.score for one in found.alternatives]
    assert scores == sorted(scores, reverse=True)
    assert len({one.text for one in found.alternatives}) == 4


def test_alternatives_of_parts_join_by_rank() -> None:
    joined = join_alternatives([[Alternative("a", -1), Alternative("b", -2)], [Alternative("c", -4)]])
    assert joined == (Alternative("a c", -5), Alternative("b c", -6))


def test_a_translation_begins_with_its_prefix(translator: Translator) -> None:
    found = translator.translate(["one two", "red bird"], prefixes=["Haus Baum", "Vogel"])
    assert found[0].text.startswith("Haus Baum")
    assert found[1].text.startswith("Vogel")


def test_a_prefix_may_be_longer_than_any_translation_of_the_line(translator: Translator) -> None:
    prefix = "Haus Baum " * 40 + "Vogel"
    (found,) = translator.translate(["one two"], prefixes=[prefix])
    assert found.text.startswith(prefix)
    (drawn,) = translator.translate(["one two"], Decoding(beam=1, temperature=1.0), prefixes=[prefix])
    assert drawn.text.startswith(prefix)


def test_a_prefix_that_nothing_can_begin_with_is_refused_in_words(translator: Translator) -> None:
    with pytest.raises(UserError, match="begins with 'Haus 你好': the model's vocabulary lacks '你好'"):
        translator.translate(["one two", "red bird"], prefixes=["Haus 你好", ""])
    with pytest.raises(UserError, match="max_length = 2 leaves no room"):
        translator.translate(["one two"], Decoding(max_length=2), prefixes=["Haus Baum Vogel"])


def test_lengths_are_kept(translator: Translator) -> None:
    (short,) = translator.translate(["one two three"], Decoding(max_length=2, alignment=True))
    (long,) = translator.translate(["one two three"], Decoding(min_length=30, alignment=True))
    assert short.alignment is not None
    assert long.alignment is not None
    assert len(short.alignment.target) <= 2
    assert len(long.alignment.target) >= 30


def test_samples_are_random_and_repeatable(translator: Translator) -> None:
    def draw(seed: int) -> list[str]:
        (found,) = translator.translate(["one two"], Decoding(n_best=6, temperature=1.0, seed=seed, beam=1))
        return [one.text for one in found.alternatives]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(set(draw(1))) > 1


def test_attention_rows_sum_to_one(translator: Translator) -> None:
    (found,) = translator.translate(["one two. " * 20], Decoding(alignment=True))
    assert found.alignment is not None
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in found.alignment.weights)
    assert {len(row) for row in found.alignment.weights} == {len(found.alignment.source)}


def test_a_folder_that_is_neither_run_nor_export_is_refused(run: RunFolder) -> None:
    with pytest.raises(UserError, match="there is no run here"):
        Translator.load(run.path / "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["x", "one two. ", "\x00\U0001f600"])
def test_a_megabyte_in_one_line_harms_nothing(translator: Translator, unit: str) -> None:
    line = unit * (2**20 // len(unit.encode()))
    before, found, after = translator.translate(["one two", line, "one two"], Decoding(beam=1, max_length=2))
    assert found.text
    assert before == after


def test_how_many_translations_are_shown_does_not_change_which_is_the_best(translator: Translator) -> None:
    lines = sentences(8)
    best = [
        [
            found.alternatives[0]
            for found in translator.translate(lines, with_defaults(translator.decoding, n_best=n))
        ]
        for n in (1, 2, translator.decoding.beam)
    ]
    assert best[0] == best[1] == best[2]
    wide = with_defaults(translator.decoding, n_best=translator.decoding.beam + 2)
    assert wide.beam == translator.decoding.beam + 2
