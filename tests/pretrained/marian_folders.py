"""Marian models of transformers with random weights, as folders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from echelon.data.tokeniser import BOS, EOS, UNK
from echelon.pretrained.marian import their_vocabulary
from tests.data.test_paired_pieces import make_pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # transformers' own
    transformers = pytest.importorskip("transformers")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "all embeddings tied, swish": {"activation_function": "swish"},
    "source apart, relu": {"activation_function": "relu", "share_encoder_decoder_embeddings": False},
    "nothing tied, gelu": {
        "activation_function": "gelu",
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    },
    "output apart, swish": {"activation_function": "swish", "tie_word_embeddings": False},
}
PAIR = make_pair()
SIZE = len(PAIR.pieces) - 1
"""Their vocabulary lacks a row for padding."""


ORDER = [EOS, UNK, *range(4, SIZE + 1), BOS]
"""Our id of each of theirs."""


def make_marian(folder: Path, **settings: Any) -> Any:
    """Write a small random model, with a vocabulary, and return it."""
    torch.manual_seed(len(str(settings)))
    config = transformers.MarianConfig(
        vocab_size=SIZE,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=SIZE - 1,
        decoder_start_token_id=SIZE - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
        scale_embedding=True,
        init_std=0.2,
        dropout=0.0,
        **settings,
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms, which begin as zeros and ones
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
    save(model, folder)
    return model


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(their_vocabulary(PAIR.pieces, ORDER))
    (folder / "source.spm").write_bytes(PAIR.source)
    (folder / "target.spm").write_bytes(PAIR.target)
