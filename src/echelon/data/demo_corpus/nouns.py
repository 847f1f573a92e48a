"""The nouns: what they are called, how they decline, and what sort of thing they stand for.

One line an entry: English, German with its article, German plural ("" if it has none), kinds. The kinds are
what verbs and adjectives select for, so that people read books and dogs do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

Gender = Literal["m", "f", "n"]

_GENDERS: dict[str, Gender] = {"der": "m", "die": "f", "das": "n"}

# Every kind on the left is also each of the kinds on the right.
_IMPLIED = {
    "job": "person",
    "guest": "person",
    "young": "person",
    "adult": "person",
    "family": "person",
    "parent": "family",
    "pet": "animal",
    "farm": "animal",
    "wild": "animal",
    "baked": "food",
    "cooked": "food",
    "writable": "readable",
    "readable": "thing portable",
    "garment": "clothes",
    "clothes": "thing portable",
    "small": "thing portable",
    "tool": "thing portable",
    "dish": "thing",
    "bag": "thing openable",
    "furniture": "thing",
    "machine": "thing",
    "vehicle": "thing",
    "plant": "",
}


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun of both languages; compared and hashed by identity."""

    english: str
    nominative: str
    """German nominative singular with its article: `der Hund`."""
    plural: str
    """German nominative plural, or "" for a noun that has no plural here."""
    labels: str
    weak: Literal["", "n", "en"] = ""
    """The ending of every singular case but the nominative: der Junge, den Jungen."""
    feminine: str = ""
    """The German word for a woman of this profession: `Lehrerin`."""

    @property
    def gender(self) -> Gender:
        return _GENDERS[self.nominative[:3]]

    @property
    def german(self) -> str:
        return self.nominative[4:]

    @property
    def is_mass(self) -> bool:
        return not self.plural


@cache
def kinds_of(noun: Noun) -> frozenset[str]:
    """The noun's kinds with all that they imply; its English name is a kind too."""
    found = {noun.english}
    todo = noun.labels.split()
    while todo:
        kind = todo.pop()
        found.add(kind)
        todo += _IMPLIED.get(kind, "").split()
    return frozenset(found)


@cache
def nouns_of(kinds: str) -> tuple[Noun, ...]:
    """Every noun that is of at least one of the `kinds` (separated by spaces), in the order of the table."""
    wanted = set(kinds.split())
    return tuple(noun for noun in NOUNS if wanted & kinds_of(noun))


def noun(english: str) -> Noun:
    """The noun with that English name."""
    return _BY_ENGLISH[english]


