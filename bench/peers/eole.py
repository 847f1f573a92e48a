"""Eole's Transformer with its own loss and optimiser; its decoder knows pre-norm only, so all of it is pre-norm."""

from __future__ import annotations

from types import SimpleNamespace
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
from eole.config.models import TransformerModelConfig
from eole.config.training import TrainingConfig
from eole.models.model import EncoderDecoderModel
from eole.utils.loss import LossCompute
from eole.utils.optimizers import Optimizer


def settings(sizes: dict[str, int]) -> SimpleNamespace:
    """The parts of its configuration that model, loss and optimiser read."""
    model = TransformerModelConfig(
        hidden_size=sizes["d_model"],
        heads=sizes["heads"],
        transformer_ff=sizes["d_ff"],
        encoder={"layers": sizes["encoder_layers"]},
        decoder={"layers": sizes["decoder_layers"]},
        embeddings={"word_vec_size": sizes["d_model"], "position_encoding_type": "SinusoidalInterleaved"},
        share_embeddings=True,
        share_decoder_embeddings=True,
        generator_bias=False,
        add_qkvbias=True,
        add_final_linear_bias=True,
        add_ffnbias=True,
    )
    training = TrainingConfig(
        dropout=[DROPOUT],
        attention_dropout=[DROPOUT],
        label_smoothing=SMOOTHING,
        optim="adam",
        learning_rate=LEARNING_RATE,
        max_grad_norm=CLIP_NORM,
        param_init_method="xavier_uniform",
        compute_dtype="fp32",
    )
    return SimpleNamespace(model=model, training=training)


def build_vocabularies(pieces: int) -> dict[str, Any]:
    specials = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    shared = pyonmttok.build_vocab_from_tokens(
        [f"piece {number}" for number in range(pieces - len(specials))],
        special_tokens=list(specials.values()),  # numbered as ours
    )
    return {"specials": specials, "src": shared, "tgt": shared}


def main() -> None:
    given = Given.from_command_line()
    torch.manual_seed(1)
    chosen, vocabularies = settings(given.sizes), build_vocabularies(given.sizes["vocabulary"])
    model = EncoderDecoderModel.for_training(chosen.model, vocabularies, chosen.training, device_id=-1)
    loss_of, optimiser = (
        LossCompute.from_config(chosen, model, vocabularies),
        Optimizer.from_config(model, chosen),
    )
    model.train()

    def train_step(batch: Batch) -> int:
        source, target = padded(batch["source"]), padded([[BOS, *sentence] for sentence in batch["target"]])
        lengths, tokens = (source != PAD).sum(1), int((target[:, 1:] != PAD).sum())
        optimiser.zero_grad(set_to_none=True)
        output, attention, _ = model(source, target, lengths)
        corpora = {"cid": [None] * len(source), "cid_line_number": [0] * len(source)}
        loss, *_ = loss_of({"src": source, "srclen": lengths, "tgt": target, **corpora}, output, attention)
        optimiser.backward(loss / tokens)
        optimiser.step()
        return tokens

    train_as_told(given.batches, train_step)


if __name__ == "__main__":
    main()
