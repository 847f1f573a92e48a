from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.data import cleaning
from echelon.data.cleaning import Dropped, clean_pairs, count_words, normalise, reason_to_drop
from echelon.recipe.schema import Clean


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("  two   words ", "two words"),
        ("tab\tnewline\x0bnbsp\u00a0thin\u2009line\u2028end", "tab newline nbsp thin line end"),
        ("nul\x00bell\x07c1\x93x", "nul bell c1 x"),
        ("zero\u200bwidth\ufeff soft\u00adhyphen \u202aleft\u202c", "zerowidth softhyphen left"),
        ("u\u0308ber", "über"),
        ("u\u200b\u0308ber", "über"),
        ("mi\u200cravam \U0001f468\u200d\U0001f469", "mi\u200cravam \U0001f468\u200d\U0001f469"),
        ("a\u2581b", "a_b"),
        ("\u200b \u00a0\t", ""),
    ],
)
def test_line_is_normalised(line: str, clean: str) -> None:
    assert normalise(line, "NFC") == clean


def test_compatibility_characters_change_only_under_nfkc() -> None:
    assert normalise("ﬁne ½ Ａ…", "NFC") == "ﬁne ½ Ａ…"
    assert normalise("ﬁne ½ Ａ…", "NFKC") == "fine 1⁄2 A..."


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_every_character_normalises_to_clean_text(form: cleaning.NormalForm) -> None:
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in (
            "Cn",
            "Co",
            "Cs",
        ):  # not assigned, private, half of a character
            continue
        clean = normalise(f"x{chr(code)}x", form)
        assert normalise(clean, form) == clean
        assert cleaning.SPACE_MARK not in clean
        assert not any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in clean)


def test_everything_replaced_is_noticed_by_the_quick_question() -> None:
    for code in cleaning.REPLACEMENTS:
        assert not chr(code).isprintable() or chr(code) == cleaning.SPACE_MARK


@settings(deadline=None)
@given(line=st.text(), form=st.sampled_from(["NFC", "NFKC"]))
def test_normalising_twice_changes_nothing(line: str, form: cleaning.NormalForm) -> None:
    clean = normalise(line, form)
    assert normalise(clean, form) == clean
    assert clean.split() == ([] if not clean else clean.split(" "))
    assert count_words(clean) == len(clean.split()) or cleaning.UNSPACED.search(clean)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", 0),
        ("für „Erwin“ – 3 €", 5),
        ("他们的狗很小。", 6),
        ("我用 Python 3.11 写，很快", 7),
        ("これは小さいイヌです", 10),
        ("한국어는 띄어 쓴다", 3),
        ("สวัสดีชาวโลก", 3),
    ],
)
def test_scripts_without_spaces_are_counted_by_characters(line: str, words: int) -> None:
    assert count_words(line) == words


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b", "c d", None),
        ("", "c d", "empty"),
        ("a", "", "empty"),
        ("a", "c d", "too_short"),
        ("a b c d e f g", "c d", "too_long"),
        ("a b c d e f", "c d", "ratio"),
        ("a b c d e", "c d", None),
        ("a b", "a b", "identical"),
    ],
)
def test_unfit_pairs_are_dropped_for_the_first_reason(source: str, target: str, reason: str | None) -> None:
    rules = Clean(min_words=2, max_words=6, max_ratio=2.5)
    assert reason_to_drop(source, target, rules) == reason
    assert reason_to_drop(target, source, rules) == reason


def test_identical_pairs_stay_where_the_recipe_says_so() -> None:
    assert reason_to_drop("a", "a", Clean(drop_identical=False)) is None


def test_pairs_are_compared_after_normalising() -> None:
    kept = clean_pairs([("u\u0308ber", " über"), ("one ", "eins")], Clean())
    assert (kept.source, kept.target, dict(kept.dropped)) == (["one"], ["eins"], {"identical": 1})


def test_pairs_with_nul_bytes_are_dropped_and_counted() -> None:
    pairs = [("a wo\0rd", "ein Wort"), ("a word", "ein W\0ort"), ("a word", "ein Wort")]
    kept = clean_pairs(pairs, Clean())
    assert (kept.source, kept.dropped) == (["a word"], {"nul_bytes": 2})


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("x" * 1000, None),
        ("x" * 1001, "too_long"),
        ("x" * 5_000_000, "too_long"),
        ("字" * 70, None),
        ("http://x/" + "ä" * 1000, "too_long"),
    ],
)
def test_a_word_of_more_characters_than_any_word_has_is_dropped(word: str, reason: str | None) -> None:
    assert reason_to_drop(f"one {word}", "one two", Clean(max_ratio=1000)) == reason
    assert reason_to_drop("one two", word, Clean(max_ratio=1000)) == reason


def test_long_lines_of_scripts_without_spaces_are_counted_by_characters() -> None:
    assert reason_to_drop("字" * 1500, "字" * 1500, Clean(max_words=2000, drop_identical=False)) is None


def test_dropped_pairs_are_counted_and_told() -> None:
    dropped = Dropped(empty=1200).plus({"ratio": 2}).plus({"ratio": 1, "too_long": 1})
    assert dropped == Dropped(empty=1200, ratio=3, too_long=1)
    assert dropped.total == 1204
    assert str(dropped) == "1,200 empty, 1 too long, 3 ratio"
    assert str(Dropped()) == "none"
