"""JoeyNMT's Transformer with its own loss, trained as its trainer does: an update a batch, normalised by tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from bench.peers.on_a_lead import (
    BOS,
    DROPOUT,
    EOS,
    LEARNING_RATE,
    PAD,
    SMOOTHING,
    UNK,
    Batch,
    Given,
    padded,
    renumbered,
    train_as_told,
    update,
)
from joeynmt.model import build_model as build_joey_model
from joeynmt.vocabulary import Vocabulary

SPECIALS = SimpleNamespace(
    unk_token="<unk>",
    pad_token="<pad>",
    bos_token="<s>",
    eos_token="</s>",
    sep_token=None,
    lang_tags=[],
    unk_id=0,
    pad_id=1,
    bos_id=2,
    eos_id=3,
)
"""JoeyNMT wants them in this order."""
RENUMBERED = {UNK: SPECIALS.unk_id, PAD: SPECIALS.pad_id, BOS: SPECIALS.bos_id, EOS: SPECIALS.eos_id}


def build_model(sizes: dict[str, int]) -> Any:
    torch.manual_seed(1)
    pieces = [f"piece {number}" for number in range(sizes["vocabulary"] - len(RENUMBERED))]
    vocabulary = Vocabulary(pieces, SPECIALS)

    def stack(name: str) -> dict[str, Any]:
        return {
            "type": "transformer",
            "num_layers": sizes[f"{name}_layers"],
            "num_heads": sizes["heads"],
            "hidden_size": sizes["d_model"],
            "ff_size": sizes["d_ff"],
            "dropout": DROPOUT,
            "layer_norm": "post",
            "embeddings": {"embedding_dim": sizes["d_model"], "scale": True, "dropout": DROPOUT},
        }

    settings = {
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": stack("encoder"),
        "decoder": stack("decoder"),
    }
    model = build_joey_model(settings, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", SMOOTHING)
    return model.train()


def main() -> None:
    given = Given.from_command_line()
    model, pad = build_model(given.sizes), SPECIALS.pad_id
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def train_step(batch: Batch) -> int:
        source, target = padded(batch["source"], pad), padded(batch["target"], pad)
        shifted = padded([[SPECIALS.bos_id, *sentence[:-1]] for sentence in batch["target"]], pad)
        tokens = int((target != pad).sum())
        with given.autocast():
            loss, *_ = model(
                return_type="loss",
                src=source,
                src_length=(source != pad).sum(1),
                src_mask=(source != pad).unsqueeze(1),
                trg_input=shifted,
                trg=target,
                trg_mask=(target != pad).unsqueeze(1),
            )
        update(model, optimiser, loss / tokens)
        return tokens

    train_as_told([renumbered(batch, RENUMBERED) for batch in given.batches], train_step)


if __name__ == "__main__":
    main()
