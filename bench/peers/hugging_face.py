"""Hugging Face's Marian, in float32 with torch's fused attention as it comes; `--bf16` is what an expert changes.

Batches of sentences of like length are what its users get with `group_by_length`. Several processes, as torchrun would
start them, take every so-manieth sentence of a batch each.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from bench.peers.on_a_lead import (
    BOS,
    DROPOUT,
    EOS,
    LEARNING_RATE,
    PAD,
    SMOOTHING,
    Batch,
    Given,
    padded,
    train_as_told,
    update,
)
from torch.nn.parallel import DistributedDataParallel
from transformers import MarianConfig, MarianMTModel


def build_model(sizes: dict[str, int], attention: str) -> torch.nn.Module:
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=sizes["vocabulary"],
        d_model=sizes["d_model"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        encoder_ffn_dim=sizes["d_ff"],
        decoder_ffn_dim=sizes["d_ff"],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation=attention,
    )
    model: torch.nn.Module = MarianMTModel(config).train()
    return model


def main() -> None:
    given = Given.from_command_line()
    model = build_model(given.sizes, "eager" if given.is_eager else "sdpa")
    rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if workers > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def train_step(batch: Batch) -> int:
        """One update as Trainer makes it: label smoothing, clipping, AdamW."""
        mine = {side: sentences[rank::workers] for side, sentences in batch.items()}
        source, target = padded(mine["source"]), padded(mine["target"])
        shifted = padded([[BOS, *sentence[:-1]] for sentence in mine["target"]])
        with given.autocast():
            logits = model(
                input_ids=source,
                attention_mask=source != PAD,
                decoder_input_ids=shifted,
                use_cache=False,
            ).logits
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
        )
        update(model, optimiser, loss)
        return sum(map(len, batch["target"]))

    train_as_told(given.batches, train_step)


if __name__ == "__main__":
    main()
