"""The verbs: both languages, what they govern in German, and the kinds of noun they take.

One line an entry: English, German, kinds of subject, kinds of each object. Notation:

    pick|up       the English particle stands after a pronoun: picks up the boy, picks him up
    look for      the English preposition never moves
    ab|holen      the German particle separates: holt ab, abgeholt, abzuholen
    be-suchen     the German prefix does not, and takes no ge-: besucht
    sich freuen   reflexive, in the accusative
    governs       case or preposition and case of each object: "A", "D", "D A", "auf A"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

GrammaticalCase = Literal["nominative", "accusative", "dative", "genitive"]

CASES: dict[str, GrammaticalCase] = {"N": "nominative", "A": "accusative", "D": "dative", "G": "genitive"}


_UNWILLED = (
    "lose", "find", "fall asleep", "wake up", "cry", "dream of", "get used to", "think of", "look forward to",
)  # fmt: skip


class Government(NamedTuple):
    """What a German verb asks of one object: a case, perhaps after a preposition."""

    preposition: str
    case: GrammaticalCase


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb of both languages; compared and hashed by identity."""

    english: str
    german: str
    subject: str = "person"
    object: str = ""
    receiver: str = ""
    """Kinds of the dative object, where there is an accusative one as well."""
    governs: str = ""
    sein: bool = False
    """The perfect is formed with `sein`."""
    stative: bool = False
    """English has no progressive of it."""
    swapped: bool = False
    """The English subject is the German dative: I like the house, das Haus gefällt mir."""
    many: bool = False
    """The object is always several things: one does not collect one stamp."""
    to: bool = False
    """English says `explain it to her`, not `explain her it`."""
    manners: str = ""
    """The adverbs of manner that go with it, by their English names."""
    places: str = ""
    """Where it is done, as groups of places (adverbials.py)."""
    lasts: str = ""
    """The unit of time in which one says how long it lasted."""
    tail: tuple[str, str] = ("", "")
    """Words that always follow in English and close the middle field in German: play `the piano`."""

    @cached_property
    def government(self) -> tuple[Government, ...]:
        parts = self.governs.split()
        if parts and parts[0] not in CASES:
            return (Government(parts[0], CASES[parts[1]]),)
        return tuple(Government("", CASES[part]) for part in parts)

    @cached_property
    def is_willed(self) -> bool:
        """Whether it is something that people do, and do on purpose."""
        by_people = self.subject.startswith(("person", "adult"))
        return by_people and not self.stative and self.english not in _UNWILLED

    @cached_property
    def is_reflexive(self) -> bool:
        return self.german.startswith("sich ")

    @cached_property
    def particle(self) -> str:
        """The separable German particle, or ""."""
        return self.german.removeprefix("sich ").rpartition("|")[0]

    @cached_property
    def infinitive(self) -> str:
        """The German infinitive without its particle, an inseparable prefix still marked: `be-suchen`."""
        return self.german.removeprefix("sich ").rpartition("|")[2]

    @cached_property
    def english_word(self) -> str:
        """The English word that is inflected."""
        return self.english.replace("|", " ").split()[0]

    @cached_property
    def english_particle(self) -> str:
        """The movable English particle, or ""."""
        return self.english.partition("|")[2]

    @cached_property
    def english_preposition(self) -> str:
        """What follows the English word and never moves, or ""."""
        return "" if "|" in self.english else self.english.partition(" ")[2]


def _transitive(
    english: str, german: str, subject: str, object: str, manners: str = "", *, places: str = ""
) -> Verb:
    return Verb(english, german, subject, object, governs="A", manners=manners, places=places)


def _swapped(english: str, german: str, object: str) -> Verb:
    return Verb(english, german, "person", object, stative=True, swapped=True)


def _stative(english: str, german: str, subject: str, object: str) -> Verb:
    return Verb(english, german, subject, object, governs="A", stative=True)


def _dative(english: str, german: str, subject: str, object: str, sein: bool = False) -> Verb:
    return Verb(english, german, subject, object, governs="D", sein=sein)


def _giving(english: str, german: str, object: str, to: bool = False) -> Verb:
    return Verb(english, german, "person", object, "person", "D A", to=to)


BE = Verb("be", "sein", "", sein=True, stative=True)
BECOME = Verb("become", "werden", sein=True)
HAVE = Verb("have", "haben", "person", "thing pet", governs="A", stative=True)
THERE_IS = Verb("be", "geben", "", governs="A", stative=True)

