"""The corpus as a whole: what it promises to whoever trains on it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from echelon.data.demo_corpus import SHA256, EmbeddedCorpus, Pair, generate
from echelon.data.demo_corpus.chance import Chance, Weighted
from echelon.data.demo_corpus.corpus import Sentences
from echelon.data.demo_corpus.german_forms import full_infinitive, full_participle, noun_form, present
from echelon.data.demo_corpus.nouns import NOUNS, Noun
from echelon.data.demo_corpus.verbs import GrammaticalCase, Verb
from tests.data.demo_corpus.words import ALL_VERBS

SMALL_SHA256 = "a0a32fa232e818deadf19e9063cf1abb83686331c959859716e2d9ad0fff4899"


@pytest.fixture(scope="module")
def corpus() -> EmbeddedCorpus:
    return generate()


def _digest(pairs: Iterable[Pair]) -> str:
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    return hashlib.sha256(text.encode()).hexdigest()


def _everything(corpus: EmbeddedCorpus) -> list[Pair]:
    return [*corpus.train, *corpus.valid, *corpus.test]


def _bare(sentence: str) -> str:
    return re.sub(r"[^\w ]", "", sentence.casefold())


def _words(sentences: Iterable[str]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in re.findall(r"[\w-]+", sentence))


def test_everybody_has_the_same_corpus(corpus: EmbeddedCorpus) -> None:
    assert _digest(_everything(corpus)) == SHA256


def test_the_corpus_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from echelon.data.demo_corpus import generate; import hashlib; c = generate(3, 300, 20, 20);"
        "t = ''.join(f'{p.source}\\t{p.target}\\n' for p in (*c.train, *c.valid, *c.test));"
        "import sys; sys.stdout.write(hashlib.sha256(t.encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4321")
    }
    assert digests == {SMALL_SHA256}


def test_another_seed_makes_another_corpus() -> None:
    assert generate(3, 50, 5, 5) == generate(3, 50, 5, 5)
    assert generate(3, 50, 5, 5) != generate(4, 50, 5, 5)


def test_sizes_are_as_asked_for(corpus: EmbeddedCorpus) -> None:
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (80_000, 500, 1_000)
    small = generate(train=7, valid=2, test=3)
    assert (len(small.train), len(small.valid), len(small.test)) == (7, 2, 3)


def test_no_sentence_of_either_language_occurs_twice(corpus: EmbeddedCorpus) -> None:
    pairs = _everything(corpus)
    assert len({_bare(pair.source) for pair in pairs}) == len(pairs)
    assert len({_bare(pair.target) for pair in pairs}) == len(pairs)


def test_a_sentence_always_has_the_same_translation() -> None:
    """Of the raw stream, where sentences do repeat: the grammar itself tosses no coins on the German side."""
    translations: dict[str, str] = {}
    repeated = 0
    for seed in (11, 12):
        sentences = Sentences(seed)
        for _ in range(15_000):
            source, target = sentences.next()
            repeated += source in translations
            assert translations.setdefault(source, target) == target, source
    assert repeated > 500


def test_sentences_are_of_a_reasonable_length(corpus: EmbeddedCorpus) -> None:
    lengths = [len(pair.source.split()) for pair in corpus.train]
    assert min(lengths) >= 3
    assert max(lengths) <= 20
    assert 8 <= sum(lengths) / len(lengths) <= 10


def test_sentences_are_written_as_sentences(corpus: EmbeddedCorpus) -> None:
    for sentence in (text for pair in corpus.train for text in pair):
        assert sentence[0].isupper(), sentence
        assert sentence[-1] in ".!?", sentence
        assert not re.search(r"  |,,| ,|,[.!?]|[.!?].", sentence), sentence
        assert re.fullmatch(r"[\wäöüÄÖÜß ,.!?'-]+", sentence), sentence


def test_german_nouns_are_never_written_small(corpus: EmbeddedCorpus) -> None:
    words = _words(pair.target for pair in corpus.train)
    also_other_words = {"junge", "pflanze", "frage", "reise"}
    small = {noun.german.lower() for noun in NOUNS} - also_other_words
    assert [word for word in small if words[word]] == []


def _noun_count(words: Counter[str], noun: Noun) -> int:
    cases: tuple[GrammaticalCase, ...] = ("nominative", "accusative", "dative", "genitive")
    numbers = (False, True) if noun.plural else (False,)
    forms = {noun_form(noun, case, plural) for case in cases for plural in numbers}
    return sum(words[form] for form in forms)


def test_every_noun_is_seen_often_enough_to_be_learned(corpus: EmbeddedCorpus) -> None:
    words = _words(pair.target for pair in corpus.train)
    counts = {noun.german: _noun_count(words, noun) for noun in NOUNS}
    assert min(counts.values()) >= 20, min(counts, key=lambda word: counts[word])


def test_every_verb_is_seen_often_enough_to_be_learned(corpus: EmbeddedCorpus) -> None:
    words = _words(pair.target.lower() for pair in corpus.train)

    def count(verb: Verb) -> int:
        forms = {full_infinitive(verb), full_participle(verb), *present(verb.infinitive)}
        return sum(words[form] for form in forms)

    counts = {verb.german: count(verb) for verb in ALL_VERBS}
    assert min(counts.values()) >= 20, min(counts, key=lambda word: counts[word])


def test_hardly_a_word_of_the_test_set_is_new(corpus: EmbeddedCorpus) -> None:
    """All but a few long numbers and rare forms have been seen, and nothing else needs guessing."""
    known = _words(pair.target.lower() for pair in corpus.train)
    tested = _words(pair.target.lower() for pair in corpus.test)
    assert sum(count for word, count in tested.items() if not known[word]) <= 0.003 * tested.total()


@pytest.mark.parametrize(
    "pattern",
    [
r", dass \w", r", weil \w", r", obwohl \w", r"^Wenn ", r"^Als ", r", während \w", r", bevor \w",
        r", ob \w", r", um \w.* zu ", r", um \w.*zu\w+en", r"^[^,]* zu \w+n\.$", r", deren ", r", dessen ",
        r", denen ", r", in dem ", r"^Wo(rauf|ran|rüber|von|mit) ", r"^Wem ", r"^Wen ", r"^Wohin ",
        r"^Wie viele ", r"^Welche", r" noch nie ", r" noch kein", r" schon ", r" gerade ", r" gern ",
        r" größer als ", r" so alt wie ", r"^Es gibt ", r"^Es gab ", r" wegen des ", r" beim Arzt",
        r" zur ", r" zum ", r" vom ", r" ans? ", r"hundert\w+und\w+zig ", r" um halb ", r" Viertel vor ",
        r" im Jahr ", r" lang ", r" mich ", r" sich ", r"^(Mach|Hol|Ruf) .* (auf|ab|an)!", r" bitte ",
        r" am ", r" ins ", r" des \w+s ", r"s \w+es \w+", r" beide ", r" älteste ", r" durfte", r" möchte",
        r" musste", r" will .* werden", r" aber ", r" Jahre alt",
    ],
)  # fmt: skip
def test_constructions_are_common(corpus: EmbeddedCorpus, pattern: str) -> None:
    found = sum(bool(re.search(pattern, pair.target)) for pair in corpus.train)
    assert found >= 40, f"{pattern}: {found}"


def test_wrong_german_does_not_occur(corpus: EmbeddedCorpus) -> None:
    """Strings that no correct German sentence of this lexicon contains."""
    wrong = re.compile(
        r"\b(zu dem [A-Z]|zu der [A-Z]|in das [A-Z]|(den|dem|des) Junge|den Student|dem Herr"
        r"|den (alte|gute|kleine|große|neue) |ein(en|em|es) \w+er [A-Z]|nicht (ein|eine|einen) [A-Z]"
        r"|gern kein|hat gegangen|ist gekauft|mir freu|mich ge(fallen|holfen))\b"
    )
    assert [pair.target for pair in corpus.train if wrong.search(pair.target)] == []


def test_draws_follow_the_weights() -> None:
    chance = Chance(5)
    drawn = Counter(chance.draw(Weighted((3, "a"), (1, "b"))) for _ in range(4000))
    assert 0.7 < drawn["a"] / 4000 < 0.8
    assert {chance.between(2, 4) for _ in range(100)} == {2, 3, 4}
