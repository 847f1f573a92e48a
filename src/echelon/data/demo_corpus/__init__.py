"""The embedded corpus: English-German sentence pairs made by a small grammar of both languages.

It needs no download and is the same for everybody. The translation is a function of the English sentence:
`you` is always du, the simple past is told in the perfect (but war, hatte, konnte), the progressive is
`gerade`, and `it` is only said of a noun in the same sentence.
"""

from echelon.data.demo_corpus.corpus import SHA256, EmbeddedCorpus, generate
from echelon.data.demo_corpus.pair import Pair

__all__ = ["SHA256", "EmbeddedCorpus", "Pair", "generate"]
