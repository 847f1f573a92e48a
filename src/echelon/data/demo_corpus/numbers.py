"""Cardinal numbers and the time of day in words, in both languages."""

from __future__ import annotations

_ENGLISH = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GERMAN = (
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
_GERMAN_TENS = (
    "",
    "",
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
)


def english_cardinal(number: int) -> str:
    """A number from 0 to 999: `one hundred and forty-five`."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        head = f"{_ENGLISH[hundreds]} hundred"
        return f"{head} and {english_cardinal(rest)}" if rest else head
    if number < 20:
        return _ENGLISH[number]
    tens, ones = divmod(number, 10)
    return f"{_ENGLISH_TENS[tens]}-{_ENGLISH[ones]}" if ones else _ENGLISH_TENS[tens]


def german_cardinal(number: int) -> str:
    """A number from 0 to 999 as one counts: `hundertfünfundvierzig`, ending in `eins` where it does."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        head = f"{_GERMAN[hundreds] if hundreds > 1 else ''}hundert"
        return head + german_cardinal(rest) if rest else head
    if number < 20:
        return _GERMAN[number]
    tens, ones = divmod(number, 10)
    if not ones:
        return _GERMAN_TENS[tens]
    return f"{'ein' if ones == 1 else _GERMAN[ones]}und{_GERMAN_TENS[tens]}"


def english_clock(hour: int, quarter: int) -> str:
    """A time of day on the twelve-hour clock, `quarter` hours past the full `hour`."""
    if quarter == 0:
        return f"{_ENGLISH[hour]} o'clock"
    if quarter == 3:
        return f"a quarter to {_ENGLISH[hour % 12 + 1]}"
    return f"{('a quarter', 'half')[quarter - 1]} past {_ENGLISH[hour]}"


def german_clock(hour: int, quarter: int) -> str:
    """The same in German, where half past three is half of the fourth hour: `halb vier`."""
    if quarter == 0:
        return f"{'ein' if hour == 1 else _GERMAN[hour]} Uhr"
    following = _GERMAN[hour % 12 + 1]
    return ("", f"Viertel nach {_GERMAN[hour]}", f"halb {following}", f"Viertel vor {following}")[quarter]
