"""The joint vocabulary of both languages: SentencePiece, encoding and decoding."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from echelon.data.cleaning import LONGEST_WORD, SPACE_MARK, UNSPACED
from echelon.data.paired_pieces import PairedModels, PiecesOfSide
from echelon.errors import DataError
from echelon.runfolder import read_file

PAD, EOS, BOS, UNK = range(4)

TOKEN_TYPE = np.dtype("<u2")
MOST_PIECES = 1 << 8 * TOKEN_TYPE.itemsize
CACHED_WORDS = 1 << 18
COUNTED_WORDS = 1 << 20
"""Distinct words counted before the rarest are forgotten: what bounds the memory of counting."""
TRAINING_WORDS = 1 << 19
"""Distinct words the vocabulary is learnt from, the most frequent ones."""
KNOWN_SHARE = 0.9999
"""The share of the training text's characters that get a piece of their own if half the vocabulary suffices."""
STRETCH = 16
"""Characters that are counted together of a script without spaces, whose lines would be words that never repeat."""
SHORT_STRETCH = 2
"""The same if memory is short: pairs of characters repeat in any text."""
CONTINUES = "."
"""In front of a stretch that begins inside a word: no piece joins it to a letter, so the space in front of every
counted word is not learnt as part of that stretch."""


class WordCounts:
    """How often each word occurs, in bounded memory.

    Beyond COUNTED_WORDS distinct words, those seen least are forgotten; of scripts without spaces, they are cut shorter
    first. The result depends on the order in which counts are added, so add them in the text's order.
    """

    def __init__(self, limit: int = COUNTED_WORDS) -> None:
        self.counts: Counter[str] = Counter()
        self._limit = limit

    def add(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)
        least = 1
        while len(self.counts) > self._limit:
            counted = self.counts
            self.counts = Counter({word: count for word, count in counted.items() if count > least})
            for word, count in counted.items():
                if count <= least and len(word) > SHORT_STRETCH + len(CONTINUES) and _is_unspaced(word):
                    for stretch in _cut(word, SHORT_STRETCH):
                        self.counts[stretch] += count
            least += 1

    def most_frequent(self, limit: int = TRAINING_WORDS) -> dict[str, int]:
        """The most frequent words, ties in code point order."""
        counts = self.counts
        ranked = sorted(sorted(counts), key=counts.__getitem__, reverse=True)  # equal ones keep their order
        return {word: counts[word] for word in ranked[:limit]}


def count_words_of(lines: Iterable[str]) -> Counter[str]:
    """Words of normalised lines, as the vocabulary is learnt from them."""
    counts = Counter(" ".join(lines).split(" "))
    del counts[""]
    return with_long_words_cut(counts)


def with_long_words_cut(counts: Counter[str]) -> Counter[str]:
    """Counted words, those without spaces for too long in stretches; else one of more than LONGEST_WORD characters is
    no word."""
    for word in [word for word in counts if len(word) > STRETCH]:
        if _is_unspaced(word):
            count = counts.pop(word)
            for stretch in _cut(word, STRETCH):
                counts[stretch] += count
        elif len(word) > LONGEST_WORD:
            del counts[word]
    return counts


def _is_unspaced(word: str) -> bool:
    return not word.isascii() and UNSPACED.search(word) is not None


def _cut(word: str, length: int) -> list[str]:
    first, *others = (word[start : start + length] for start in range(0, len(word), length))
    return [first, *(CONTINUES + other for other in others)]


def without_rare_characters(words: Mapping[str, int], vocabulary: int) -> dict[str, int]:
    """Words cut at characters too rare for a subword of their own, which become unknown.

    A web corpus holds thousands of stray characters. They may take 3/4 of a small vocabulary and 1/32
    of a large one; half of it if the script has that many, as Chinese does.
    """
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    running = np.cumsum([characters[character] for character in ranked])
    written = int(np.searchsorted(running, KNOWN_SHARE * running[-1])) + 1 if ranked else 0
    limit = max(min(256, vocabulary * 3 // 4), vocabulary // 32, min(written, vocabulary // 2))
    if not (rare := {ord(character): " " for character in ranked[limit:]}):
        return dict(words)
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for part in word.translate(rare).split(" "):
            if part:
                parts[part] += count
    return dict(parts)


def train_tokeniser(words: Mapping[str, int], vocabulary: int) -> bytes:
    """A SentencePiece model of at most `vocabulary` pieces, fewer if the words do not yield as many.

    As no piece spans two words, counted words give the pieces that the text would, as long as all of them were counted
    and kept whole. Of a text that exceeds COUNTED_WORDS, TRAINING_WORDS or the limit on characters, the rarest words
    and characters play no part, and what is longer than STRETCH in a script without spaces is cut, so some pieces are
    others. The same words give the same bytes.
    """
    known = without_rare_characters(words, vocabulary)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(known.items())),
            input_format="tsv",
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",  # lines are normalised before they come here
            byte_fallback=False,
            pad_id=PAD,
            eos_id=EOS,
            bos_id=BOS,
            unk_id=UNK,
            num_threads=1,
            minloglevel=2,  # its progress would land on the user's screen
        )
    except RuntimeError as error:
        raise DataError(f"no vocabulary can be learnt from {len(words):,} distinct words: {error}") from error
    return model.getvalue()