TRANSITIVE = (
    _transitive(
        "read", "lesen", "person", "readable text", "slowly quickly quietly", places="home work town"
    ),
    _transitive("write", "schreiben", "person", "writable text", "slowly quickly"),
    _transitive("buy", "kaufen", "person", "thing food drink plant home", places="shops"),
    _transitive("sell", "ver-kaufen", "person", "thing food home"),
    _transitive("eat", "essen", "person", "food", "slowly quickly", places="food home"),
    _transitive("eat", "fressen", "animal", "fodder", "slowly quickly"),
    _transitive("drink", "trinken", "person", "drink", "slowly quickly"),
    _transitive("drink", "trinken", "animal", "watery", "slowly quickly"),
    _transitive("cook", "kochen", "person", "cooked", places="kitchen"),
    _transitive("bake", "backen", "adult job family", "baked", places="kitchen"),
    _transitive("cut", "schneiden", "person", "fruit vegetable bread cheese meat cake", "carefully"),
    _transitive("order", "be-stellen", "person", "served drink", places="served"),
    _transitive("try", "probieren", "person", "served cheese chocolate drink"),
    _transitive("open", "auf|machen", "person", "openable", "carefully slowly quietly"),
    _transitive("close", "zu|machen", "person", "openable", "carefully slowly quietly"),
    _transitive("turn|on", "ein|schalten", "person", "switched"),
    _transitive("turn|off", "aus|schalten", "person", "switched"),
    _transitive("put|on", "an|ziehen", "person", "garment", "slowly quickly"),
    _transitive("take|off", "aus|ziehen", "person", "garment", "slowly quickly"),
    _transitive("pick|up", "ab|holen", "person", "person fetched"),
    _transitive("call", "an|rufen", "person", "person"),
    _transitive("invite", "ein|laden", "person", "person"),
    _transitive("look at", "an|sehen", "person", "drawn shown animal sight"),
    _transitive("throw|away", "weg|werfen", "person", "small clothes readable dish"),
    _transitive("bring|along", "mit|bringen", "person", "portable food drink pet"),
    _transitive("clean|up", "auf|räumen", "person", "tidied", "quickly"),
    _transitive("borrow", "aus|leihen", "person", "lent"),
    _transitive("clean", "putzen", "person", "cleaned", "carefully quickly"),
    _transitive("wash", "waschen", "person", "washed", "carefully quickly"),
    _transitive("repair", "reparieren", "person", "machine vehicle furniture", "quickly"),
    _transitive("paint", "streichen", "person", "painted"),
    _transitive("draw", "zeichnen", "person", "drawn animal", "well badly"),
    _transitive("build", "bauen", "person", "built table desk chair cupboard shelf bed"),
    _transitive("carry", "tragen", "person", "carried", "carefully"),
    _transitive("wear", "tragen", "person", "clothes"),
    _transitive("pack", "packen", "person", "packed", "quickly"),
    _transitive("feed", "füttern", "person", "animal"),
    Verb("collect", "sammeln", "person", "collected", governs="A", many=True),
    _transitive("plant", "pflanzen", "person", "trunk flower"),
    _transitive("water", "gießen", "person", "watered"),
    _transitive("use", "be-nutzen", "person", "used"),
    _transitive("look for", "suchen", "person", "small clothes tool bag pet lent"),
    _transitive("find", "finden", "person", "small clothes tool bag pet", places="nature town"),
    _transitive("lose", "ver-lieren", "person", "small clothes bag wealth"),
    _transitive("visit", "be-suchen", "person", "person sight"),
    _transitive("meet", "treffen", "person", "person", places="town stops shops"),
    _transitive("greet", "be-grüßen", "person", "person"),
    _transitive("watch", "be-obachten", "person", "animal", places="nature"),
    _transitive("admire", "be-wundern", "person", "job castle tower sight picture"),
    _transitive("answer", "be-antworten", "person", "answered", "quickly slowly"),
    _transitive("repeat", "wieder-holen", "person", "said", "slowly"),
    _transitive("translate", "über-setzen", "person", "text letter sentence word", "quickly slowly well"),
    _transitive("sign", "unter-schreiben", "adult job guest family", "signed"),
    _transitive("pay", "be-zahlen", "person", "paid"),
    _transitive("learn", "lernen", "person", "learned", "quickly slowly", places="work"),
    _transitive("sing", "singen", "person", "sung", "loudly quietly well badly", places="stage"),
    _transitive("solve", "lösen", "person", "problem task", "quickly"),
    _transitive("discuss", "be-sprechen", "person", "issue idea exam", places="work"),
    _transitive("catch", "fangen", "hunter", "prey"),
    _transitive("chase", "jagen", "hunter", "prey"),
)

