"""The stages of preparing: clean, drop duplicates, learn the vocabulary, encode.

Each reads its input in chunks, spreads a few of them over the cores at a time and writes results in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from echelon.data.cleaning import Dropped, NormalForm
from echelon.data.corpora import ParallelText, chunks
from echelon.data.duplicates import first_occurrences
from echelon.data.pool import OrderedMap, map_here
from echelon.data.prepared import CorpusEntry
from echelon.data.progress import Progress, ReportProgress
from echelon.data.resume_state import ResumeState
from echelon.data.shards import FileEntry, PairWriter, encode_block, encode_held_out
from echelon.data.subwords import check_plain
from echelon.data.tokeniser import WordCounts, train_tokeniser
from echelon.data.training_text import CleanCorpus, CleanText, count_blocks
from echelon.errors import DataError
from echelon.recipe.schema import Clean

COUNTED_BLOCKS = 8
"""Blocks whose words a worker counts together: most words come again, so fewer counts go back to be added up."""


@dataclass(frozen=True)
class Preparation:
    """The folder, workers and progress report of one preparation."""

    folder: Path
    """The folder for results."""
    state: ResumeState
    in_order: OrderedMap
    report: ReportProgress


@dataclass(frozen=True)
class Encoded:
    """A corpus, encoded and written."""

    entry: CorpusEntry
    files: list[FileEntry]


def check_held_out(texts: Iterable[ParallelText]) -> None:
    """Check the validation and test sets before the long work on the training set begins."""
    for text in texts:
        for chunk in chunks(text):
            chunk.decode()
            chunk.refuse_nul_bytes()


def clean(texts: Sequence[ParallelText], rules: Clean, preparation: Preparation) -> list[CleanCorpus]:
    """Clean the training corpora and drop pairs seen before, in the same corpus or an earlier one."""
    corpora = preparation.state.clean_corpora()
    if corpora is None:
        check_plain(texts)
        corpora = _clean(texts, rules, preparation)
        preparation.state.keep_clean(corpora)
    if not any(corpus.pairs - corpus.dropped.duplicate for corpus in corpora):
        raise DataError("cleaning left no training pair: " + "; ".join(map(_describe, corpora)))
    return corpora


def _clean(texts: Sequence[ParallelText], rules: Clean, preparation: Preparation) -> list[CleanCorpus]:
    writer = CleanText(preparation.state.folder, rules)
    total = sum(text.size_bytes for text in texts)

    def report() -> None:
        preparation.report(Progress("clean", sum(text.bytes_read for text in texts), total, "bytes"))

    corpora = [writer.add(text, preparation.in_order, report) for text in texts]
    return _drop_duplicates(corpora, writer.digests) if rules.drop_duplicates else corpora


def _describe(corpus: CleanCorpus) -> str:
    return f"{corpus.label} had {corpus.lines:,} pairs, dropped were {corpus.dropped}"


def _drop_duplicates(corpora: Sequence[CleanCorpus], digests: Path) -> list[CleanCorpus]:
    is_first = first_occurrences(digests)
    kept = digests.with_name("kept.temporary")
    kept.write_bytes(is_first.data)
    result = []
    start = 0
    for corpus in corpora:
        repeats = corpus.pairs - int(np.count_nonzero(is_first[start : start + corpus.pairs]))
        start += corpus.pairs
        blocks = [replace(block, kept=kept) for block in corpus.blocks]
        result.append(replace(corpus, blocks=blocks, dropped=corpus.dropped.plus({"duplicate": repeats})))
    return result


def learn_vocabulary(corpora: Sequence[CleanCorpus], vocabulary: int, preparation: Preparation) -> bytes:
    """Train a SentencePiece model on the words of all training pairs."""
    model = preparation.state.model()
    if model is None:
        model = _learn_vocabulary(corpora, vocabulary, preparation)
        preparation.state.keep_model(model)
    return model


def _learn_vocabulary(corpora: Sequence[CleanCorpus], vocabulary: int, preparation: Preparation) -> bytes:
    blocks = [block for corpus in corpora for block in corpus.blocks]
    total, done = sum(block.pairs for block in blocks), 0
    words = WordCounts()
    groups = [blocks[start : start + COUNTED_BLOCKS] for start in range(0, len(blocks), COUNTED_BLOCKS)]
    for group, counts in zip(groups, preparation.in_order(count_blocks, groups), strict=True):
        words.add(counts)
        done += sum(block.pairs for block in group)
        preparation.report(Progress("count", done, total, "pairs"))
    training_words = words.most_frequent()
    preparation.report(Progress("vocabulary", 0, len(training_words), "words"))
    # In a worker if there are any: SentencePiece does not return to Python, so Ctrl-C would have to wait.
    model = next(preparation.in_order(partial(train_tokeniser, vocabulary=vocabulary), [training_words]))
    preparation.report(Progress("vocabulary", len(training_words), len(training_words), "words"))
    return model


def encode_training(corpora: Sequence[CleanCorpus], model: Path, preparation: Preparation) -> list[Encoded]:
    """Encode the cleaned corpora."""
    total, done = sum(corpus.pairs for corpus in corpora), 0
    result = []
    for index, corpus in enumerate(corpora):
        encoded = preparation.in_order(partial(encode_block, model=model), corpus.blocks)
        with PairWriter(preparation.folder, f"train-{index}", with_text=False) as writer:
            for block, pairs in zip(corpus.blocks, encoded, strict=True):
                writer.add(pairs)
                done += block.pairs
                preparation.report(Progress("encode", done, total, "pairs"))
        result.append(_finish(writer, corpus.label, corpus.lines, corpus.dropped))
    return result


def encode_text(
    name: str,
    text: ParallelText,
    form: NormalForm,
    model: Path,
    folder: Path,
    *,
    in_order: OrderedMap = map_here,
) -> Encoded:
    """Encode a validation or test set into files of that name in `folder`."""
    encoded = in_order(partial(encode_held_out, form=form, model=model), chunks(text))
    with PairWriter(folder, name, with_text=True) as writer:
        for pairs in encoded:
            writer.add(pairs)
    return _finish(writer, text.label, writer.pairs, Dropped())


def _finish(writer: PairWriter, label: str, lines: int, dropped: Dropped) -> Encoded:
    counts = writer.count
    entry = CorpusEntry(writer.name, label, lines, writer.pairs, counts["source"], counts["target"], dropped)
    return Encoded(entry, writer.entries)
