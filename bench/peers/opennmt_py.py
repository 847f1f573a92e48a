"""OpenNMT-py's Transformer with its own loss and optimiser; it knows pre-norm only."""

from __future__ import annotations

from typing import Any

import pyonmttok
import torch
from bench.peers.on_a_lead import (
    BOS,
    CLIP_NORM,
    DROPOUT,
    LEARNING_RATE,
    PAD,
    SMOOTHING,
    Batch,
    Given,
    padded,
    train_as_told,
)
from onmt.constants import DefaultTokens
from onmt.model_builder import build_model
from onmt.opts import train_opts
from onmt.utils.loss import LossCompute
from onmt.utils.optimizers import Optimizer
from onmt.utils.parse import ArgumentParser


def settings(sizes: dict[str, int]) -> Any:
    """Its own options, as read from a command line."""
    chosen = {
        "data": "{}",
        "src_vocab": "unread",
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "enc_layers": sizes["encoder_layers"],
        "dec_layers": sizes["decoder_layers"],
        "hidden_size": sizes["d_model"],
        "word_vec_size": sizes["d_model"],
        "heads": sizes["heads"],
        "transformer_ff": sizes["d_ff"],
        "dropout": DROPOUT,
        "attention_dropout": DROPOUT,
        "label_smoothing": SMOOTHING,
        "optim": "adam",
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": CLIP_NORM,
        "param_init": 0,
    }
    flags = ("position_encoding", "share_vocab", "share_embeddings", "share_decoder_embeddings")
    more_flags = ("add_qkvbias", "add_ffnbias", "param_init_glorot")
    parser = ArgumentParser()
    train_opts(parser)
    words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    found = parser.parse_args([*words, *(f"--{flag}" for flag in (*flags, *more_flags))])
    parser.update_model_opts(found)
    parser.validate_model_opts(found)
    return found


def build_vocabulary(pieces: int) -> Any:
    specials = [
        DefaultTokens.PAD,
        DefaultTokens.EOS,
        DefaultTokens.BOS,
        DefaultTokens.UNK,
    ]  # numbered as ours
    names = [f"piece {number}" for number in range(pieces - len(specials))]
    return pyonmttok.build_vocab_from_tokens(names, special_tokens=specials)


def main() -> None:
    given = Given.from_command_line()
    torch.manual_seed(1)
    chosen, vocabulary = settings(given.sizes), build_vocabulary(given.sizes["vocabulary"])
    model = build_model(chosen, chosen, {"src": vocabulary, "tgt": vocabulary}, None, -1)
    loss_of, optimiser = LossCompute.from_opts(chosen, model, vocabulary), Optimizer.from_opt(model, chosen)
    model.train()

    def train_step(batch: Batch) -> int:
        source, target = padded(batch["source"]), padded([[BOS, *sentence] for sentence in batch["target"]])
        lengths, tokens = (source != PAD).sum(1), int((target[:, 1:] != PAD).sum())
        its = {"src": source.unsqueeze(2), "srclen": lengths, "tgt": target.unsqueeze(2)}
        optimiser.zero_grad(set_to_none=True)
        output, attention = model(its["src"], its["tgt"], lengths, bptt=False, with_align=False)
        loss, _ = loss_of(its, output, attention)
        optimiser.backward(loss / tokens)
        optimiser.step()
        return tokens

    train_as_told(given.batches, train_step)


if __name__ == "__main__":
    main()
