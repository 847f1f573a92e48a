"""Hugging Face's Marian, trained in an environment of its own: reads numbers of steps, answers with what they took.

Knows nothing of Echelon: it gets the model's sizes and batches of token ids in files, and pads each batch as its
sentences need. Batches hold sentences of like length, which is what its users get with `group_by_length`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import MarianConfig, MarianMTModel

PAD, EOS, BOS = 0, 1, 2


def build_model(sizes: dict[str, int], dropout: float) -> torch.nn.Module:
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
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )
    model: torch.nn.Module = MarianMTModel(config).train()
    return model


def padded(sentences: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, sentences))
    return torch.tensor([sentence + [PAD] * (longest - len(sentence)) for sentence in sentences])


def train_step(
    model: torch.nn.Module, optimiser: torch.optim.Optimizer, batch: dict[str, list[list[int]]], is_bf16: bool
) -> int:
    """One update as Trainer makes it: label smoothing, clipping, AdamW; returns the target tokens."""
    source, target = padded(batch["source"]), padded(batch["target"])
    shifted = padded([[BOS, *sentence[:-1]] for sentence in batch["target"]])
    with torch.autocast("cpu", dtype=torch.bfloat16) if is_bf16 else nullcontext():
        logits = model(
            input_ids=source,
            attention_mask=source != PAD,
            decoder_input_ids=shifted,
            use_cache=False,
        ).logits
    loss = F.cross_entropy(
        logits.float().flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return int((target != PAD).sum())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", type=Path)
    parser.add_argument("batches", type=Path)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    model = build_model(json.loads(options.sizes.read_text()), dropout=0.1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [json.loads(line) for line in options.batches.read_text().splitlines()]
    done = 0
    for line in sys.stdin:
        started, cpu_started, tokens = time.perf_counter(), time.process_time(), 0
        for _ in range(int(line)):
            tokens += train_step(model, optimiser, batches[done % len(batches)], options.bf16)
            done += 1
        answer = {
            "tokens": tokens,
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu_started,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
