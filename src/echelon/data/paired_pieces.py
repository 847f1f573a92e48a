"""Two SentencePiece models, one for each language, whose pieces have their ids from one list: what Marian models have.

The file is JSON: {"format": ..., "pieces": [...], "source": base64, "target": base64}.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sentencepiece
from pydantic import BaseModel, ConfigDict, ValidationError

SPECIAL_PIECES = ("<pad>", "</s>", "<s>", "<unk>")
"""With the ids that the tokeniser has for them."""
FORMAT = "echelon paired pieces 1"
_UNK = SPECIAL_PIECES.index("<unk>")
_LANGUAGE = re.compile(r">>[^<>]+<<")


class _ModelsOnDisk(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    pieces: list[str]
    source: str
    target: str


@dataclass(frozen=True)
class PairedModels:
    """What the file holds."""

    pieces: tuple[str, ...]
    """By id; the special ones first."""
    source: bytes
    """A SentencePiece model, as its library serialises it; and that of the target."""
    target: bytes

    def to_json(self) -> bytes:
        source, target = (base64.b64encode(model).decode() for model in (self.source, self.target))
        content = {"format": FORMAT, "pieces": self.pieces, "source": source, "target": target}
        return json.dumps(content, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> PairedModels:
        """ValueError if it is anything else, or its list of pieces is not one."""
        try:
            file = _ModelsOnDisk.model_validate_json(text)
            models = (
                base64.b64decode(file.source, validate=True),
                base64.b64decode(file.target, validate=True),
            )
        except (ValidationError, RecursionError, binascii.Error) as error:
            raise ValueError(f"it does not hold two SentencePiece models: {error}") from None
        if file.format != FORMAT or tuple(file.pieces[: len(SPECIAL_PIECES)]) != SPECIAL_PIECES:
            raise ValueError("it has another format")
        if len(set(file.pieces)) != len(file.pieces):
            raise ValueError("a piece is there twice")
        return cls(tuple(file.pieces), *models)


class PiecesOfSide:
    """One language's model with the common ids; has the methods of a SentencePieceProcessor that we use.

    RuntimeError, as SentencePiece's own, if `model` is none. A text may begin with the language to translate into, such
    as ">>fra<<", if that is one of the pieces.
    """

    def __init__(self, pieces: Sequence[str], model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.load_from_serialized_proto(model)
        self._pieces = pieces
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self.has_languages = any(_LANGUAGE.fullmatch(piece) for piece in pieces)

    def get_piece_size(self) -> int:
        return len(self._pieces)

    def id_to_piece(self, index: int) -> str:
        return self._pieces[index]

    def piece_to_id(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.get(piece, _UNK) for piece in pieces]

    def encode(self, text: str | list[str], num_threads: int = 1) -> Any:
        """The ids of a text, or of each of several."""
        if isinstance(text, str):
            return self.encode([text])[0]
        languages = [self._language(line) for line in text]
        rest = [line[len(language) :] for line, language in zip(text, languages, strict=True)]
        cut = self._processor.encode(rest, out_type=str, num_threads=num_threads)
        return [
            self.piece_to_id([language, *pieces] if language else pieces)
            for language, pieces in zip(languages, cut, strict=True)
        ]

    def decode(self, sentences: list[list[int]], num_threads: int = 1) -> list[str]:
        """The text of each sequence of ids; those of pad, beginning and end are not written."""
        kept = [[self._pieces[index] for index in ids if index >= _UNK] for ids in sentences]
        return [str(self._processor.decode_pieces(pieces)).strip() if pieces else "" for pieces in kept]

    def _language(self, line: str) -> str:
        found = _LANGUAGE.match(line) if self.has_languages else None
        return found[0] if found is not None and found[0] in self._ids else ""
