"""Whole sentences of both languages, written by hand, against what the grammar makes of their meaning."""

from __future__ import annotations

import pytest

from echelon.data.demo_corpus import adverbials, english, german
from echelon.data.demo_corpus.adjectives import adjective
from echelon.data.demo_corpus.adverbials import AT_HOME, HOME, MANNERS, PLACES
from echelon.data.demo_corpus.meaning import (
    ALREADY,
    ES,
    HE,
    IT,
    NEVER_YET,
    SHE,
    THEY,
    THIS,
    WE,
    YET,
    YOU,
    Adverbial,
    Asked,
    Both,
    Clause,
    I,
    Measure,
    Name,
    NounPhrase,
    Prepositional,
    Profession,
    Quality,
)
from echelon.data.demo_corpus.nouns import noun
from echelon.data.demo_corpus.pair import asked, stated
from echelon.data.demo_corpus.verbs import BE, BECOME, COST, HAVE, KNOW, THERE_IS
from tests.data.demo_corpus.words import clause, gap, np, verb

ANNA, PETER = Name("Anna", "f"), Name("Peter", "m")
TOMORROW = Adverbial("tomorrow", "morgen")
YESTERDAY = Adverbial("yesterday", "gestern")
EVERY_DAY = Adverbial("every day", "jeden Tag")
OFTEN = Adverbial("often", "oft")
WITH_HIM = Prepositional("with", "mit", "dative", np("his brother"))
WINDOW = clause(SHE, "auf|machen", np("the window"))
RAINS = Clause(ES, verb("regnen"))


def on(text: str, moving: bool = False) -> Prepositional:
    return Prepositional("on", "auf", "accusative" if moving else "dative", np(text))