STATIVE = (
    _stative("see", "sehen", "person", "person animal thing building"),
    _stative("hear", "hören", "person", "heard pet"),
    _stative("know", "kennen", "person", "person sight text heard"),
    _stative("love", "lieben", "person", "family pet sweet heard outdoors settlement"),
    _stative("need", "brauchen", "person", "tool small bag furniture machine vehicle clothes wealth"),
    _stative("understand", "ver-stehen", "person", "said explained text joke"),
    HAVE,
)

DATIVE = (
    _dative("help", "helfen", "person", "person"),
    _dative("thank", "danken", "person", "person"),
    _dative("follow", "folgen", "person", "person pet", sein=True),
    _dative("listen to", "zu|hören", "person", "person"),
    _dative("congratulate", "gratulieren", "person", "person"),
    Verb("trust", "ver-trauen", "person", "person", governs="D", stative=True),
    Verb("belong to", "ge-hören", "thing home pet", "person", governs="D", stative=True),
)

SWAPPED = (
    _swapped("like", "ge-fallen", "thing building room text show plant settlement"),
    _swapped("miss", "fehlen", "family friend pet"),
)

GIVING = (
    _giving("give", "geben", "small readable food drink tool wealth bag"),
    _giving("show", "zeigen", "shown readable clothes building room animal text"),
    _giving("send", "schicken", "sent readable wealth"),
    _giving("lend", "leihen", "lent wealth"),
    _giving("bring", "bringen", "dish food drink readable small"),
    _giving("offer", "an|bieten", "food drink"),
    _giving("tell", "er-zählen", "told"),
    _giving("explain", "er-klären", "explained", to=True),
    _giving("recommend", "emp-fehlen", "served drink show paged", to=True),
)

PREPOSITIONAL = (
    Verb("wait for", "warten", "person", "person public", governs="auf A", places="stops town", lasts="hour"),
    Verb("think of", "denken", "person", "person test trip wedding", governs="an A"),
    Verb("dream of", "träumen", "person", "trip wedding outdoors vehicle home", governs="von D"),
    Verb(
        "talk to",
        "sprechen",
        "person",
        "person",
        governs="mit D",
        manners="quietly loudly",
        places="work town home",
    ),
    Verb("talk about", "reden", "person", "show event idea issue text", governs="über A"),
    Verb("laugh at", "lachen", "person", "joke film monkey mistake", governs="über A"),
    Verb("play with", "spielen", "young pet", "pet young toy", governs="mit D"),
    Verb("work for", "arbeiten", "adult job", "adult job", governs="für A", places="work home"),
    Verb("ask about", "fragen", "person", "family plan boss issue", governs="nach D"),
    Verb("take part in", "teil|nehmen", "person", "course game exam", governs="an D"),
    Verb("look forward to", "sich freuen", "person", "event trip", governs="auf A"),
    Verb("remember", "sich er-innern", "person", "person event film home", governs="an A", stative=True),
    Verb("live with", "wohnen", "person", "family", governs="bei D", stative=True),
    Verb("take care of", "sich kümmern", "person", "family young animal plant", governs="um A"),
    Verb("complain about", "sich be-schweren", "person", "guest issue food weather", governs="über A"),
    Verb("prepare for", "sich vor|be-reiten", "person", "event trip", governs="auf A"),
    Verb("get used to", "sich ge-wöhnen", "person", "machine rule settlement boss", governs="an A"),
)

