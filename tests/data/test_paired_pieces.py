"""Two SentencePiece models with one list of ids, as Marian models have them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from echelon.data.corpora import Chunk
from echelon.data.paired_pieces import SPECIAL_PIECES, PairedModels
from echelon.data.shards import encode_held_out
from echelon.data.tokeniser import EOS, UNK, Tokeniser
from echelon.errors import DataError

SOURCE = ["The dog sleeps on the mat.", "A cat sees the dog and runs.", "The mat is red."]
TARGET = ["Der Hund schläft auf der Matte.", "Eine Katze sieht den Hund und rennt.", "Die Matte ist rot."]


def spm_model(lines: list[str], size: int) -> bytes:
    """A SentencePiece model as Marian's are: unigrams, without special pieces but the library's own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20),
        model_writer=model,
        vocab_size=size,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    return [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]


def make_pair(*more: str, without: str = "") -> PairedModels:
    source, target = spm_model(SOURCE, 40), spm_model(TARGET, 50)
    common = dict.fromkeys([*more, *pieces_of(target), *pieces_of(source)])
    common.pop(without, None)
    return PairedModels((*SPECIAL_PIECES, *common), source, target)


def load(pair: PairedModels, folder: Path) -> Tokeniser:
    path = folder / "pair.model"
    path.write_bytes(pair.to_json())
    return Tokeniser.load(path)


def test_each_side_is_cut_by_its_own_model_and_decoded_by_the_targets(tmp_path: Path) -> None:
    pair = make_pair()
    tokeniser = load(pair, tmp_path)
    sides = [
        (tokeniser, pair.source, [*SOURCE, "The dog  runs"]),
        (tokeniser.for_target, pair.target, [*TARGET, ""]),
    ]

    for side, model, lines in sides:
        processor = sentencepiece.SentencePieceProcessor()
        processor.load_from_serialized_proto(model)
        assert [side.pieces(ids) for ids in side.encode(lines)] == processor.encode(lines, out_type=str)
    assert tokeniser.decode(tokeniser.for_target.encode(TARGET)) == TARGET
    assert tokeniser.decode([[2, *tokeniser.for_target.encode(TARGET[:1])[0], 1, 0]]) == TARGET[:1]
    assert tokeniser.is_paired


def test_a_piece_that_the_list_lacks_is_unknown(tmp_path: Path) -> None:
    whole = load(make_pair(), tmp_path)
    piece = whole.pieces(whole.encode(["The dog"])[0])[0]

    ids = load(make_pair(without=piece), tmp_path).encode(["The dog"])[0]

    assert ids[0] == UNK
    assert UNK not in ids[1:]


def test_a_line_may_begin_with_the_language_to_translate_into(tmp_path: Path) -> None:
    tokeniser = load(make_pair(">>deu<<"), tmp_path)
    (plain,) = tokeniser.encode(["The dog"])
    language = tokeniser.ids([">>deu<<"])

    assert tokeniser.encode([">>deu<< The dog", ">>deu<<The dog"]) == [language + plain] * 2
    assert language[0] not in tokeniser.encode(["The >>deu<< dog"])[0]
    assert language[0] not in tokeniser.encode([">>fra<< The dog"])[0]


def test_prepared_pairs_are_cut_side_by_side(tmp_path: Path) -> None:
    pair = make_pair()
    tokeniser = load(pair, tmp_path)
    chunk = Chunk(("a", "b"), ("line", "line"), 1, "\n".join(SOURCE).encode(), "\n".join(TARGET).encode())

    encoded = encode_held_out(chunk, "NFC", tmp_path / "pair.model")

    expected = [token for ids in tokeniser.for_target.encode(TARGET) for token in (*ids, EOS)]
    assert np.array_equal(encoded.target.tokens, expected)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"format": "echelon paired pieces 1"}',
        b'{"format": "other", "pieces": [], "source": "", "target": ""}',
        b'{"format": "echelon paired pieces 1", "pieces": ["<pad>", "</s>", "<s>", "<unk>", "a", "a"], '
        b'"source": "", "target": ""}',
        b'{"format": "echelon paired pieces 1", "pieces": ["<pad>", "</s>", "<s>", "<unk>"], '
        b'"source": "AAAA", "target": "AAAA"}',
        b"{" + b'"a":{' * 100_000,
    ],
)
def test_a_damaged_pair_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pair.model"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"pair\.model"):
        Tokeniser.load(path)
