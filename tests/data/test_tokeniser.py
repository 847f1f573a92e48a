from __future__ import annotations

import gzip
import io
import random
import struct
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.data import tokeniser as module
from echelon.data.cleaning import SPACE_MARK, normalise
from echelon.data.tokeniser import (
    BOS,
    EOS,
    PAD,
    UNK,
    Tokeniser,
    WordCounts,
    count_words_of,
    train_tokeniser,
    without_rare_characters,
)
from echelon.data.training_text import TextBlock, count_blocks
from echelon.errors import DataError
from echelon.launch.pins import find_requirements

TEXT = [
    "Ein kleiner Hund läuft über die Straße.",
    "A small dog runs across the street, doesn't it?",
    "Zwei Männer sitzen 1999 auf einer Bank und essen Äpfel.",
    "Two men are sitting on a bench & eating apples (red ones).",
]


def trained(lines: list[str], vocabulary: int, folder: Path) -> Tokeniser:
    path = folder / "test.model"
    path.write_bytes(train_tokeniser(count_words_of(lines), vocabulary))
    return Tokeniser.load(path)


@pytest.fixture(scope="module")
def tokeniser(tmp_path_factory: pytest.TempPathFactory) -> Tokeniser:
    return trained(TEXT, 150, tmp_path_factory.mktemp("tokeniser"))


def plain(tokeniser: Tokeniser, lines: list[str]) -> list[list[int]]:
    return list(tokeniser._processor.encode(lines))


def captions(real_data: Path) -> list[str]:
    folder = real_data / "multi30k" / "raw"
    raw = b"".join(gzip.decompress((folder / f"train.{side}.gz").read_bytes()) for side in ("en", "de"))
    return [normalise(line, "NFC") for line in raw.decode().split("\n")[:-1]]


def test_known_text_survives_encoding_and_decoding(tokeniser: Tokeniser) -> None:
    assert tokeniser.size == 150
    assert tokeniser.decode(tokeniser.encode(TEXT)) == TEXT
    assert tokeniser.encode([]) == []
    assert tokeniser.decode([]) == []
    assert tokeniser.encode(["", "A", ""])[::2] == [[], []]


@settings(deadline=None)
@given(st.text(alphabet=sorted({*"".join(TEXT), " "})))
def test_any_text_of_known_characters_survives(tokeniser: Tokeniser, text: str) -> None:
    line = normalise(text, "NFC")
    assert tokeniser.decode(tokeniser.encode([line])) == [line]


def test_text_is_not_normalised_a_second_time(tmp_path: Path) -> None:
    lines = ["ﬁne ½ Ａ…", "x² ™"]
    kept = trained(lines, 64, tmp_path)
    assert kept.decode(kept.encode(lines)) == lines


@settings(deadline=None, max_examples=300)
@given(st.lists(st.text() | st.text(alphabet="Aa s.Hund<>/pad漢字"), max_size=5))
def test_looked_up_words_give_what_sentencepiece_gives(tokeniser: Tokeniser, texts: list[str]) -> None:
    lines = [normalise(text, "NFC") for text in texts]
    assert tokeniser.encode(lines) == plain(tokeniser, lines)
    in_a_row = [token for ids in plain(tokeniser, lines) for token in [*ids, EOS]]
    assert tokeniser.encode_in_a_row(lines).tolist() == in_a_row


def test_special_ids_are_fixed_and_cannot_be_typed(tokeniser: Tokeniser) -> None:
    assert (PAD, EOS, BOS, UNK) == (0, 1, 2, 3)
    typed = tokeniser.encode(["</s> <s> <pad>"])[0]
    assert not {PAD, EOS, BOS} & set(typed)
    assert UNK in tokeniser.encode(["漢"])[0]
    assert tokeniser.decode([[BOS, *tokeniser.encode(["dog"])[0], EOS, PAD, PAD]]) == ["dog"]


def test_memory_of_words_is_bounded(tokeniser: Tokeniser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_WORDS", 10)
    for start in range(0, 100, 5):
        lines = [f"word{start + i}" for i in range(5)]
        assert tokeniser.encode(lines) == plain(tokeniser, lines)
        assert len(tokeniser._tokens_of_words) <= 16


@pytest.mark.parametrize("lines", [TEXT[:1], ["a"], ["hello world"], ["a b c d e f g"] * 3, TEXT * 2])
@pytest.mark.parametrize("vocabulary", [64, 32768])
def test_small_corpus_gets_as_many_pieces_as_it_supports(
    lines: list[str], vocabulary: int, tmp_path: Path
) -> None:
    small = trained(lines, vocabulary, tmp_path)
    assert 5 <= small.size <= vocabulary
    assert small.decode(small.encode(lines)) == lines


def test_same_words_give_the_same_bytes_in_any_order() -> None:
    words = count_words_of(TEXT)
    backwards = dict(reversed(list(words.items())))
    assert train_tokeniser(words, 100) == train_tokeniser(backwards, 100)


def test_counted_words_give_the_pieces_that_the_text_gives(real_data: Path) -> None:
    lines = captions(real_data)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=4000,
        character_coverage=1.0, normalization_rule_name="identity", minloglevel=2,
        pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK,
    )  # fmt: skip
    from_text = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    from_words = sentencepiece.SentencePieceProcessor(
        model_proto=train_tokeniser(count_words_of(lines), 4000)
    )
    pieces = [[model.id_to_piece(i) for i in range(4000)] for model in (from_text, from_words)]
    assert pieces[0] == pieces[1]


