"""When, where, how and how often: fixed expressions, and the places with the prepositions they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from echelon.data.demo_corpus.meaning import Adverbial, Name, NounPhrase, Prepositional
from echelon.data.demo_corpus.nouns import noun
from echelon.data.demo_corpus.verbs import CASES


def _adverbials(*pairs: str) -> tuple[Adverbial, ...]:
    return tuple(Adverbial(*pair.split(" = ")) for pair in pairs)


WEEKDAYS = (
    ("Monday", "Montag"), ("Tuesday", "Dienstag"), ("Wednesday", "Mittwoch"), ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"), ("Saturday", "Samstag"), ("Sunday", "Sonntag"),
)  # fmt: skip
MONTHS = (
    ("January", "Januar"), ("February", "Februar"), ("March", "März"), ("April", "April"), ("May", "Mai"),
    ("June", "Juni"), ("July", "Juli"), ("August", "August"), ("September", "September"),
    ("October", "Oktober"), ("November", "November"), ("December", "Dezember"),
)  # fmt: skip

HABITUAL = _adverbials(
    "every day = jeden Tag",
    "every morning = jeden Morgen",
    "every evening = jeden Abend",
    "every week = jede Woche",
    "every year = jedes Jahr",
    "every weekend = jedes Wochenende",
    "in the morning = am Morgen",
    "in the afternoon = am Nachmittag",
    "in the evening = am Abend",
    "in summer = im Sommer",
    "in winter = im Winter",
) + tuple(Adverbial(f"every {english}", f"jeden {german}") for english, german in WEEKDAYS)

PRESENT = _adverbials("today = heute", "now = jetzt", "this week = diese Woche")

PAST = (
    _adverbials(
        "yesterday = gestern",
        "the day before yesterday = vorgestern",
        "yesterday morning = gestern Morgen",
        "yesterday evening = gestern Abend",
        "last week = letzte Woche",
        "last month = letzten Monat",
        "last year = letztes Jahr",
        "last summer = letzten Sommer",
        "last winter = letzten Winter",
    )
    + tuple(Adverbial(f"last {english}", f"letzten {german}") for english, german in WEEKDAYS)
    + tuple(Adverbial(f"in {english}", f"im {german}") for english, german in MONTHS)
)

FUTURE = (
    _adverbials(
        "tomorrow = morgen",
        "the day after tomorrow = übermorgen",
        "tomorrow evening = morgen Abend",
        "soon = bald",
        "tonight = heute Abend",
        "next week = nächste Woche",
        "next month = nächsten Monat",
        "next year = nächstes Jahr",
        "next summer = nächsten Sommer",
    )
    + tuple(Adverbial(f"next {english}", f"nächsten {german}") for english, german in WEEKDAYS)
    + tuple(Adverbial(f"in {english}", f"im {german}") for english, german in MONTHS)
)

FREQUENCIES = _adverbials(
    "often = oft",
    "always = immer",
    "sometimes = manchmal",
    "never = nie",
    "rarely = selten",
    "usually = meistens",
)

MANNERS = {
    entry.english: entry
    for entry in _adverbials(
        "quickly = schnell",
        "slowly = langsam",
        "carefully = vorsichtig",
        "quietly = leise",
        "loudly = laut",
        "well = gut",
        "badly = schlecht",
        "alone = allein",
    )
}

WHEN, WHERE, WHERE_TO, WHY, HOW_OFTEN, HOW_LONG = _adverbials(
    "when = wann",
    "where = wo",
    "where = wohin",
    "why = warum",
    "how often = wie oft",
    "how long = wie lange",
)

AT_HOME, HOME = _adverbials("at home = zu Hause", "home = nach Hause")

AT_SOMEBODYS = _adverbials(
    "at the doctor's = beim Arzt",
    "at the baker's = beim Bäcker",
    "at the lawyer's = beim Anwalt",
)

BY_VEHICLE = _adverbials(
    "by bus = mit dem Bus",
    "by train = mit dem Zug",
    "by car = mit dem Auto",
    "by ship = mit dem Schiff",
)


@dataclass(frozen=True, eq=False)
class PlaceAdverbial:
    """How one says that somebody is at a place, goes to it or comes from it."""

    at: Prepositional
    to: Prepositional
    off: Prepositional


def _place(english: str, at: str, to: str) -> PlaceAdverbial:
    """A place from its prepositions: `in = in` where one is (dative), `into = in A` where one goes."""
    phrase = NounPhrase(noun(english))
    at_english, at_german = at.split(" = ")
    to_english, to_german, to_case = to.replace("= ", "").split()
    return PlaceAdverbial(
        Prepositional(at_english, at_german, "dative", phrase),
        Prepositional(to_english, to_german, CASES[to_case], phrase),
        Prepositional("from", "aus" if at_german == "in" else "von", "dative", phrase),
    )


_PLACES = {
    "kitchen": ("in = in", "into = in A"),
    "bathroom": ("in = in", "into = in A"),
    "bedroom": ("in = in", "into = in A"),
    "living room": ("in = in", "into = in A"),
    "garden": ("in = in", "into = in A"),
    "park": ("in = in", "to = in A"),
    "forest": ("in = in", "into = in A"),
    "city": ("in = in", "to = in A"),
    "village": ("in = in", "to = in A"),
    "hotel": ("at = in", "to = in A"),
    "museum": ("at = in", "to = in A"),
    "church": ("in = in", "to = in A"),
    "office": ("in = in", "to = in A"),
    "hospital": ("in = in", "to = in A"),
    "library": ("at = in", "to = in A"),
    "restaurant": ("at = in", "to = in A"),
    "café": ("at = in", "to = in A"),
    "school": ("at = in", "to = in A"),
    "theater": ("at = in", "to = in A"),
    "cinema": ("at = in", "to = in A"),
    "kindergarten": ("in = in", "to = in A"),
    "supermarket": ("at = in", "to = in A"),
    "bakery": ("at = in", "to = zu D"),
    "station": ("at = an", "to = zu D"),
    "airport": ("at = an", "to = zu D"),
    "university": ("at = an", "to = zu D"),
    "beach": ("on = an", "to = an A"),
    "lake": ("at = an", "to = an A"),
    "market": ("at = auf", "to = auf A"),
    "playground": ("on = auf", "to = auf A"),
    "island": ("on = auf", "to = auf A"),
}
PLACES = {english: _place(english, *prepositions) for english, prepositions in _PLACES.items()}

# Where things are done: what a verb's `places` names.
_GROUPS = {
    "home": "kitchen,living room,garden",
    "rest": "bedroom,hotel,living room,garden,hospital",
    "kitchen": "kitchen",
    "work": "office,school,library,university",
    "town": "park,café,city,museum",
    "served": "restaurant,café,hotel",
    "food": "restaurant,café,hotel,kitchen",
    "shops": "supermarket,market,bakery,city",
    "stops": "station,airport",
    "stage": "theater,church,park",
    "water": "lake,beach",
    "nature": "forest,island,park",
    "games": "park,playground,garden",
    "any": ",".join(_PLACES),
    "driven": "city,station,airport,hospital,lake,beach,market,restaurant,theater,university,village",
    "slept": "hotel,hospital,village",
    "reached": "station,airport,hotel",
    "towns": "city,village,island",
    "park": "park",
}


@cache
def places(groups: str) -> tuple[PlaceAdverbial, ...]:
    """The places of the named groups."""
    names = dict.fromkeys(name for group in groups.split() for name in _GROUPS[group].split(","))
    return tuple(PLACES[name] for name in names)


CITIES = _adverbials(
    "Berlin = Berlin",
    "Hamburg = Hamburg",
    "Munich = München",
    "Cologne = Köln",
    "Vienna = Wien",
    "Paris = Paris",
    "London = London",
    "Rome = Rom",
    "Zurich = Zürich",
    "Dresden = Dresden",
    "Leipzig = Leipzig",
    "Prague = Prag",
    "Germany = Deutschland",
    "Austria = Österreich",
    "Italy = Italien",
    "France = Frankreich",
    "Spain = Spanien",
    "England = England",
)
IN_CITIES = tuple(Adverbial(f"in {english}", f"in {german}") for english, german in CITIES)
TO_CITIES = tuple(Adverbial(f"to {english}", f"nach {german}") for english, german in CITIES)
FROM_CITIES = tuple(Adverbial(f"from {english}", f"aus {german}") for english, german in CITIES)

# Two-way prepositions beside a thing: dative for where, accusative for where to.
BESIDE = (
    ("next to", "neben"),
    ("behind", "hinter"),
    ("in front of", "vor"),
)

NAMES = (
    Name("Anna", "f"), Name("Maria", "f"), Name("Julia", "f"), Name("Laura", "f"), Name("Sophie", "f"),
    Name("Emma", "f"), Name("Clara", "f"), Name("Eva", "f"), Name("Peter", "m"), Name("Paul", "m"),
    Name("Martin", "m"), Name("Daniel", "m"), Name("Stefan", "m"), Name("Oliver", "m"), Name("Simon", "m"),
    Name("David", "m"),
)  # fmt: skip
