"""The decoder one target token at a time, with what it needs of earlier steps kept.

B  sentences    K  hypotheses of a sentence    D  d_model    H  heads    E  width of a head
V  vocabulary   S  longest source              T  room for target tokens

All hypotheses have the same length, so attention over the target needs no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.models.attention import attend, join_heads, split_heads
from echelon.models.transformer import (
    CrossAttention,
    DecoderLayer,
    Memory,
    SelfAttention,
    Transformer,
    sinusoids,
)

ROOM = 16
"""Target tokens by which the cache grows."""


@dataclass(frozen=True)
class SourceCache:
    """Keys and values of the source, once per sentence and layer, whatever the number of hypotheses."""

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values [B, H, S, E] of each layer."""
    bias_B11S: Tensor | None


@dataclass(frozen=True)
class State:
    """What is kept between steps. A step writes into `target` where earlier ones have not."""

    source: SourceCache
    target: Tensor
    """Keys and values of the target tokens so far: [layer, 2, B, K, H, T, E]."""
    length: int
    """Target tokens so far."""


@torch.no_grad()
def start(model: Transformer, memory: Memory, hypotheses: int) -> State:
    """The state before the first target token, with room for `hypotheses` per sentence."""
    layers = []
    for layer in decoder_layers(model):
        kv_ND = layer.cross_attention.kv(memory.hidden_ND)
        k_BHSE, v_BHSE = split_heads(memory.source.pad(kv_ND), 2, model.shape.heads)
        layers.append((k_BHSE, v_BHSE))
    sentences, heads, _, width = layers[0][0].shape
    target = layers[0][0].new_empty(len(layers), 2, sentences, hypotheses, heads, 0, width)
    return State(SourceCache(layers, memory.source.padding_bias_B11L), target, 0)


@torch.no_grad()
def step(model: Transformer, state: State, tokens_BK: Tensor) -> tuple[Tensor, State]:
    """Read one more token of each hypothesis: the logits [B, K, V] of what follows, and the next state."""
    state = _with_room(state)
    place_1 = torch.tensor([state.length], device=tokens_BK.device)
    x_BKD = model.embed(tokens_BK, model.embeddings.target_VD, sinusoids(place_1, model.shape.d_model))
    for index in range(len(model.decoder.layers)):
        x_BKD = _step_layer(model, state, index, x_BKD)
    logits_BKV = model.logits(model.decoder.norm(x_BKD))
    return logits_BKV, replace(state, length=state.length + 1)


def select(state: State, sentences_C: Tensor | None, beams_CK: Tensor) -> State:
    """The state of other hypotheses: of each sentence kept (None: all) those given, in that order."""
    hypotheses = state.target.shape[3]
    if sentences_C is None and hypotheses == 1:
        return state
    kept_C = torch.arange(len(beams_CK), device=beams_CK.device) if sentences_C is None else sentences_C
    rows = (kept_C[:, None] * hypotheses + beams_CK).flatten()
    target = state.target.flatten(2, 3).index_select(2, rows)
    source = state.source if sentences_C is None else _select_sentences(state.source, sentences_C)
    return State(source, target.view(*state.target.shape[:2], -1, *state.target.shape[3:]), state.length)


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    return cast(list[DecoderLayer], list(model.decoder.layers))


def _select_sentences(source: SourceCache, sentences_C: Tensor) -> SourceCache:
    layers = [(k[sentences_C], v[sentences_C]) for k, v in source.layers]
    return SourceCache(layers, None if source.bias_B11S is None else source.bias_B11S[sentences_C])


def _with_room(state: State) -> State:
    """The state with a place for one more target token."""
    if state.length < state.target.shape[5]:
        return state
    return replace(state, target=F.pad(state.target, (0, 0, 0, ROOM)))


def _step_layer(model: Transformer, state: State, index: int, x_BKD: Tensor) -> Tensor:
    layer = decoder_layers(model)[index]

    def attend_target(y_BKD: Tensor) -> Tensor:
        return _attend_target(layer.attention, y_BKD, state.target[index], state.length)

    def attend_source(y_BKD: Tensor) -> Tensor:
        keys_values = state.source.layers[index]
        return _attend_source(layer.cross_attention, y_BKD, keys_values, state.source.bias_B11S)

    return layer.combine(x_BKD, attend_target, attend_source)


def _attend_target(attention: SelfAttention, x_BKD: Tensor, cache_2BKHTE: Tensor, length: int) -> Tensor:
    """Self-attention of the newest token, whose key and value are written to the cache."""
    q_BKHE, k_BKHE, v_BKHE = attention.qkv(x_BKD).view(*x_BKD.shape[:2], 3, attention.heads, -1).unbind(2)
    keys, values = cache_2BKHTE
    keys[..., length, :] = k_BKHE
    values[..., length, :] = v_BKHE
    mixed_RH1E = attend(
        q_BKHE.flatten(0, 1)[:, :, None],
        keys[..., : length + 1, :].flatten(0, 1),
        values[..., : length + 1, :].flatten(0, 1),
    )
    out_BKD: Tensor = attention.output(mixed_RH1E.reshape(x_BKD.shape))
    return out_BKD


def _attend_source(
    attention: CrossAttention, x_BKD: Tensor, keys_values: tuple[Tensor, Tensor], bias_B11S: Tensor | None
) -> Tensor:
    """Attention to the source, the hypotheses of a sentence as so many queries to the same keys."""
    (q_BHKE,) = split_heads(attention.query(x_BKD), 1, attention.heads)
    mixed_BHKE = attend(q_BHKE, *keys_values, bias_B11S)
    out_BKD: Tensor = attention.output(join_heads(mixed_BHKE))
    return out_BKD