def test_captions_survive_encoding_and_decoding(real_data: Path, tmp_path: Path) -> None:
    lines = captions(real_data)[::7]
    captioner = trained(lines, 2000, tmp_path)
    ids = captioner.encode(lines)
    assert ids == plain(captioner, lines)
    assert captioner.decode(ids) == lines


def test_model_made_elsewhere_is_encoded_as_sentencepiece_does(real_data: Path) -> None:
    common = Tokeniser.load(real_data / "wmt" / "m_common.model")
    raw = gzip.decompress((real_data / "wmt" / "newstest2014.de.gz").read_bytes()).decode()
    lines = [normalise(line, "NFC") for line in raw.split("\n")[:-1]]
    assert common.encode(lines) == plain(common, lines)


def test_model_whose_pieces_span_words_is_encoded_as_sentencepiece_does(tmp_path: Path) -> None:
    path = tmp_path / "spanning.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["of the people by the people for the people"] * 20), model_writer=file,
            model_type="bpe", vocab_size=40, split_by_whitespace=False, minloglevel=2,
            pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK,
        )  # fmt: skip
    spanning = Tokeniser.load(path)
    lines = ["for the people", "", "by the people of the people"]
    assert any("▁" in spanning._processor.id_to_piece(i)[1:] for i in range(spanning.size))
    assert spanning.encode(lines) == plain(spanning, lines)


def test_training_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    train_tokeniser(count_words_of(TEXT), 32768)
    assert capfd.readouterr() == ("", "")


def test_stray_characters_take_no_more_than_their_share() -> None:
    strays = {chr(0x4E00 + i) * 2 + "a": 1 for i in range(500)}
    kept = without_rare_characters({"aab": 100, **strays}, 64)
    assert kept["aab"] == 100
    assert len(set("".join(kept))) == 48
    processor = sentencepiece.SentencePieceProcessor(model_proto=train_tokeniser({"aab": 100, **strays}, 64))
    assert processor.get_piece_size() <= 64
    assert without_rare_characters(count_words_of(TEXT), 150) == count_words_of(TEXT)


def test_stray_characters_of_a_large_corpus_take_no_more_than_their_share_either() -> None:
    strays = {chr(0x4E00 + i): 1 for i in range(5000)}
    kept = without_rare_characters({"Straße": 10_000_000, **strays}, 32768)
    assert len(set("".join(kept))) == 1024