INTRANSITIVE = (
    Verb("sleep", "schlafen", "person", manners="well badly", places="rest", lasts="hour"),
    Verb(
        "work",
        "arbeiten",
        "adult job family",
        manners="slowly quickly alone well",
        places="work home",
        lasts="hour",
    ),
    Verb("laugh", "lachen", manners="loudly quietly"),
    Verb("cry", "weinen", manners="quietly loudly"),
    Verb("dance", "tanzen", manners="well badly alone", places="home stage", lasts="hour"),
    Verb("swim", "schwimmen", sein=True, manners="well badly quickly slowly", places="water", lasts="hour"),
    Verb("get up", "auf|stehen", sein=True, manners="slowly quickly"),
    Verb("wake up", "auf|wachen", sein=True),
    Verb("fall asleep", "ein|schlafen", "person", sein=True, manners="quickly"),
    Verb("watch television", "fern|sehen", manners="alone"),
    Verb("have breakfast", "frühstücken", manners="alone", places="food"),
    Verb("shop", "ein|kaufen", "adult job family", manners="alone quickly", places="shops"),
    Verb("hike", "wandern", sein=True, manners="alone", places="nature", lasts="day"),
    Verb("smile", "lächeln"),
    Verb("hurry", "sich be-eilen"),
    Verb("rest", "sich aus|ruhen", places="rest", lasts="hour"),
    Verb("get dressed", "sich an|ziehen", manners="quickly slowly"),
    Verb("play", "spielen", tail=("the piano", "Klavier"), manners="well badly"),
    Verb("play", "spielen", tail=("the guitar", "Gitarre"), manners="well badly"),
    Verb("play", "spielen", tail=("soccer", "Fußball"), places="games"),
    Verb("play", "spielen", tail=("tennis", "Tennis")),
    Verb("play", "spielen", tail=("chess", "Schach"), places="home town"),
    Verb("take a walk", "gehen", tail=("", "spazieren"), sein=True, places="nature water"),
)

# Not people: these take a time and a place, and no company.
HAPPENING = (
    Verb("bark", "bellen", "dog", manners="loudly", places="games"),
    Verb("sing", "singen", "bird", manners="loudly quietly", places="games"),
    Verb("sleep", "schlafen", "animal", places="games"),
    Verb("grow", "wachsen", "plant", sein=True, stative=True, manners="slowly quickly", places="games"),
    Verb("bloom", "blühen", "plant", places="games"),
    Verb("ring", "klingeln", "ringing", manners="loudly"),
    Verb("arrive", "an|kommen", "public", sein=True),
    Verb("depart", "ab|fahren", "train bus ship", sein=True),
    Verb("begin", "an|fangen", "event show"),
)

WEATHER = (Verb("rain", "regnen", ""), Verb("snow", "schneien", ""))

COME_BACK = Verb("come back", "zurück|kommen", sein=True)
ON_FOOT = (
    Verb("go", "gehen", sein=True, manners="slowly quickly"),
    Verb("run", "laufen", "person", sein=True, manners="quickly"),
)
MOTION = (
    *ON_FOOT,
    Verb("drive", "fahren", "adult job family", sein=True, manners="slowly quickly"),
    COME_BACK,
)

TRAVELLING = (
    Verb("travel", "reisen", sein=True, manners="alone"),
    Verb("fly", "fliegen", sein=True),
    Verb("drive", "fahren", "adult job family", sein=True),
    Verb("move", "ziehen", sein=True, stative=True),
)

STAYING = (
    Verb("live", "wohnen", stative=True, lasts="year"),
    Verb("stay", "bleiben", sein=True, lasts="week"),
    Verb("arrive", "an|kommen", sein=True),
)

# Where something is (dative), and where it is put (accusative).
POSTURE = (
    Verb("lie", "liegen", "readable clothes small tool", stative=True),
    Verb("stand", "stehen", "standing bag", stative=True),
    Verb("sit", "sitzen", "person pet"),
)
PUTTING = (
    Verb("put", "legen", "person", "readable clothes small tool", governs="A"),
    Verb("place", "stellen", "person", "standing bag", governs="A"),
    Verb("sit down", "sich setzen"),
)

# Verbs with a clause for their object.
SAYING = (
    Verb("say", "sagen"),
    Verb("write", "schreiben"),
    Verb("think", "glauben", stative=True),
    Verb("know", "wissen", stative=True),
    Verb("hope", "hoffen", stative=True),
    Verb("hear", "hören", stative=True),
)
KNOW = Verb("know", "wissen", stative=True)
ASK = Verb("ask", "fragen", "person", "person", governs="A")
TELL = Verb("tell", "er-zählen", "person", "person", governs="D")
# Verbs with an infinitive: tries to open the door, versucht, die Tür aufzumachen.
ATTEMPTING = (
    Verb("try", "ver-suchen"),
    Verb("forget", "ver-gessen"),
    Verb("begin", "an|fangen"),
    Verb("decide", "be-schließen"),
    Verb("promise", "ver-sprechen"),
    Verb("plan", "planen"),
)
COST = Verb("cost", "kosten", "thing food", stative=True)
