"""The adjectives: both languages, degrees of comparison, and the kinds of noun they go with.

One line an entry: English, German, kinds. A German comparative is `-er` and a superlative `-st` on the stem
unless the entry says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from echelon.data.demo_corpus.nouns import Noun, kinds_of

Sort = Literal["quality", "colour", "state"]


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective of both languages; compared and hashed by identity."""

    english: str
    german: str
    labels: str
    comparative: str = ""
    superlative: str = ""
    """German stem before the ending: `größt`."""
    stem: str = ""
    """German stem before an ending, where it differs: hoch, das hohe Haus."""
    sort: Sort = "quality"


@cache
def fitting(noun: Noun, sort: Sort) -> tuple[Adjective, ...]:
    """The adjectives of a sort that can be said of a noun."""
    kinds = kinds_of(noun)
    return tuple(entry for entry in ADJECTIVES if entry.sort == sort and kinds & set(entry.labels.split()))


def adjective(english: str) -> Adjective:
    """The adjective with that English name."""
    return _BY_ENGLISH[english]


ADJECTIVES = (
    # Size, age, worth
    Adjective(
        "big", "groß", "animal thing building settlement room outdoors plant fruit cake", "größer", "größt"
    ),
    Adjective("small", "klein", "young animal thing building settlement room outdoors plant"),
    Adjective("old", "alt", "adult job guest animal thing building settlement plant joke", "älter", "ältest"),
    Adjective("young", "jung", "adult job guest animal", "jünger", "jüngst"),
    Adjective(
        "new", "neu", "neighbor colleague boss thing building room idea told heard show", superlative="neuest"
    ),
    Adjective("tall", "groß", "adult job young", "größer", "größt"),
    Adjective("long", "lang", "text trip show skirt coat dress", "länger", "längst"),
    Adjective("short", "kurz", "text trip show said", "kürzer", "kürzest"),
    Adjective("heavy", "schwer", "bag furniture carried"),
    Adjective("high", "hoch", "tower bridge wall church castle tree", "höher", "höchst", stem="hoh"),
    Adjective("thick", "dick", "paged clothes"),
    Adjective("thin", "dünn", "paged clothes"),
    Adjective("wide", "breit", "surface bridge", superlative="breitest"),
    Adjective("deep", "tief", "lake drawer"),
    Adjective(
        "good", "gut", "job guest food drink paged text newspaper magazine show idea", "besser", "best"
    ),
    Adjective("bad", "schlecht", "show food idea", superlative="schlechtest"),
    Adjective("expensive", "teuer", "thing food drink home restaurant", "teurer", "teuerst", stem="teur"),
    Adjective("cheap", "billig", "thing food drink home"),
    Adjective("beautiful", "schön", "adult animal thing building settlement room outdoors plant show heard"),
    Adjective("ugly", "hässlich", "clothes furniture building vehicle"),
    Adjective("modern", "modern", "machine building furniture vehicle"),
    Adjective("strange", "seltsam", "guest text told said heard idea"),
    # Things and places
    Adjective("clean", "sauber", "dish clothes room vehicle outdoors"),
    Adjective("dirty", "schmutzig", "dish clothes room vehicle"),
    Adjective("broken", "kaputt", "machine dish vehicle bag toy", superlative="kaputtest"),
    Adjective("empty", "leer", "container dish room"),
    Adjective("dark", "dunkel", "room forest clothes", stem="dunkl"),
    Adjective("bright", "hell", "room"),
    Adjective("quiet", "ruhig", "settlement outdoors room hotel café restaurant library"),
    Adjective("comfortable", "bequem", "seat clothes"),
    Adjective("fast", "schnell", "vehicle", superlative="schnellst"),
    Adjective("useful", "nützlich", "tool machine used idea"),
    Adjective("important", "wichtig", "said event signed sent issue idea"),
    Adjective("famous", "berühmt", "job adult building settlement text picture", superlative="berühmtest"),
    Adjective("round", "rund", "table carpet mirror", superlative="rundest"),
    # Food and drink
    Adjective("fresh", "frisch", "food watery", superlative="frischest"),
    Adjective("hot", "heiß", "cooked hot", superlative="heißest"),
    Adjective("cold", "kalt", "drink cooked", "kälter", "kältest"),
    Adjective("warm", "warm", "clothes cooked drink", "wärmer", "wärmst"),
    Adjective("sweet", "süß", "sweet fruit", superlative="süßest"),
    Adjective("sour", "sauer", "fruit", stem="saur", superlative="sauerst"),
    Adjective("delicious", "lecker", "food drink"),
    # Texts, ideas, shows
    Adjective(
        "interesting",
        "interessant",
        "paged newspaper magazine letter text show idea",
        superlative="interessantest",
    ),
    Adjective("boring", "langweilig", "paged newspaper magazine letter text show told trip"),
    Adjective("exciting", "spannend", "text show trip novel", superlative="spannendst"),
    Adjective("funny", "lustig", "text told show young"),
    Adjective("sad", "traurig", "text show heard"),
    Adjective("difficult", "schwierig", "said issue test learned"),
    Adjective("simple", "einfach", "said issue test tool", superlative="einfachst"),
    # People and animals
    Adjective("friendly", "freundlich", "person"),
    Adjective("polite", "höflich", "person"),
    Adjective("nice", "nett", "person", superlative="nettest"),
    Adjective("clever", "klug", "person pet", "klüger", "klügst"),
    Adjective("hard-working", "fleißig", "job young"),
    Adjective("lazy", "faul", "young pet guest"),
    Adjective("rich", "reich", "adult job"),
    Adjective("poor", "arm", "adult young", "ärmer", "ärmst"),
    Adjective("strict", "streng", "job boss parent"),
    Adjective("patient", "geduldig", "job family"),
    Adjective("honest", "ehrlich", "adult job guest"),
    Adjective("curious", "neugierig", "young guest animal"),
    Adjective("shy", "schüchtern", "young animal"),
    Adjective("strong", "stark", "animal adult", "stärker", "stärkst"),
    Adjective("dangerous", "gefährlich", "wild trip"),
    # Colours
    Adjective("red", "rot", "clothes vehicle bag flower toy", "röter", "rötest", sort="colour"),
    Adjective("blue", "blau", "clothes vehicle bag dish toy", sort="colour"),
    Adjective("green", "grün", "clothes vehicle bag dish furniture", sort="colour"),
    Adjective("yellow", "gelb", "clothes vehicle flower dish toy", sort="colour"),
    Adjective("black", "schwarz", "clothes vehicle bag pet", sort="colour"),
    Adjective("white", "weiß", "clothes building dish pet flower furniture", sort="colour"),
    Adjective("brown", "braun", "clothes bag pet furniture", sort="colour"),
    Adjective("gray", "grau", "clothes building vehicle", sort="colour"),
    # How one feels: said of people, after a verb
    Adjective("tired", "müde", "person animal", stem="müd", sort="state"),
    Adjective("hungry", "hungrig", "person animal", sort="state"),
    Adjective("thirsty", "durstig", "person animal", sort="state"),
    Adjective("sick", "krank", "person animal", "kränker", "kränkst", sort="state"),
    Adjective("healthy", "gesund", "person animal", "gesünder", "gesündest", sort="state"),
    Adjective("happy", "glücklich", "person", sort="state"),
    Adjective("unhappy", "unglücklich", "person", sort="state"),
    Adjective("angry", "wütend", "person", sort="state"),
    Adjective("nervous", "nervös", "person", sort="state"),
    Adjective("lonely", "einsam", "person", sort="state"),
    Adjective("satisfied", "zufrieden", "person", sort="state"),
)

_BY_ENGLISH = {entry.english: entry for entry in ADJECTIVES}