def test_characters_that_the_text_is_written_in_are_kept() -> None:
    written = {chr(0x4E00 + i): 1 + 3000 // (i + 1) for i in range(3000)}
    assert len(set("".join(without_rare_characters({"Hund": 1000, **written}, 8192)))) > 2990
    assert len(set("".join(without_rare_characters(written, 2048)))) == 1024, "at most half"


def test_words_of_english_and_german_are_counted_as_they_are(real_data: Path) -> None:
    lines = captions(real_data)
    assert count_words_of(lines) == Counter(word for line in lines for word in line.split())


def test_blocks_are_counted_as_lines_are(tmp_path: Path) -> None:
    lines = ["a small dog", "狗" * 40, "ü" * 999, "ü" * 1001, "x" * 1001, "我用Python写" * 10]
    text = "".join(f"{line}\t{line}\n" for line in lines).encode()
    (tmp_path / "text").write_bytes(text)
    counted = count_blocks([TextBlock(tmp_path / "text", 0, len(text), 0, len(lines))])
    assert counted == count_words_of([*lines, *lines])
    assert "ü" * 999 in counted


def han_lines(count: int, length: int, seed: int = 1) -> list[str]:
    """Sentences of Chinese characters, some far more frequent than others."""
    rng = random.Random(seed)
    characters, frequencies = [chr(0x4E00 + i) for i in range(120)], [1 / (i + 3) for i in range(120)]
    return ["".join(rng.choices(characters, frequencies, k=length)) for _ in range(count)]


def test_sentences_without_spaces_are_not_forgotten() -> None:
    lines = han_lines(2000, 30)
    counts = WordCounts(limit=3000)
    for start in range(0, len(lines), 100):
        counts.add(count_words_of([*lines[start : start + 100], "dog dog"]))
    assert len(counts.counts) <= 3000
    assert counts.counts["dog"] == 40
    kept = Counter("".join(word * count for word, count in counts.counts.items()))
    written = Counter("".join(lines))
    assert (written & kept).total() > 0.6 * written.total()


def test_cut_sentences_teach_no_false_beginnings_of_words(tmp_path: Path) -> None:
    lines = han_lines(500, 64)
    chinese = trained(lines, 800, tmp_path)
    whole = Tokeniser(sentencepiece.SentencePieceProcessor(model_proto=train_tokeniser(Counter(lines), 800)))
    cut_begin, whole_begin = (
        [piece for piece in tokeniser.pieces(range(800)) if piece.startswith(SPACE_MARK)]
        for tokeniser in (chinese, whole)
    )
    assert len(whole_begin) > 10
    assert len(cut_begin) < 1.5 * len(whole_begin)
    assert chinese.encode(lines[:50]) == plain(chinese, lines[:50])
    assert chinese.decode(chinese.encode(lines)) == lines


def test_words_are_counted_in_bounded_memory() -> None:
    counts = WordCounts(limit=3)
    counts.add({"a": 5, "b": 1})
    counts.add({"c": 2, "d": 1, "a": 1})
    assert counts.counts == {"a": 6, "c": 2}
    assert counts.most_frequent(1) == {"a": 6}
    assert count_words_of(["a b", "", "b " + "x" * 1001]) == Counter({"b": 2, "a": 1})


def test_text_without_words_is_the_users_error() -> None:
    with pytest.raises(DataError, match="no vocabulary can be learnt from 0 distinct words"):
        train_tokeniser({}, 64)


def with_more_pieces(model: bytes, count: int) -> bytes:
    """The model with so many pieces added: in a protocol buffer, what repeats may simply follow."""
    texts = [f"piece{number}".encode() for number in range(count)]
    pieces = [b"\x0a" + bytes([len(text)]) + text + b"\x15" + bytes(4) for text in texts]
    return model + b"".join(b"\x0a" + bytes([len(piece)]) + piece for piece in pieces)


def test_model_with_more_pieces_than_tokens_can_tell_apart_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.model"
    model = train_tokeniser(count_words_of(TEXT), 100)
    path.write_bytes(with_more_pieces(model, 65_536 - 100))
    assert Tokeniser.load(path).size == 65_536
    path.write_bytes(with_more_pieces(model, 65_537 - 100))
    with pytest.raises(DataError, match=r"large\.model has 65,537 pieces; .* at most 65,536"):
        Tokeniser.load(path)


def test_file_that_is_no_tokeniser_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"gone\.model cannot be read"):
        Tokeniser.load(tmp_path / "gone.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(DataError, match=r"bad\.model is not a SentencePiece model"):
        Tokeniser.load(tmp_path / "bad.model")
    other = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=other, vocab_size=100, model_type="bpe", minloglevel=2
    )
    (tmp_path / "other.model").write_bytes(other.getvalue())
    with pytest.raises(DataError, match=r"other\.model has pad, eos, bos, unk at \(-1, 2, 1, 0\)"):
        Tokeniser.load(tmp_path / "other.model")
    assert capfd.readouterr() == ("", "")


def field(number: int, content: bytes) -> bytes:
    """A field of bytes as a SentencePiece model has it; what stands behind a whole model is read as more of it."""
    size, digits = len(content), bytearray()
    while size > 127:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + content


PIECE, TRAINER, NORMALISER = 1, 2, 3
TEXT_OF_PIECE, TRIE = 1, 2
OF_UNIGRAMS = field(TRAINER, b"\x18\x01")


@pytest.mark.parametrize(
    "more",
    [
        # SentencePiece 0.2.1 recurses over the first, and follows the second out of its memory.
        OF_UNIGRAMS + field(PIECE, field(TEXT_OF_PIECE, b"a" * 2**20)),
        field(NORMALISER, field(TRIE, struct.pack("<I", 1024) + b"\xff" * 1024 + b"a\0")),
        field(PIECE, field(TEXT_OF_PIECE, b"\xff\xfe")),
    ],
    ids=["a piece of a megabyte", "a trie that leads out of itself", "a piece that is not UTF-8"],
)
def test_a_model_that_is_made_to_crash_its_reader_is_refused(tmp_path: Path, more: bytes) -> None:
    model = train_tokeniser({"hund": 5, "katze": 3}, 32)
    (tmp_path / "hostile.model").write_bytes(model + more)
    with pytest.raises(DataError, match=r"hostile\.model (is not a SentencePiece model|has pieces that are)"):
        Tokeniser.load(tmp_path / "hostile.model")


def test_libraries_that_such_a_model_crashes_are_not_installed() -> None:
    (wanted,) = (each for each in find_requirements() if each.name == "sentencepiece")
    assert not wanted.specifier.contains("0.2.1")
