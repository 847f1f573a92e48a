"""Numbers in words against samples written out by hand."""

from __future__ import annotations

import pytest

from echelon.data.demo_corpus.numbers import english_cardinal, english_clock, german_cardinal, german_clock


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (2, "two", "zwei"),
        (7, "seven", "sieben"),
        (10, "ten", "zehn"),
        (11, "eleven", "elf"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (34, "thirty-four", "vierunddreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (99, "ninety-nine", "neunundneunzig"),
        (100, "one hundred", "hundert"),
        (101, "one hundred and one", "hunderteins"),
        (112, "one hundred and twelve", "hundertzwölf"),
        (121, "one hundred and twenty-one", "hunderteinundzwanzig"),
        (145, "one hundred and forty-five", "hundertfünfundvierzig"),
        (200, "two hundred", "zweihundert"),
        (316, "three hundred and sixteen", "dreihundertsechzehn"),
        (580, "five hundred and eighty", "fünfhundertachtzig"),
        (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
    ],
)
def test_cardinals(number: int, english: str, german: str) -> None:
    assert (english_cardinal(number), german_cardinal(number)) == (english, german)


def test_no_two_numbers_are_written_alike() -> None:
    assert len({german_cardinal(number) for number in range(1000)}) == 1000
    assert len({english_cardinal(number) for number in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("hour", "quarter", "english", "german"),
    [
        (1, 0, "one o'clock", "ein Uhr"),
        (3, 0, "three o'clock", "drei Uhr"),
        (3, 1, "a quarter past three", "Viertel nach drei"),
        (3, 2, "half past three", "halb vier"),
        (3, 3, "a quarter to four", "Viertel vor vier"),
        (12, 2, "half past twelve", "halb eins"),
        (12, 3, "a quarter to one", "Viertel vor eins"),
    ],
)
def test_times_of_day(hour: int, quarter: int, english: str, german: str) -> None:
    assert (english_clock(hour, quarter), german_clock(hour, quarter)) == (english, german)
