from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from echelon.data.tokeniser import count_words_of, train_tokeniser
from tests.conftest import write_toy_corpus
from tests.migrate.openseq2seq.configs import TRANSFORMER


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with its text cut into pieces, as OpenSeq2Seq's users have it."""
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    for name, lines, seed in (("train", 300, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_toy_corpus(tmp_path, name, lines, seed)
    text = [(tmp_path / f"train.{side}").read_text() for side in ("en", "de")]
    model = tmp_path / "common.model"
    model.write_bytes(train_tokeniser(count_words_of("".join(text).split("\n")), 120))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for name in ("train", "valid", "test"):
        for side in ("en", "de"):
            sentences = (tmp_path / f"{name}.{side}").read_text().split("\n")[:-1]
            cut = [" ".join(processor.encode(sentence, out_type=str)) for sentence in sentences]
            (tmp_path / f"{name}.{side}.tok").write_text("".join(f"{line}\n" for line in cut))
    path = tmp_path / "transformer-small.py"
    path.write_text(TRANSFORMER.format(data=tmp_path))
    return path
