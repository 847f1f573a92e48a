"""Sockeye's Transformer with its own loss, traced as its trainer traces it."""

from __future__ import annotations

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
from sockeye import constants
from sockeye.data_io import (
    DataConfig,
    create_batch_from_parallel_sample,
    create_target_and_shifted_label_sequences,
)
from sockeye.encoder import EmbeddingConfig
from sockeye.loss import CrossEntropyLoss
from sockeye.model import ModelConfig, SockeyeModel, initialize_parameters
from sockeye.transformer import TransformerConfig

RENUMBERED = {UNK: constants.UNK_ID, PAD: constants.PAD_ID, BOS: constants.BOS_ID, EOS: constants.EOS_ID}
LONGEST = 130
"""Tokens of a sentence, with those of its begin and end."""


def build_model(sizes: dict[str, int]) -> Any:
    torch.manual_seed(1)

    def stack(name: str) -> TransformerConfig:
        return TransformerConfig(
            model_size=sizes["d_model"],
            attention_heads=sizes["heads"],
            feed_forward_num_hidden=sizes["d_ff"],
            act_type=constants.RELU,
            num_layers=sizes[f"{name}_layers"],
            dropout_attention=DROPOUT,
            dropout_act=DROPOUT,
            dropout_prepost=DROPOUT,
            positional_embedding_type=constants.FIXED_POSITIONAL_EMBEDDING,
            preprocess_sequence="",
            postprocess_sequence="drn",  # dropout, residual, norm: post-norm
            max_seq_len_source=LONGEST,
            max_seq_len_target=LONGEST,
            depth_key_value=sizes["d_model"],
        )

    # Encoder and decoder drop what they are given; its embeddings would drop once more.
    embedding = EmbeddingConfig(vocab_size=sizes["vocabulary"], num_embed=sizes["d_model"], dropout=0.0)
    config = ModelConfig(
        config_data=DataConfig(
            data_statistics=None,
            max_seq_len_source=LONGEST,
            max_seq_len_target=LONGEST,
            num_source_factors=1,
            num_target_factors=1,
        ),
        vocab_source_size=sizes["vocabulary"],
        vocab_target_size=sizes["vocabulary"],
        config_embed_source=embedding,
        config_embed_target=embedding,
        config_encoder=stack("encoder"),
        config_decoder=stack("decoder"),
        weight_tying_type=constants.WEIGHT_TYING_SRC_TRG_SOFTMAX,
    )
    return SockeyeModel(config).apply(initialize_parameters).train()


def as_its_own(batch: Batch) -> Any:
    """Padded, shifted and with lengths, by what its batcher uses."""
    source = padded(batch["source"], constants.PAD_ID).unsqueeze(2)
    both = padded([[constants.BOS_ID, *sentence] for sentence in batch["target"]], constants.PAD_ID)
    target, labels = create_target_and_shifted_label_sequences(both.unsqueeze(2))
    return create_batch_from_parallel_sample(source, target, labels)


def main() -> None:
    given = Given.from_command_line()
    batches = [renumbered(batch, RENUMBERED) for batch in given.batches]
    model, loss_of = build_model(given.sizes), CrossEntropyLoss(label_smoothing=SMOOTHING)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    first = as_its_own(batches[0])
    traced = torch.jit.trace(  # type: ignore[no-untyped-call]
        model, (first.source, first.source_length, first.target, first.target_length), strict=False
    )

    def train_step(batch: Batch) -> int:
        its = as_its_own(batch)
        outputs = traced(its.source, its.source_length, its.target, its.target_length)
        loss, _ = loss_of(outputs, its.labels)
        update(model, optimiser, loss)
        return int((its.labels[constants.TARGET_LABEL_NAME] != constants.PAD_ID).sum())

    train_as_told(batches, train_step)


if __name__ == "__main__":
    main()
