"""A Transformer as a CTranslate2 model. Every weight is copied: CTranslate2 quantises what it is given in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from echelon.extras import require_extra
from echelon.models.alignment import alignment_layer
from echelon.models.transformer import (
    CrossAttention,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Transformer,
    sinusoids,
)

Quantisation = Literal["float32", "int8"]
POSITIONS = 4096
"""Longest sequence, in tokens, that the model can be shown."""


def write_ctranslate2(
    model: Transformer, pieces: list[str], folder: Path, quantisation: Quantisation
) -> None:
    """Write the model and its vocabulary into a new folder; the model itself is not changed."""
    spec = _build_spec(model, pieces)
    spec.validate()
    spec.optimize(quantization=None if quantisation == "float32" else quantisation)
    folder.mkdir()
    spec.save(str(folder))


def _build_spec(model: Transformer, pieces: list[str]) -> Any:
    specs = require_extra("ctranslate2.specs", "export")
    shape = model.shape
    spec = specs.TransformerSpec.from_config(
        num_layers=(shape.encoder_layers, shape.decoder_layers),
        num_heads=shape.heads,
        pre_norm=shape.norm == "pre",
        activation=getattr(specs.Activation, shape.activation.upper()),
        alignment_layer=alignment_layer(shape.decoder_layers),
        alignment_heads=shape.heads,
    )
    positions = _copy(sinusoids(torch.arange(POSITIONS), shape.d_model))
    _fill_stack(spec.encoder, model.encoder, positions)
    _fill_stack(spec.decoder, model.decoder, positions)
    spec.encoder.embeddings[0].weight = _copy(model.embeddings.source_VD)
    spec.decoder.embeddings.weight = _copy(model.embeddings.target_VD)
    spec.decoder.projection.weight = _copy(model.embeddings.output_VD)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _copy(model.output_bias)
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.config.add_source_bos = spec.config.add_source_eos = False
    return spec


def _fill_stack(spec: Any, stack: Encoder | Decoder, positions: NDArray[np.float32]) -> None:
    spec.position_encodings.encodings = positions
    if isinstance(stack.norm, nn.LayerNorm):
        _fill_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        _fill_self_attention(layer_spec.self_attention, layer.attention)
        _fill_norm(layer_spec.self_attention.layer_norm, layer.attention_norm)
        if isinstance(layer, DecoderLayer):
            _fill_cross_attention(layer_spec.attention, layer.cross_attention)
            _fill_norm(layer_spec.attention.layer_norm, layer.cross_attention_norm)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward)
        _fill_norm(layer_spec.ffn.layer_norm, layer.feed_forward_norm)


def _fill_self_attention(spec: Any, attention: SelfAttention) -> None:
    for linear_spec, linear in zip(spec.linear, (attention.qkv, attention.output), strict=True):
        _fill_linear(linear_spec, linear)


def _fill_cross_attention(spec: Any, attention: CrossAttention) -> None:
    for linear_spec, linear in zip(
        spec.linear, (attention.query, attention.kv, attention.output), strict=True
    ):
        _fill_linear(linear_spec, linear)


def _fill_feed_forward(spec: Any, block: FeedForward) -> None:
    _fill_linear(spec.linear_0, block.inner)
    _fill_linear(spec.linear_1, block.outer)


def _fill_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _copy(linear.weight)
    if linear.bias is not None:
        spec.bias = _copy(linear.bias)


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _copy(norm.weight), _copy(norm.bias)


def _copy(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().cpu().numpy().copy()
