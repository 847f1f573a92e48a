from __future__ import annotations

import pytest

from echelon.commands.demo import SENTENCES
from echelon.data.demo_corpus import generate
from echelon.recipe.loading import load_recipe
from echelon.recipe.shipped import find_recipe


def test_the_demos_sentences_are_not_in_its_training_set() -> None:
    trained = {pair.source.casefold() for pair in generate().train}
    assert [sentence for sentence in SENTENCES if sentence.casefold() in trained] == []


@pytest.mark.slow
def test_the_demos_words_are_all_in_its_training_set() -> None:
    words = {word.strip(".,?!").casefold() for pair in generate().train for word in pair.source.split()}
    unknown = [w for s in SENTENCES for w in s.split() if w.strip(".,?!").casefold() not in words]
    assert unknown == []


def test_the_demos_recipe_is_found_and_uses_two_workers() -> None:
    assert load_recipe(find_recipe("demo")).train.workers == 2