STATEMENTS = {
    # word order
    "The man buys the old book.": (
        clause(np("the man"), "kaufen", np("the old book")),
        "Der Mann kauft das alte Buch.",
    ),
    "Tomorrow the man buys a book.": (
        clause(np("the man"), "kaufen", np("a book"))._replace(time=TOMORROW, time_first=True),
        "Morgen kauft der Mann ein Buch.",
    ),
    "The man will buy a book tomorrow.": (
        clause(np("the man"), "kaufen", np("a book"))._replace(time=TOMORROW, tense="future"),
        "Der Mann wird morgen ein Buch kaufen.",
    ),
    "Yesterday she saw him.": (
        clause(SHE, "sehen", HE)._replace(time=YESTERDAY, time_first=True, tense="past"),
        "Gestern hat sie ihn gesehen.",
    ),
    "We travel to Berlin by train every day.": (
        Clause(
            WE,
            verb("reisen"),
            goal=Adverbial("to Berlin", "nach Berlin"),
            company=Adverbial("by train", "mit dem Zug"),
            time=EVERY_DAY,
        ),
        "Wir reisen jeden Tag mit dem Zug nach Berlin.",
    ),
    "The boy is reading a book in the garden.": (
        clause(np("the boy"), "lesen", np("a book"))._replace(
            tense="progressive", place=PLACES["garden"].at
        ),
        "Der Junge liest gerade im Garten ein Buch.",
    ),
    "He often visits his grandmother.": (
        clause(HE, "be-suchen", np("his grandmother"))._replace(adverb=OFTEN),
        "Er besucht oft seine Großmutter.",
    ),
    "She opens the door carefully.": (
        clause(SHE, "auf|machen", np("the door"))._replace(manner=MANNERS["carefully"]),
        "Sie macht die Tür vorsichtig auf.",
    ),
    # separable verbs
    "She opens the window.": (WINDOW, "Sie macht das Fenster auf."),
    "She opened the window.": (WINDOW._replace(tense="past"), "Sie hat das Fenster aufgemacht."),
    "She will open the window.": (WINDOW._replace(tense="future"), "Sie wird das Fenster aufmachen."),
    "She wants to open the window.": (WINDOW._replace(modal="want to"), "Sie will das Fenster aufmachen."),
    "I picked them up.": (clause(I, "ab|holen", THEY)._replace(tense="past"), "Ich habe sie abgeholt."),
    "You invite my sister.": (clause(YOU, "ein|laden", np("my sister")), "Du lädst meine Schwester ein."),
    "He looks for the key.": (clause(HE, "suchen", np("the key")), "Er sucht den Schlüssel."),
    # modals
    "They must not open the letter.": (
        clause(THEY, "lesen", np("the letter"))._replace(
            verb=verb("auf|machen"), modal="may", negated=True
        ),
        "Sie dürfen den Brief nicht aufmachen.",
    ),
    "He does not have to work.": (
        Clause(HE, verb("arbeiten", "work"), modal="must", negated=True),
        "Er muss nicht arbeiten.",
    ),
    "The children could not sleep.": (
        Clause(np("the child*"), verb("schlafen"), modal="can", tense="past", negated=True),
        "Die Kinder konnten nicht schlafen.",
    ),
    "I had to help the boy.": (
        clause(I, "helfen", np("the boy"))._replace(modal="must", tense="past"),
        "Ich musste dem Jungen helfen.",
    ),
    "We would like to drink tea.": (
        clause(WE, "trinken", np("- tea"))._replace(modal="would like to"),
        "Wir möchten Tee trinken.",
    ),
    "You should call your mother.": (
        clause(YOU, "an|rufen", np("your mother"))._replace(modal="should"),
        "Du solltest deine Mutter anrufen.",
    ),
    "She was allowed to drive to Berlin.": (
        Clause(
            SHE, verb("fahren"), modal="may", tense="past", goal=Adverbial("to Berlin", "nach Berlin")
        ),
        "Sie durfte nach Berlin fahren.",
    ),
    "Anna likes to read books.": (
        clause(ANNA, "lesen", np("- book*"))._replace(modal="like to"),
        "Anna liest gern Bücher.",
    ),
    "I do not like to drink coffee.": (
        clause(I, "trinken", np("- coffee"))._replace(modal="like to", negated=True),
        "Ich trinke nicht gern Kaffee.",
    ),
    "I do not like to dance.": (
        Clause(I, verb("tanzen"), modal="like to", negated=True),
        "Ich tanze nicht gern.",
    ),
    # the perfect
    "My brother went home.": (
        Clause(np("my brother"), verb("gehen", "go"), tense="past", goal=HOME),
        "Mein Bruder ist nach Hause gegangen.",
    ),
    "The students stayed at home.": (
        Clause(np("the student*"), verb("bleiben"), tense="past", place=AT_HOME),
        "Die Studenten sind zu Hause geblieben.",
    ),
    "Peter has already read the newspaper.": (
        clause(PETER, "lesen", np("the newspaper"))._replace(tense="perfect", adverb=ALREADY),
        "Peter hat die Zeitung schon gelesen.",
    ),
    "I have not bought a car yet.": (
        clause(I, "kaufen", np("a car"))._replace(tense="perfect", adverb=YET, negated=True),
        "Ich habe noch kein Auto gekauft.",
    ),
    "We have not seen the film yet.": (
        clause(WE, "sehen", np("the film"))._replace(tense="perfect", adverb=YET, negated=True),
        "Wir haben den Film noch nicht gesehen.",
    ),
    "She has never flown to Rome.": (
        Clause(
            SHE,
            verb("fliegen"),
            tense="perfect",
            adverb=NEVER_YET,
            goal=Adverbial("to Rome", "nach Rom"),
        ),
        "Sie ist noch nie nach Rom geflogen.",
    ),
    # negation
    "The man does not buy a book.": (
        clause(np("the man"), "kaufen", np("a book"))._replace(negated=True),
        "Der Mann kauft kein Buch.",
    ),
    "The man does not buy the book.": (
        clause(np("the man"), "kaufen", np("the book"))._replace(negated=True),
        "Der Mann kauft das Buch nicht.",
    ),
    "He does not drink coffee.": (
        clause(HE, "trinken", np("- coffee"))._replace(negated=True),
        "Er trinkt keinen Kaffee.",
    ),
    "I did not wait for the bus.": (
        clause(I, "warten", np("the bus"))._replace(negated=True, tense="past"),
        "Ich habe nicht auf den Bus gewartet.",
    ),
    "She is not tired.": (
        Clause(SHE, BE, complement=Quality(adjective("tired")), negated=True),
        "Sie ist nicht müde.",
    ),
    "The children have no time.": (
        Clause(np("the child*"), HAVE, (np("no time"),)),
        "Die Kinder haben keine Zeit.",
    ),
    # datives
    "The teacher helps the children.": (
        clause(np("the teacher"), "helfen", np("the child*")),
        "Der Lehrer hilft den Kindern.",
    ),
    "The book belongs to me.": (clause(np("the book"), "ge-hören", I), "Das Buch gehört mir."),
    "I like the house.": (clause(I, "ge-fallen", np("the house")), "Das Haus gefällt mir."),
    "The woman liked the shoes.": (
        clause(np("the woman"), "ge-fallen", np("the shoe*"))._replace(tense="past"),
        "Die Schuhe haben der Frau gefallen.",
    ),
    "He misses his mother.": (clause(HE, "fehlen", np("his mother")), "Seine Mutter fehlt ihm."),
    "She gives the man the key.": (
        clause(SHE, "geben", np("the man"), np("the key")),
        "Sie gibt dem Mann den Schlüssel.",
    ),
    "They showed us a picture.": (
        clause(THEY, "zeigen", WE, np("a picture"))._replace(tense="past"),
        "Sie haben uns ein Bild gezeigt.",
    ),
    "The teacher explains the rule to the pupil.": (
        clause(np("the teacher"), "er-klären", np("the pupil"), np("the rule")),
        "Der Lehrer erklärt dem Schüler die Regel.",
    ),
    "We followed the policeman.": (
        clause(WE, "folgen", np("the policeman"))._replace(tense="past"),
        "Wir sind dem Polizisten gefolgt.",
    ),
    # prepositional objects and reflexives
    "I look forward to the party.": (
        clause(I, "sich freuen", np("the party")),
        "Ich freue mich auf die Party.",
    ),
    "The boy remembered the teacher.": (
        clause(np("the boy"), "sich er-innern", np("the teacher"))._replace(tense="past"),
        "Der Junge hat sich an den Lehrer erinnert.",
    ),
    "Tomorrow the girl will prepare for the exam.": (
        clause(np("the girl"), "sich vor|be-reiten", np("the exam"))._replace(
            tense="future", time=TOMORROW, time_first=True
        ),
        "Morgen wird sich das Mädchen auf die Prüfung vorbereiten.",
    ),
    "We dream of a house.": (clause(WE, "träumen", np("a house")), "Wir träumen von einem Haus."),
    "She takes part in the course.": (
        clause(SHE, "teil|nehmen", np("the course")),
        "Sie nimmt am Kurs teil.",
    ),
    # two-way prepositions
    "The book lies on the table.": (
        Clause(np("the book"), verb("liegen"), place=on("the table")),
        "Das Buch liegt auf dem Tisch.",
    ),
    "He puts the book on the table.": (
        clause(HE, "legen", np("the book"))._replace(goal=on("the table", moving=True)),
        "Er legt das Buch auf den Tisch.",
    ),
    "The cat sits in the garden.": (
        Clause(np("the cat"), verb("sitzen"), place=PLACES["garden"].at),
        "Die Katze sitzt im Garten.",
    ),
    "The cat runs into the garden.": (
        Clause(np("the cat"), verb("laufen"), goal=PLACES["garden"].to),
        "Die Katze läuft in den Garten.",
    ),
    "I came back from the station.": (
        Clause(I, verb("zurück|kommen"), tense="past", goal=PLACES["station"].off),
        "Ich bin vom Bahnhof zurückgekommen.",
    ),
    # being
    "Peter is a teacher.": (
        Clause(PETER, BE, complement=Profession(noun("teacher"), female=False)),
        "Peter ist Lehrer.",
    ),
    "My sister is not a doctor.": (
        Clause(np("my sister"), BE, complement=Profession(noun("doctor"), female=True), negated=True),
        "Meine Schwester ist keine Ärztin.",
    ),
    "Anna wants to become an engineer.": (
        Clause(ANNA, BECOME, complement=Profession(noun("engineer"), female=True), modal="want to"),
        "Anna will Ingenieurin werden.",
    ),
    "The dog is bigger than the cat.": (
        Clause(
            np("the dog"), BE, complement=Quality(adjective("big"), "", "than", np("the cat"))
        ),
        "Der Hund ist größer als die Katze.",
    ),
    "The car is not as expensive as the house.": (
        Clause(
            np("the car"),
            BE,
            complement=Quality(adjective("expensive"), "", "as", np("the house")),
            negated=True,
        ),
        "Das Auto ist nicht so teuer wie das Haus.",
    ),
    "This is the oldest church in the city.": (
        Clause(
            THIS,
            BE,
            complement=np("the old church")._replace(superlative=True, spot=PLACES["city"].at),
        ),
        "Das ist die älteste Kirche in der Stadt.",
    ),
    "She was very nervous.": (
        Clause(SHE, BE, complement=Quality(adjective("nervous"), "very"), tense="past"),
        "Sie war sehr nervös.",
    ),
    "My uncle is forty-one years old.": (
        Clause(np("my uncle"), BE, complement=Measure(41, "years old", "Jahre alt")),
        "Mein Onkel ist einundvierzig Jahre alt.",
    ),
    "The coat costs one hundred and forty-five euros.": (
        Clause(np("the coat"), COST, complement=Measure(145, "euros", "Euro")),
        "Der Mantel kostet hundertfünfundvierzig Euro.",
    ),
    "There is a museum in the city.": (
        Clause(ES, THERE_IS, (np("a museum"),), place=PLACES["city"].at),
        "Es gibt in der Stadt ein Museum.",
    ),
    "There were many birds in the forest.": (
        Clause(ES, THERE_IS, (np("many bird*"),), tense="past", place=PLACES["forest"].at),
        "Es gab im Wald viele Vögel.",
    ),
    "Anna and my brother do not live in Berlin.": (
        Clause(
            Both(ANNA, np("my brother")),
            verb("wohnen", "live"),
            place=Adverbial("in Berlin", "in Berlin"),
            negated=True,
        ),
        "Anna und mein Bruder wohnen nicht in Berlin.",
    ),
    "The dog eats the meat.": (
        clause(np("the dog"), "fressen", np("the meat")),
        "Der Hund frisst das Fleisch.",
    ),
    "I play the piano with his brother.": (
        Clause(I, verb("spielen", "play"), company=WITH_HIM),
        "Ich spiele mit seinem Bruder Klavier.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", STATEMENTS)
def test_statements(source: str) -> None:
    meaning, target = STATEMENTS[source]
    assert stated(meaning) == (source, target)


QUESTIONS = {
    "Does the boy drink milk?": (
        clause(np("the boy"), "trinken", np("- milk")),
        "Trinkt der Junge Milch?",
    ),
    "Did she open the window?": (
        WINDOW._replace(tense="past"),
        "Hat sie das Fenster aufgemacht?",
    ),
    "Are you hungry?": (
        Clause(YOU, BE, complement=Quality(adjective("hungry"))),
        "Bist du hungrig?",
    ),
    "Is there a hotel in the village?": (
        Clause(ES, THERE_IS, (np("a hotel"),), place=PLACES["village"].at),
        "Gibt es im Dorf ein Hotel?",
    ),
    "Who helps the woman?": (clause(Asked("who"), "helfen", np("the woman")), "Wer hilft der Frau?"),
    "Who does the woman help?": (clause(np("the woman"), "helfen", Asked("who")), "Wem hilft die Frau?"),
    "Who did you see?": (clause(YOU, "sehen", Asked("who"))._replace(tense="past"), "Wen hast du gesehen?"),
    "What does he need?": (clause(HE, "brauchen", Asked("what")), "Was braucht er?"),
    "What do you like?": (clause(YOU, "ge-fallen", Asked("what")), "Was gefällt dir?"),
    "Who likes the picture?": (clause(Asked("who"), "ge-fallen", np("the picture")), "Wem gefällt das Bild?"),
    "What does she wait for?": (clause(SHE, "warten", Asked("what")), "Worauf wartet sie?"),
    "Who does she wait for?": (clause(SHE, "warten", Asked("who")), "Auf wen wartet sie?"),
    "Which dress did Anna buy?": (
        clause(ANNA, "kaufen", np("which dress"))._replace(tense="past"),
        "Welches Kleid hat Anna gekauft?",
    ),
    "How many apples does the horse eat?": (
        clause(np("the horse"), "fressen", NounPhrase(noun("apple"), "how many", plural=True)),
        "Wie viele Äpfel frisst das Pferd?",
    ),
    "Where do they live?": (
        Clause(THEY, verb("wohnen", "live"), asked=adverbials.WHERE),
        "Wo wohnen sie?",
    ),
    "Where did he drive?": (
        Clause(HE, verb("fahren"), asked=adverbials.WHERE_TO, tense="past"),
        "Wohin ist er gefahren?",
    ),
    "Why does the man not get up?": (
        Clause(np("the man"), verb("auf|stehen"), asked=adverbials.WHY, negated=True),
        "Warum steht der Mann nicht auf?",
    ),
    "Can you swim?": (Clause(YOU, verb("schwimmen"), modal="can"), "Kannst du schwimmen?"),
}


@pytest.mark.parametrize("source", QUESTIONS)
def test_questions(source: str) -> None:
    meaning, target = QUESTIONS[source]
    assert asked(meaning) == (source, target)


@pytest.mark.parametrize(
    ("meaning", "source", "target"),
    [
        (WINDOW, "she opens the window", "sie das Fenster aufmacht"),
        (WINDOW._replace(tense="past"), "she opened the window", "sie das Fenster aufgemacht hat"),
        (WINDOW._replace(modal="must"), "she must open the window", "sie das Fenster aufmachen muss"),
        (WINDOW._replace(tense="future"), "she will open the window", "sie das Fenster aufmachen wird"),
        (WINDOW._replace(negated=True), "she does not open the window", "sie das Fenster nicht aufmacht"),
        (RAINS, "it rains", "es regnet"),
        (RAINS._replace(tense="progressive"), "it is raining", "es regnet"),
        (clause(HE, "ge-fallen", np("the car")), "he likes the car", "ihm das Auto gefällt"),
        (
            clause(np("the man"), "sich freuen", np("the journey")),
            "the man looks forward to the journey",
            "sich der Mann auf die Reise freut",
        ),
        (
            clause(WE, "sich er-innern", SHE)._replace(tense="past"),
            "we remembered her",
            "wir uns an sie erinnert haben",
        ),
    ],
)
def test_subordinate_clauses_put_the_verb_last(meaning: Clause, source: str, target: str) -> None:
    assert (english.statement(meaning), german.verb_final(meaning)) == (source, target)


def test_main_clause_after_a_subordinate_one_puts_the_verb_first() -> None:
    assert german.inverted(WINDOW._replace(tense="past")) == "hat sie das Fenster aufgemacht"


def test_a_shared_subject_is_said_once() -> None:
    assert english.continuation(WINDOW) == "opens the window"
    assert german.continuation(WINDOW) == "macht das Fenster auf"


def test_indirect_questions() -> None:
    where = Clause(HE, verb("wohnen", "live"), asked=adverbials.WHERE)
    assert (english.relative(where), german.verb_final(where)) == ("where he lives", "wo er wohnt")
    what = clause(SHE, "mit|bringen", Asked("what"))._replace(tense="past")
    assert (english.relative(what), german.verb_final(what)) == (
        "what she brought along",
        "was sie mitgebracht hat",
    )


@pytest.mark.parametrize(
    ("meaning", "source", "target"),
    [
        (WINDOW, "open the window", "das Fenster aufzumachen"),
        (clause(HE, "lesen", np("a book")), "read a book", "ein Buch zu lesen"),
        (
            clause(I, "sich vor|be-reiten", np("the exam")),
            "prepare for the exam",
            "mich auf die Prüfung vorzubereiten",
        ),
        (clause(HE, "geben", SHE, np("the key")), "give her the key", "ihr den Schlüssel zu geben"),
    ],
)  # fmt: skip
def test_infinitives_with_zu(meaning: Clause, source: str, target: str) -> None:
    assert (english.infinitive(meaning), german.zu_infinitive(meaning)) == (source, target)


def test_only_an_extended_infinitive_has_a_comma() -> None:
    tries = Clause(SHE, verb("ver-suchen"))
    assert german.with_infinitive(tries, WINDOW) == "sie versucht, das Fenster aufzumachen"
    begins = Clause(HE, verb("an|fangen", "begin"))
    assert german.with_infinitive(begins, Clause(HE, verb("lachen", "laugh"))) == "er fängt an zu lachen"


@pytest.mark.parametrize(
    ("meaning", "please", "target"),
    [
        (clause(YOU, "auf|machen", np("the window")), False, "mach das Fenster auf"),
        (clause(YOU, "auf|machen", np("the window")), True, "mach bitte das Fenster auf"),
        (
            clause(YOU, "auf|machen", np("the window"))._replace(negated=True),
            False,
            "mach das Fenster nicht auf",
        ),
        (clause(YOU, "geben", I, np("the book")), True, "gib mir bitte das Buch"),
        (clause(YOU, "helfen", np("the child")), False, "hilf dem Kind"),
        (Clause(YOU, verb("sich be-eilen")), False, "beeil dich"),
        (clause(YOU, "kaufen", np("a car"))._replace(negated=True), False, "kauf kein Auto"),
    ],
)  # fmt: skip
def test_commands(meaning: Clause, please: bool, target: str) -> None:
    assert german.command(meaning, please) == target


RELATIVES = {
    "The man who buys the book is old.": (
        "the man",
        clause(gap("man"), "kaufen", np("the book")),
        "Der Mann, der das Buch kauft, ist alt.",
    ),
    "The man whom she sees is old.": (
        "the man",
        clause(SHE, "sehen", gap("man")),
        "Der Mann, den sie sieht, ist alt.",
    ),
    "The woman whom he helps is old.": (
        "the woman",
        clause(HE, "helfen", gap("woman")),
        "Die Frau, der er hilft, ist alt.",
    ),
    "The men whom I thanked are old.": (
        "the man*",
        clause(I, "danken", gap("man*"))._replace(tense="past"),
        "Die Männer, denen ich gedankt habe, sind alt.",
    ),
    "The bus that we wait for is old.": (
        "the bus",
        clause(WE, "warten", gap("bus")),
        "Der Bus, auf den wir warten, ist alt.",
    ),
    "The car that he likes is old.": (
        "the car",
        clause(HE, "ge-fallen", gap("car")),
        "Das Auto, das ihm gefällt, ist alt.",
    ),
    "The house in which they live is old.": (
        "the house",
        Clause(THEY, verb("wohnen", "live"), place=Prepositional("in", "in", "dative", gap("house"))),
        "Das Haus, in dem sie wohnen, ist alt.",
    ),
    "The woman whose brother is sick is old.": (
        "the woman",
        Clause(
            NounPhrase(noun("brother"), "", owner=gap("woman")),
            BE,
            complement=Quality(adjective("sick")),
        ),
        "Die Frau, deren Bruder krank ist, ist alt.",
    ),
    "The boy whose dog is big is old.": (
        "the boy",
        Clause(NounPhrase(noun("dog"), "", owner=gap("boy")), BE, complement=Quality(adjective("big"))),
        "Der Junge, dessen Hund groß ist, ist alt.",
    ),
}


@pytest.mark.parametrize("source", RELATIVES)
def test_relative_clauses(source: str) -> None:
    head, relative, target = RELATIVES[source]
    meaning = Clause(np(head, relative=relative), BE, complement=Quality(adjective("old")))
    assert stated(meaning) == (source, target)


def test_a_relative_clause_of_an_object_follows_the_closing_verb() -> None:
    bought = clause(np("his aunt"), "kaufen", gap("book"))._replace(tense="past")
    meaning = clause(HE, "lesen", np("the book", relative=bought))._replace(tense="past")
    assert stated(meaning) == (
        "He read the book that his aunt bought.",
        "Er hat das Buch gelesen, das seine Tante gekauft hat.",
    )


def test_it_takes_the_gender_of_what_it_stands_for() -> None:
    cheap = {
        gender: german.verb_final(Clause(it, BE, complement=Quality(adjective("cheap"))))
        for gender, it in IT.items()
    }
    assert cheap == {"m": "er billig ist", "f": "sie billig ist", "n": "es billig ist"}


def test_verbs_whose_past_looks_like_the_present_are_known() -> None:
    read = verb("lesen")
    assert english.hides_its_tense(read, THEY)
    assert not english.hides_its_tense(read, HE)
    assert not english.hides_its_tense(KNOW, THEY)
