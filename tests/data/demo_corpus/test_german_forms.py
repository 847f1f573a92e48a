"""German morphology against tables written out by hand."""

from __future__ import annotations

import pytest

from echelon.data.demo_corpus.adjectives import adjective
from echelon.data.demo_corpus.german_forms import (
    comparative,
    contract,
    full_infinitive,
    full_participle,
    imperative,
    noun_form,
    participle,
    present,
    preterite,
    pronoun,
    reflexive,
    relative_pronoun,
    superlative,
)
from echelon.data.demo_corpus.german_phrases import after_preposition, phrase
from echelon.data.demo_corpus.meaning import Asked, Name, NounPhrase
from echelon.data.demo_corpus.nouns import NOUNS, noun
from echelon.data.demo_corpus.verbs import GrammaticalCase
from tests.data.demo_corpus.words import ALL_VERBS, np, verb

CASES: tuple[GrammaticalCase, ...] = ("nominative", "accusative", "dative", "genitive")

DECLENSIONS = {
    # after der: weak
    "the old man": "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes",
    "the old woman": "die alte Frau, die alte Frau, der alten Frau, der alten Frau",
    "the small child": "das kleine Kind, das kleine Kind, dem kleinen Kind, des kleinen Kindes",
    "the old man*": "die alten Männer, die alten Männer, den alten Männern, der alten Männer",
    "this old dog": "dieser alte Hund, diesen alten Hund, diesem alten Hund, dieses alten Hundes",
    "this old cat": "diese alte Katze, diese alte Katze, dieser alten Katze, dieser alten Katze",
    "every new house": "jedes neue Haus, jedes neue Haus, jedem neuen Haus, jedes neuen Hauses",
    "which red car": "welches rote Auto, welches rote Auto, welchem roten Auto, welches roten Autos",
    "all old friend*": "alle alten Freunde, alle alten Freunde, allen alten Freunden, aller alten Freunde",
    "both new teacher*": "beide neuen Lehrer, beide neuen Lehrer, beiden neuen Lehrern, beider neuen Lehrer",
    # after ein: mixed
    "a old man": "ein alter Mann, einen alten Mann, einem alten Mann, eines alten Mannes",
    "a old woman": "eine alte Frau, eine alte Frau, einer alten Frau, einer alten Frau",
    "a small child": "ein kleines Kind, ein kleines Kind, einem kleinen Kind, eines kleinen Kindes",
    "no old man": "kein alter Mann, keinen alten Mann, keinem alten Mann, keines alten Mannes",
    "no old man*": "keine alten Männer, keine alten Männer, keinen alten Männern, keiner alten Männer",
    "my small child": "mein kleines Kind, mein kleines Kind, meinem kleinen Kind, meines kleinen Kindes",
    "your new dress": "dein neues Kleid, dein neues Kleid, deinem neuen Kleid, deines neuen Kleides",
    "his young aunt": "seine junge Tante, seine junge Tante, seiner jungen Tante, seiner jungen Tante",
    "her old uncle": "ihr alter Onkel, ihren alten Onkel, ihrem alten Onkel, ihres alten Onkels",
    "our big garden": (
        "unser großer Garten, unseren großen Garten, "
        "unserem großen Garten, unseres großen Gartens"
    ),
    "their small city*": (
        "ihre kleinen Städte, ihre kleinen Städte, "
        "ihren kleinen Städten, ihrer kleinen Städte"
    ),
    # without an article: strong
    "- cold coffee": "kalter Kaffee, kalten Kaffee, kaltem Kaffee, kalten Kaffees",
    "- fresh milk": "frische Milch, frische Milch, frischer Milch, frischer Milch",
    "- good bread": "gutes Brot, gutes Brot, gutem Brot, guten Brotes",
    "- red rose*": "rote Rosen, rote Rosen, roten Rosen, roter Rosen",
    "many old book*": "viele alte Bücher, viele alte Bücher, vielen alten Büchern, vieler alter Bücher",
    "several new car*": "mehrere neue Autos, mehrere neue Autos, mehreren neuen Autos, mehrerer neuer Autos",
    "- 3 small dog*": "drei kleine Hunde, drei kleine Hunde, drei kleinen Hunden, drei kleiner Hunde",
    "the 3 small dog*": (
        "die drei kleinen Hunde, die drei kleinen Hunde, "
        "den drei kleinen Hunden, der drei kleinen Hunde"
    ),
    # nouns that go their own way
    "the boy": "der Junge, den Jungen, dem Jungen, des Jungen",
    "the student": "der Student, den Studenten, dem Studenten, des Studenten",
    "a neighbor": "ein Nachbar, einen Nachbarn, einem Nachbarn, eines Nachbarn",
    "the gentleman": "der Herr, den Herrn, dem Herrn, des Herrn",
    "the gentleman*": "die Herren, die Herren, den Herren, der Herren",
    "the bear": "der Bär, den Bären, dem Bären, des Bären",
    "the car*": "die Autos, die Autos, den Autos, der Autos",
    "the girl*": "die Mädchen, die Mädchen, den Mädchen, der Mädchen",
    # stems that change before an ending
    "a expensive ring": "ein teurer Ring, einen teuren Ring, einem teuren Ring, eines teuren Ringes",
    "the dark forest": "der dunkle Wald, den dunklen Wald, dem dunklen Wald, des dunklen Waldes",
    "a high tower": "ein hoher Turm, einen hohen Turm, einem hohen Turm, eines hohen Turmes",
    "a sour apple": "ein saurer Apfel, einen sauren Apfel, einem sauren Apfel, eines sauren Apfels",
    "the small red car": (
        "das kleine rote Auto, das kleine rote Auto, "
        "dem kleinen roten Auto, des kleinen roten Autos"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("english", "expected"), DECLENSIONS.items())
def test_noun_phrases_decline(english: str, expected: str) -> None:
    assert ", ".join(phrase(np(english), case) for case in CASES) == expected


def test_personal_pronouns_decline() -> None:
    table = "ich mich mir, du dich dir, er ihn ihm, sie sie ihr, es es ihm, wir uns uns, sie sie ihnen"
    rows = [("ich", False), ("du", False), ("er", False), ("sie", False), ("es", False), ("wir", True)]
    rows.append(("sie", True))
    declined = [" ".join(pronoun(name, plural, case) for case in CASES[:3]) for name, plural in rows]
    assert ", ".join(declined) == table


def test_reflexive_pronouns_agree_with_the_subject() -> None:
    people = [(1, False), (2, False), (3, False), (1, True), (3, True)]
    assert [reflexive(*one) for one in people] == ["mich", "dich", "sich", "uns", "sich"]


def test_relative_pronouns_decline() -> None:
    table = {
        "m": "der den dem dessen",
        "f": "die die der deren",
        "n": "das das dem dessen",
        "p": "die die denen deren",
    }
    assert {g: " ".join(relative_pronoun(g, case) for case in CASES) for g in ("m", "f", "n", "p")} == table


def test_question_words_decline_and_fuse() -> None:
    assert [phrase(Asked("who"), case) for case in CASES[:3]] == ["wer", "wen", "wem"]
    things = ["auf", "an", "über", "mit", "von", "für", "nach"]
    fused = ["worauf", "woran", "worüber", "womit", "wovon", "wofür", "wonach"]
    assert [after_preposition(p, Asked("what"), "dative") for p in things] == fused
    assert after_preposition("auf", Asked("who"), "accusative") == "auf wen"


def test_possessors_stand_in_the_genitive() -> None:
    assert phrase(np("the book", owner=np("the teacher")), "nominative") == "das Buch des Lehrers"
    assert phrase(np("the old car", owner=np("my aunt")), "dative") == "dem alten Auto meiner Tante"
    assert phrase(np("the dog", owner=np("the boy")), "accusative") == "den Hund des Jungen"
    car = NounPhrase(noun("car"), "the", adjectives=(adjective("old"),), owner=Name("Anna", "f"))
    assert [phrase(car, case) for case in ("nominative", "dative")] == [
        "Annas altes Auto",
        "Annas altem Auto",
    ]


@pytest.mark.parametrize(
    ("preposition", "case", "english", "expected"),
    [
        ("in", "dative", "the garden", "im Garten"),
        ("in", "dative", "the city", "in der Stadt"),
        ("in", "accusative", "the house", "ins Haus"),
        ("in", "accusative", "the garden", "in den Garten"),
        ("an", "dative", "the station", "am Bahnhof"),
        ("an", "accusative", "the window", "ans Fenster"),
        ("an", "accusative", "the lake", "an den See"),
        ("zu", "dative", "the doctor", "zum Arzt"),
        ("zu", "dative", "the university", "zur Universität"),
        ("von", "dative", "the airport", "vom Flughafen"),
        ("bei", "dative", "the baker", "beim Bäcker"),
        ("auf", "accusative", "the table", "auf den Tisch"),
        ("auf", "dative", "the market", "auf dem Markt"),
        ("in", "dative", "a old house", "in einem alten Haus"),
        ("in", "dative", "the old house", "im alten Haus"),
        ("wegen", "genitive", "the rain", "wegen des Regens"),
        ("zu", "dative", "this doctor", "zu diesem Arzt"),
    ],
)
def test_prepositions_govern_and_fuse(
    preposition: str, case: GrammaticalCase, english: str, expected: str
) -> None:
    assert after_preposition(preposition, np(english), case) == expected


def test_only_articles_fuse() -> None:
    assert contract("in", "dem") == "in dem"  # the relative pronoun: das Haus, in dem er wohnt


PRESENT = {
    "lesen": "lese liest liest lesen",
    "spielen": "spiele spielst spielt spielen",
    "be-suchen": "besuche besuchst besucht besuchen",
    "arbeiten": "arbeite arbeitest arbeitet arbeiten",
    "finden": "finde findest findet finden",
    "zeichnen": "zeichne zeichnest zeichnet zeichnen",
    "regnen": "regne regnest regnet regnen",
    "wohnen": "wohne wohnst wohnt wohnen",
    "lernen": "lerne lernst lernt lernen",
    "träumen": "träume träumst träumt träumen",
    "schwimmen": "schwimme schwimmst schwimmt schwimmen",
    "reisen": "reise reist reist reisen",
    "tanzen": "tanze tanzt tanzt tanzen",
    "gießen": "gieße gießt gießt gießen",
    "waschen": "wasche wäschst wäscht waschen",
    "sammeln": "sammle sammelst sammelt sammeln",
    "lächeln": "lächle lächelst lächelt lächeln",
    "füttern": "füttere fütterst füttert füttern",
    "essen": "esse isst isst essen",
    "geben": "gebe gibst gibt geben",
    "nehmen": "nehme nimmst nimmt nehmen",
    "sprechen": "spreche sprichst spricht sprechen",
    "helfen": "helfe hilfst hilft helfen",
    "treffen": "treffe triffst trifft treffen",
    "sehen": "sehe siehst sieht sehen",
    "emp-fehlen": "empfehle empfiehlst empfiehlt empfehlen",
    "ver-gessen": "vergesse vergisst vergisst vergessen",
    "fahren": "fahre fährst fährt fahren",
    "laden": "lade lädst lädt laden",
    "laufen": "laufe läufst läuft laufen",
    "schlafen": "schlafe schläfst schläft schlafen",
    "wachsen": "wachse wächst wächst wachsen",
    "ge-fallen": "gefalle gefällst gefällt gefallen",
    "werden": "werde wirst wird werden",
    "wissen": "weiß weißt weiß wissen",
    "haben": "habe hast hat haben",
    "sein": "bin bist ist sind",
    "können": "kann kannst kann können",
    "müssen": "muss musst muss müssen",
    "dürfen": "darf darfst darf dürfen",
    "wollen": "will willst will wollen",
}


@pytest.mark.parametrize(("infinitive", "expected"), PRESENT.items())
def test_verbs_conjugate_in_the_present(infinitive: str, expected: str) -> None:
    assert " ".join(present(infinitive)) == expected


def test_few_verbs_have_a_simple_past() -> None:
    assert preterite("sein") == ("war", "warst", "war", "waren")
    assert preterite("haben") == ("hatte", "hattest", "hatte", "hatten")
    assert preterite("können") == ("konnte", "konntest", "konnte", "konnten")
    assert preterite("müssen") == ("musste", "musstest", "musste", "mussten")
    assert preterite("kaufen") is None


PARTICIPLES = (
    "kaufen gekauft, arbeiten gearbeitet, zeichnen gezeichnet, füttern gefüttert, sammeln gesammelt, "
    "reisen gereist, be-suchen besucht, ver-kaufen verkauft, er-zählen erzählt, über-setzen übersetzt, "
    "wieder-holen wiederholt, unter-schreiben unterschrieben, reparieren repariert, gratulieren gratuliert, "
    "ge-hören gehört, ge-fallen gefallen, bellen gebellt, lesen gelesen, schreiben geschrieben, "
    "trinken getrunken, essen gegessen, fressen gefressen, nehmen genommen, gehen gegangen, fahren gefahren, "
    "bleiben geblieben, schwimmen geschwommen, ver-lieren verloren, ver-stehen verstanden, "
    "ver-gessen vergessen, denken gedacht, bringen gebracht, kennen gekannt, ziehen gezogen, "
    "schneiden geschnitten, sitzen gesessen, liegen gelegen, wissen gewusst, werden geworden, leihen geliehen"
)


@pytest.mark.parametrize("entry", PARTICIPLES.split(", "))
def test_participles(entry: str) -> None:
    infinitive, expected = entry.split()
    assert participle(infinitive) == expected


@pytest.mark.parametrize(
    ("infinitive", "expected"),
    [
        ("lesen", "lies"), ("nehmen", "nimm"), ("geben", "gib"), ("essen", "iss"), ("helfen", "hilf"),
        ("sehen", "sieh"), ("werfen", "wirf"), ("fahren", "fahr"), ("laufen", "lauf"), ("machen", "mach"),
        ("arbeiten", "arbeite"), ("warten", "warte"), ("zeichnen", "zeichne"), ("sammeln", "sammle"),
        ("füttern", "füttere"), ("spielen", "spiel"), ("reparieren", "repariere"), ("be-suchen", "besuch"),
    ],
)  # fmt: skip
def test_commands_to_one_friend(infinitive: str, expected: str) -> None:
    assert imperative(infinitive) == expected


@pytest.mark.parametrize(
    ("german", "infinitive", "with_zu", "perfect"),
    [
        ("auf|machen", "aufmachen", "aufzumachen", "aufgemacht"),
        ("an|rufen", "anrufen", "anzurufen", "angerufen"),
        ("ein|laden", "einladen", "einzuladen", "eingeladen"),
        ("teil|nehmen", "teilnehmen", "teilzunehmen", "teilgenommen"),
        ("sich vor|be-reiten", "vorbereiten", "vorzubereiten", "vorbereitet"),
        ("zurück|kommen", "zurückkommen", "zurückzukommen", "zurückgekommen"),
        ("be-suchen", "besuchen", "zu besuchen", "besucht"),
        ("über-setzen", "übersetzen", "zu übersetzen", "übersetzt"),
        ("lesen", "lesen", "zu lesen", "gelesen"),
    ],
)
def test_particles_separate_and_prefixes_do_not(
    german: str, infinitive: str, with_zu: str, perfect: str
) -> None:
    entry = verb(german)
    forms = (full_infinitive(entry), full_infinitive(entry, zu=True), full_participle(entry))
    assert forms == (infinitive, with_zu, perfect)


def test_every_verb_of_the_lexicon_that_is_not_regular_is_known_to_be_so() -> None:
    """A verb added to the lexicon without its strong forms would come out weak, such as `getrinkt`."""
    strong = """trinken lesen schreiben essen fressen nehmen geben gehen kommen fahren fliegen schlafen
        schwimmen singen sprechen stehen sitzen liegen tragen treffen helfen sehen finden laufen werfen ziehen
        bleiben waschen backen fangen laden leihen rufen schneiden gießen wachsen bieten streichen"""
    used = {entry.infinitive for entry in ALL_VERBS}
    for infinitive in strong.split():
        assert infinitive in used
        assert participle(infinitive).endswith("en"), infinitive


def test_adjectives_compare() -> None:
    pairs = {
        "big": "größer", "old": "älter", "good": "besser", "high": "höher", "expensive": "teurer",
        "dark": "dunkler", "small": "kleiner", "clever": "klüger", "beautiful": "schöner", "sour": "saurer",
    }  # fmt: skip
    assert {word: comparative(adjective(word)) for word in pairs} == pairs
    assert superlative(adjective("old"), "f", "nominative") == "älteste"
    assert superlative(adjective("good"), "m", "accusative") == "besten"
    assert superlative(adjective("famous"), "n", "nominative") == "berühmteste"
    assert superlative(adjective("beautiful"), "n", "nominative") == "schönste"
    assert superlative(adjective("high"), "m", "nominative") == "höchste"


def test_the_lexicon_has_the_size_it_should_and_no_entry_twice() -> None:
    assert len(NOUNS) >= 200
    assert len({entry.english for entry in NOUNS}) == len(NOUNS)
    assert len({entry.german for entry in NOUNS}) == len(NOUNS)
    assert len({entry.german for entry in ALL_VERBS}) >= 80


def test_weak_nouns_are_masculine_and_end_alike_in_the_plural() -> None:
    weak = [entry for entry in NOUNS if entry.weak]
    assert len(weak) >= 15
    for entry in weak:
        assert entry.gender == "m", entry.german
        if entry.german != "Herr":
            assert noun_form(entry, "accusative", plural=False) == entry.plural