class Tokeniser:
    """Lines to ids and back. Lines are expected as `cleaning.normalise` leaves them.

    It encodes source text; `for_target` encodes target text, and is the same unless each language has a SentencePiece
    model of its own.
    """

    def __init__(self, processor: Any, target: Tokeniser | None = None) -> None:
        self._processor = processor
        self.for_target: Tokeniser = target or self
        self._tokens_of_words = {"\n": np.array([EOS], TOKEN_TYPE).tobytes()}
        self.size: int = processor.get_piece_size()
        self._is_word_local = _is_word_local(processor)

    @classmethod
    def load(cls, path: Path) -> Tokeniser:
        """Read a SentencePiece model, or a pair of them (paired_pieces.py); DataError if it is missing, damaged, too
        large or has other special ids."""
        try:
            model = read_file(path)
        except OSError as error:
            raise DataError(f"the tokeniser {path} cannot be read: {error.strerror}") from error
        if model.startswith(b"{"):
            return cls._load_pair(path, model)
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.load_from_serialized_proto(model)
        except RuntimeError as error:
            raise DataError(f"{path} is not a SentencePiece model, or damaged") from error
        ids = (processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id())
        if ids != (PAD, EOS, BOS, UNK):
            raise DataError(f"{path} has pad, eos, bos, unk at {ids}; Echelon needs {(PAD, EOS, BOS, UNK)}")
        _require_few(path, processor.get_piece_size())
        return cls._of(path, processor)

    @classmethod
    def _load_pair(cls, path: Path, content: bytes) -> Tokeniser:
        try:
            models = PairedModels.from_json(content)
            sides = [PiecesOfSide(models.pieces, model) for model in (models.source, models.target)]
        except (ValueError, RuntimeError) as error:
            raise DataError(f"{path} is not a pair of SentencePiece models, or damaged: {error}") from error
        _require_few(path, len(models.pieces))
        source, target = sides
        return cls._of(path, source, cls._of(path, target))

    @classmethod
    def _of(cls, path: Path, processor: Any, target: Tokeniser | None = None) -> Tokeniser:
        try:
            return cls(processor, target)
        except UnicodeDecodeError:
            raise DataError(f"{path} has pieces that are not UTF-8; it is damaged") from None

    @property
    def is_paired(self) -> bool:
        """Whether each language has a model of its own, which a program of another kind cannot read."""
        return self.for_target is not self

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without EOS."""
        tokens = self.encode_in_a_row(lines)
        ends = np.flatnonzero(tokens == EOS)
        return [line.tolist()[:-1] for line in np.split(tokens, ends[:-1] + 1)] if len(ends) else []

    def count(self, lines: Sequence[str]) -> list[int]:
        """The number of ids of each line, without EOS."""
        return [len(ids) for ids in self.encode(lines)]

    def encode_in_a_row(self, lines: Sequence[str]) -> NDArray[np.uint16]:
        """The ids of all lines concatenated, each line ending in EOS, which appears nowhere else.

        Looking words up is several times faster than encoding them again, and gives the same ids.
        """
        if not self._is_word_local:
            encoded = self._processor.encode(list(lines), num_threads=1)
            return np.fromiter((token for ids in encoded for token in (*ids, EOS)), TOKEN_TYPE)
        if len(self._tokens_of_words) > CACHED_WORDS:
            self._tokens_of_words = {"\n": np.array([EOS], TOKEN_TYPE).tobytes()}
        words = "".join(f"{line} \n " for line in lines).split(" ")
        new = set(words).difference(self._tokens_of_words)
        self._learn(new)
        tokens = np.frombuffer(b"".join(map(self._tokens_of_words.__getitem__, words)), TOKEN_TYPE)
        for word in new:
            if len(word) > LONGEST_WORD:  # no word: a megabyte of one letter is not worth keeping
                del self._tokens_of_words[word]
        return tokens

    def _learn(self, words: set[str]) -> None:
        new = list(words)
        for word, ids in zip(new, self._processor.encode(new, num_threads=1), strict=True):
            self._tokens_of_words[word] = np.array(ids, TOKEN_TYPE).tobytes()

    def ids(self, pieces: Sequence[str]) -> list[int]:
        """The id of each subword; UNK if the model does not have it."""
        return [int(index) for index in self._processor.piece_to_id(list(pieces))]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The subword of each id; a space before a word is SPACE_MARK."""
        return [str(self._processor.id_to_piece(index)) for index in ids]

    def decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids of the target, without PAD, EOS and BOS."""
        if not sentences:
            return []
        try:
            processor = self.for_target._processor
            return list(processor.decode([list(ids) for ids in sentences], num_threads=1))
        except UnicodeDecodeError:
            raise DataError("the tokeniser's model has pieces that are not UTF-8; it is damaged") from None


def _require_few(path: Path, num_pieces: int) -> None:
    if num_pieces > MOST_PIECES:
        raise DataError(f"{path} has {num_pieces:,} pieces; Echelon takes models of at most {MOST_PIECES:,}")


def _is_word_local(processor: Any) -> bool:
    """Whether a line's ids are the concatenated ids of its words: no subword spans words, and no word means anything
    else at the beginning."""
    if isinstance(processor, PiecesOfSide) and processor.has_languages:
        return False
    pieces = (processor.id_to_piece(index) for index in range(processor.get_piece_size()))
    if any(SPACE_MARK in piece[1:] for piece in pieces):
        return False
    return bool(processor.encode("a a") == processor.encode("a") * 2)