NOUNS = (
    # People
    Noun("man", "der Mann", "Männer", "adult"),
    Noun("woman", "die Frau", "Frauen", "adult"),
    Noun("child", "das Kind", "Kinder", "young"),
    Noun("boy", "der Junge", "Jungen", "young", weak="n"),
    Noun("girl", "das Mädchen", "Mädchen", "young"),
    Noun("lady", "die Dame", "Damen", "adult"),
    Noun("gentleman", "der Herr", "Herren", "adult", weak="n"),
    Noun("teacher", "der Lehrer", "Lehrer", "job mine", feminine="Lehrerin"),
    Noun("doctor", "der Arzt", "Ärzte", "job mine", feminine="Ärztin"),
    Noun("student", "der Student", "Studenten", "job mine", weak="en", feminine="Studentin"),
    Noun("pupil", "der Schüler", "Schüler", "young"),
    Noun("cook", "der Koch", "Köche", "job", feminine="Köchin"),
    Noun("baker", "der Bäcker", "Bäcker", "job", feminine="Bäckerin"),
    Noun("farmer", "der Bauer", "Bauern", "job", weak="n", feminine="Bäuerin"),
    Noun("lawyer", "der Anwalt", "Anwälte", "job mine", feminine="Anwältin"),
    Noun("engineer", "der Ingenieur", "Ingenieure", "job", feminine="Ingenieurin"),
    Noun("painter", "der Maler", "Maler", "job", feminine="Malerin"),
    Noun("singer", "der Sänger", "Sänger", "job", feminine="Sängerin"),
    Noun("musician", "der Musiker", "Musiker", "job", feminine="Musikerin"),
    Noun("journalist", "der Journalist", "Journalisten", "job", weak="en", feminine="Journalistin"),
    Noun("gardener", "der Gärtner", "Gärtner", "job mine", feminine="Gärtnerin"),
    Noun("professor", "der Professor", "Professoren", "job mine", feminine="Professorin"),
    Noun("architect", "der Architekt", "Architekten", "job", weak="en", feminine="Architektin"),
    Noun("actor", "der Schauspieler", "Schauspieler", "adult"),
    Noun("actress", "die Schauspielerin", "Schauspielerinnen", "adult"),
    Noun("waiter", "der Kellner", "Kellner", "adult"),
    Noun("waitress", "die Kellnerin", "Kellnerinnen", "adult"),
    Noun("policeman", "der Polizist", "Polizisten", "adult", weak="en"),
    Noun("policewoman", "die Polizistin", "Polizistinnen", "adult"),
    Noun("salesman", "der Verkäufer", "Verkäufer", "adult"),
    Noun("saleswoman", "die Verkäuferin", "Verkäuferinnen", "adult"),
    Noun("king", "der König", "Könige", "adult"),
    Noun("queen", "die Königin", "Königinnen", "adult"),
    Noun("prince", "der Prinz", "Prinzen", "adult", weak="en"),
    Noun("princess", "die Prinzessin", "Prinzessinnen", "adult"),
    Noun("neighbor", "der Nachbar", "Nachbarn", "guest mine", weak="n"),
    Noun("friend", "der Freund", "Freunde", "guest mine"),
    Noun("colleague", "der Kollege", "Kollegen", "guest mine", weak="n"),
    Noun("boss", "der Chef", "Chefs", "guest mine"),
    Noun("guest", "der Gast", "Gäste", "guest"),
    Noun("tourist", "der Tourist", "Touristen", "guest", weak="en"),
    Noun("customer", "der Kunde", "Kunden", "guest", weak="n"),
    # Family
    Noun("mother", "die Mutter", "Mütter", "parent"),
    Noun("father", "der Vater", "Väter", "parent"),
    Noun("brother", "der Bruder", "Brüder", "family"),
    Noun("sister", "die Schwester", "Schwestern", "family"),
    Noun("son", "der Sohn", "Söhne", "family"),
    Noun("daughter", "die Tochter", "Töchter", "family"),
    Noun("uncle", "der Onkel", "Onkel", "family"),
    Noun("aunt", "die Tante", "Tanten", "family"),
    Noun("grandfather", "der Großvater", "Großväter", "parent"),
    Noun("grandmother", "die Großmutter", "Großmütter", "parent"),
    Noun("nephew", "der Neffe", "Neffen", "family", weak="n"),
    Noun("niece", "die Nichte", "Nichten", "family"),
    # Animals
    Noun("dog", "der Hund", "Hunde", "pet hunter mine"),
    Noun("cat", "die Katze", "Katzen", "pet hunter mine"),
    Noun("horse", "das Pferd", "Pferde", "pet farm"),
    Noun("bird", "der Vogel", "Vögel", "pet flying"),
    Noun("rabbit", "das Kaninchen", "Kaninchen", "pet prey"),
    Noun("mouse", "die Maus", "Mäuse", "wild prey"),
    Noun("cow", "die Kuh", "Kühe", "farm"),
    Noun("pig", "das Schwein", "Schweine", "farm"),
    Noun("goat", "die Ziege", "Ziegen", "farm"),
    Noun("duck", "die Ente", "Enten", "farm prey flying"),
    Noun("bear", "der Bär", "Bären", "wild", weak="en"),
    Noun("lion", "der Löwe", "Löwen", "wild hunter", weak="n"),
    Noun("elephant", "der Elefant", "Elefanten", "wild", weak="en"),
    Noun("monkey", "der Affe", "Affen", "wild", weak="n"),
    Noun("fox", "der Fuchs", "Füchse", "wild hunter"),
    Noun("wolf", "der Wolf", "Wölfe", "wild hunter"),
    # Food and drink
    Noun("apple", "der Apfel", "Äpfel", "food fruit fodder"),
    Noun("pear", "die Birne", "Birnen", "food fruit"),
    Noun("banana", "die Banane", "Bananen", "food fruit"),
    Noun("orange", "die Orange", "Orangen", "food fruit"),
    Noun("strawberry", "die Erdbeere", "Erdbeeren", "food fruit"),
    Noun("tomato", "die Tomate", "Tomaten", "food vegetable"),
    Noun("carrot", "die Karotte", "Karotten", "food vegetable fodder"),
    Noun("potato", "die Kartoffel", "Kartoffeln", "cooked vegetable"),
    Noun("egg", "das Ei", "Eier", "cooked"),
    Noun("soup", "die Suppe", "Suppen", "cooked served"),
    Noun("vegetable soup", "die Gemüsesuppe", "Gemüsesuppen", "cooked served"),
    Noun("sausage", "die Wurst", "Würste", "food fodder served"),
    Noun("salad", "der Salat", "Salate", "food served"),
    Noun("potato salad", "der Kartoffelsalat", "Kartoffelsalate", "food served"),
    Noun("cake", "der Kuchen", "Kuchen", "baked sweet served"),
    Noun("apple cake", "der Apfelkuchen", "Apfelkuchen", "baked sweet served"),
    Noun("cookie", "der Keks", "Kekse", "baked sweet"),
    Noun("pizza", "die Pizza", "Pizzen", "baked served"),
    Noun("bread", "das Brot", "", "baked fodder"),
    Noun("cheese", "der Käse", "", "food"),
    Noun("meat", "das Fleisch", "", "cooked fodder"),
    Noun("fish", "der Fisch", "", "cooked fodder served"),
    Noun("rice", "der Reis", "", "cooked"),
    Noun("chocolate", "die Schokolade", "", "food sweet"),
    Noun("ice cream", "das Eis", "", "food sweet served"),
    Noun("coffee", "der Kaffee", "", "drink hot"),
    Noun("tea", "der Tee", "", "drink hot"),
    Noun("milk", "die Milch", "", "drink watery"),
    Noun("water", "das Wasser", "", "drink watery"),
    Noun("beer", "das Bier", "", "drink"),
    Noun("wine", "der Wein", "", "drink"),
    Noun("red wine", "der Rotwein", "", "drink"),
    Noun("apple juice", "der Apfelsaft", "", "drink"),
    Noun("orange juice", "der Orangensaft", "", "drink"),
    # Things to read and write
    Noun("book", "das Buch", "Bücher", "readable paged lent"),
    Noun("newspaper", "die Zeitung", "Zeitungen", "readable"),
    Noun("magazine", "die Zeitschrift", "Zeitschriften", "readable"),
    Noun("cookbook", "das Kochbuch", "Kochbücher", "readable paged lent"),
    Noun("dictionary", "das Wörterbuch", "Wörterbücher", "readable paged lent used"),
    Noun("novel", "der Roman", "Romane", "writable paged lent"),
    Noun("letter", "der Brief", "Briefe", "writable sent answered"),
    Noun("postcard", "die Postkarte", "Postkarten", "writable sent"),
    Noun("poem", "das Gedicht", "Gedichte", "text"),
    Noun("story", "die Geschichte", "Geschichten", "text told"),
    Noun("text", "der Text", "Texte", "text"),
    Noun("article", "der Artikel", "Artikel", "text"),
    Noun("report", "der Bericht", "Berichte", "text"),
    Noun("contract", "der Vertrag", "Verträge", "readable signed"),
    Noun("bill", "die Rechnung", "Rechnungen", "readable signed paid"),
    # Furniture and the house
    Noun("table", "der Tisch", "Tische", "furniture surface"),
    Noun("kitchen table", "der Küchentisch", "Küchentische", "furniture surface"),
    Noun("desk", "der Schreibtisch", "Schreibtische", "furniture surface"),
    Noun("chair", "der Stuhl", "Stühle", "furniture surface seat"),
    Noun("sofa", "das Sofa", "Sofas", "furniture surface seat"),
    Noun("armchair", "der Sessel", "Sessel", "furniture surface seat"),
    Noun("bed", "das Bett", "Betten", "furniture surface"),
    Noun("shelf", "das Regal", "Regale", "furniture surface"),
    Noun("carpet", "der Teppich", "Teppiche", "furniture surface"),
    Noun("cupboard", "der Schrank", "Schränke", "furniture container openable"),
    Noun("mirror", "der Spiegel", "Spiegel", "furniture landmark"),
    Noun("lamp", "die Lampe", "Lampen", "furniture switched standing landmark"),
    Noun("vase", "die Vase", "Vasen", "dish standing"),
    Noun("drawer", "die Schublade", "Schubladen", "container openable"),
    Noun("refrigerator", "der Kühlschrank", "Kühlschränke", "machine container openable"),
    Noun("door", "die Tür", "Türen", "openable landmark painted"),
    Noun("front door", "die Haustür", "Haustüren", "openable landmark painted"),
    Noun("window", "das Fenster", "Fenster", "openable landmark cleaned"),
    Noun("bag", "die Tasche", "Taschen", "bag container portable carried"),
    Noun("handbag", "die Handtasche", "Handtaschen", "bag container portable carried"),
    Noun("suitcase", "der Koffer", "Koffer", "bag container portable carried packed"),
    Noun("backpack", "der Rucksack", "Rucksäcke", "bag container portable carried packed"),
    Noun("box", "die Kiste", "Kisten", "bag container carried packed"),
    Noun("basket", "der Korb", "Körbe", "thing container carried"),
    Noun("cup", "die Tasse", "Tassen", "dish standing"),
    Noun("glass", "das Glas", "Gläser", "dish standing"),
    Noun("wine glass", "das Weinglas", "Weingläser", "dish standing"),
    Noun("plate", "der Teller", "Teller", "dish standing"),
    Noun("bottle", "die Flasche", "Flaschen", "dish standing openable"),
    # Machines and vehicles
    Noun("computer", "der Computer", "Computer", "machine switched used"),
    Noun("radio", "das Radio", "Radios", "machine switched"),
    Noun("television", "der Fernseher", "Fernseher", "machine switched"),
    Noun("washing machine", "die Waschmaschine", "Waschmaschinen", "machine switched used"),
    Noun("camera", "die Kamera", "Kameras", "machine portable used lent"),
    Noun("telephone", "das Telefon", "Telefone", "machine used ringing"),
    Noun("alarm clock", "der Wecker", "Wecker", "machine ringing standing"),
    Noun("car", "das Auto", "Autos", "vehicle land washed mine"),
    Noun("truck", "der Lastwagen", "Lastwagen", "vehicle land washed"),
    Noun("bicycle", "das Fahrrad", "Fahrräder", "vehicle land washed lent"),
    Noun("bus", "der Bus", "Busse", "vehicle public land"),
    Noun("train", "der Zug", "Züge", "vehicle public"),
    Noun("taxi", "das Taxi", "Taxis", "vehicle public land"),
    Noun("ship", "das Schiff", "Schiffe", "vehicle built public"),
    Noun("airplane", "das Flugzeug", "Flugzeuge", "vehicle public"),
    # Clothes
    Noun("shirt", "das Hemd", "Hemden", "garment washed"),
    Noun("dress", "das Kleid", "Kleider", "garment washed"),
    Noun("summer dress", "das Sommerkleid", "Sommerkleider", "garment washed"),
    Noun("skirt", "der Rock", "Röcke", "garment washed"),
    Noun("sweater", "der Pullover", "Pullover", "garment washed"),
    Noun("jacket", "die Jacke", "Jacken", "garment washed"),
    Noun("coat", "der Mantel", "Mäntel", "garment"),
    Noun("winter coat", "der Wintermantel", "Wintermäntel", "garment"),
    Noun("hat", "der Hut", "Hüte", "clothes"),
    Noun("cap", "die Mütze", "Mützen", "clothes"),
    Noun("scarf", "der Schal", "Schals", "clothes washed"),
    Noun("shoe", "der Schuh", "Schuhe", "garment cleaned"),
    Noun("glove", "der Handschuh", "Handschuhe", "garment"),
    # Small things and tools
    Noun("key", "der Schlüssel", "Schlüssel", "small mine"),
    Noun("house key", "der Hausschlüssel", "Hausschlüssel", "small"),
    Noun("ring", "der Ring", "Ringe", "small gift"),
    Noun("coin", "die Münze", "Münzen", "small collected"),
    Noun("stamp", "die Briefmarke", "Briefmarken", "small collected"),
    Noun("ticket", "die Fahrkarte", "Fahrkarten", "small"),
    Noun("ball", "der Ball", "Bälle", "small toy"),
    Noun("doll", "die Puppe", "Puppen", "small toy gift"),
    Noun("present", "das Geschenk", "Geschenke", "small sent"),
    Noun("package", "das Paket", "Pakete", "small sent carried fetched"),
    Noun("photo", "das Foto", "Fotos", "small sent shown"),
    Noun("picture", "das Bild", "Bilder", "thing drawn shown"),
    Noun("map", "die Landkarte", "Landkarten", "small drawn shown"),
    Noun("umbrella", "der Regenschirm", "Regenschirme", "small lent"),
    Noun("pencil", "der Bleistift", "Bleistifte", "tool used lent"),
    Noun("knife", "das Messer", "Messer", "tool used"),
    Noun("hammer", "der Hammer", "Hämmer", "tool used lent"),
    Noun("ladder", "die Leiter", "Leitern", "thing used lent carried"),
    Noun("candle", "die Kerze", "Kerzen", "small gift"),
    Noun("money", "das Geld", "", "wealth"),
    Noun("time", "die Zeit", "", "leisure"),
    # Plants
    Noun("tree", "der Baum", "Bäume", "plant drawn landmark trunk"),
    Noun("apple tree", "der Apfelbaum", "Apfelbäume", "plant landmark trunk"),
    Noun("flower", "die Blume", "Blumen", "plant gift drawn collected watered"),
    Noun("rose", "die Rose", "Rosen", "plant gift drawn watered flower"),
    Noun("plant", "die Pflanze", "Pflanzen", "plant watered"),
    # Buildings and places (how one is in them or goes to them: adverbials.py)
    Noun("house", "das Haus", "Häuser", "building home built painted landmark mine"),
    Noun("apartment", "die Wohnung", "Wohnungen", "home tidied sold"),
    Noun("tower", "der Turm", "Türme", "building built landmark"),
    Noun("castle", "das Schloss", "Schlösser", "building sight"),
    Noun("bridge", "die Brücke", "Brücken", "building built landmark"),
    Noun("wall", "die Mauer", "Mauern", "building built landmark painted"),
    Noun("church", "die Kirche", "Kirchen", "building sight landmark"),
    Noun("school", "die Schule", "Schulen", "building"),
    Noun("kindergarten", "der Kindergarten", "Kindergärten", "building"),
    Noun("university", "die Universität", "Universitäten", "building"),
    Noun("library", "die Bibliothek", "Bibliotheken", "building sight"),
    Noun("museum", "das Museum", "Museen", "building sight"),
    Noun("theater", "das Theater", "Theater", "building sight"),
    Noun("cinema", "das Kino", "Kinos", "building"),
    Noun("restaurant", "das Restaurant", "Restaurants", "building"),
    Noun("café", "das Café", "Cafés", "building"),
    Noun("hotel", "das Hotel", "Hotels", "building"),
    Noun("hospital", "das Krankenhaus", "Krankenhäuser", "building"),
    Noun("bakery", "die Bäckerei", "Bäckereien", "building"),
    Noun("supermarket", "der Supermarkt", "Supermärkte", "building"),
    Noun("office", "das Büro", "Büros", "room tidied"),
    Noun("kitchen", "die Küche", "Küchen", "room tidied cleaned"),
    Noun("bathroom", "das Badezimmer", "Badezimmer", "room cleaned"),
    Noun("bedroom", "das Schlafzimmer", "Schlafzimmer", "room tidied"),
    Noun("living room", "das Wohnzimmer", "Wohnzimmer", "room tidied"),
    Noun("garden", "der Garten", "Gärten", "outdoors mine"),
    Noun("park", "der Park", "Parks", "outdoors"),
    Noun("forest", "der Wald", "Wälder", "outdoors"),
    Noun("market", "der Markt", "Märkte", "outdoors"),
    Noun("playground", "der Spielplatz", "Spielplätze", "outdoors"),
    Noun("beach", "der Strand", "Strände", "outdoors"),
    Noun("lake", "der See", "Seen", "outdoors"),
    Noun("island", "die Insel", "Inseln", "outdoors"),
    Noun("station", "der Bahnhof", "Bahnhöfe", "stop"),
    Noun("airport", "der Flughafen", "Flughäfen", "stop"),
    Noun("city", "die Stadt", "Städte", "settlement sight"),
    Noun("village", "das Dorf", "Dörfer", "settlement"),
    # What one says, thinks, plays and goes to
    Noun("question", "die Frage", "Fragen", "said answered"),
    Noun("answer", "die Antwort", "Antworten", "said"),
    Noun("word", "das Wort", "Wörter", "said learned"),
    Noun("sentence", "der Satz", "Sätze", "said"),
    Noun("rule", "die Regel", "Regeln", "said learned explained"),
    Noun("language", "die Sprache", "Sprachen", "learned"),
    Noun("task", "die Aufgabe", "Aufgaben", "said explained"),
    Noun("problem", "das Problem", "Probleme", "issue explained"),
    Noun("mistake", "der Fehler", "Fehler", "issue"),
    Noun("plan", "der Plan", "Pläne", "idea explained shown"),
    Noun("idea", "die Idee", "Ideen", "idea explained"),
    Noun("joke", "der Witz", "Witze", "told"),
    Noun("secret", "das Geheimnis", "Geheimnisse", "told"),
    Noun("song", "das Lied", "Lieder", "heard learned sung"),
    Noun("music", "die Musik", "", "heard"),
    Noun("film", "der Film", "Filme", "show"),
    Noun("concert", "das Konzert", "Konzerte", "event show"),
    Noun("party", "die Party", "Partys", "event"),
    Noun("wedding", "die Hochzeit", "Hochzeiten", "event"),
    Noun("exam", "die Prüfung", "Prüfungen", "event test"),
    Noun("journey", "die Reise", "Reisen", "event trip"),
    Noun("course", "der Kurs", "Kurse", "event"),
    Noun("game", "das Spiel", "Spiele", "event show"),
    Noun("rain", "der Regen", "", "weather"),
    Noun("snow", "der Schnee", "", "weather"),
    Noun("page", "die Seite", "Seiten", "measure"),
    Noun("hour", "die Stunde", "Stunden", "measure"),
    Noun("day", "der Tag", "Tage", "measure"),
    Noun("week", "die Woche", "Wochen", "measure"),
    Noun("month", "der Monat", "Monate", "measure"),
    Noun("year", "das Jahr", "Jahre", "measure"),
)

_BY_ENGLISH = {entry.english: entry for entry in NOUNS}
