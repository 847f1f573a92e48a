"""The decoder one target token at a time, with what it needs of earlier steps kept.

B  sentences    K  hypotheses of a sentence    D  d_model    H  heads    E  width of a head
V  vocabulary   S  longest source              T  room for target tokens

Keys and values stay where they were written, K of them a step, and are never moved from hypothesis to hypothesis: that
would copy the whole cache at every step. Each hypothesis looks at all its sentence has, the others' hidden by a bias;
when hypotheses are chosen, only the bias changes place. The products over K times the keys cost next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
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
"""Target tokens the cache begins with; it doubles when it is full."""


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
    """Keys and values of the target tokens so far: [layer, 2, B, H, T, K, E]."""
    bias_BKTK: Tensor
    """0 if a hypothesis may look: at its own past; -inf elsewhere. What is not written yet is set when it is."""
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
    target = layers[0][0].new_empty(len(layers), 2, sentences, heads, ROOM, hypotheses, width)
    bias_BKTK = torch.empty(sentences, hypotheses, ROOM, hypotheses, device=target.device)
    return State(SourceCache(layers, memory.source.padding_bias_B11L), target, bias_BKTK, 0)


@torch.no_grad()
def step(model: Transformer, state: State, tokens_BK: Tensor) -> tuple[Tensor, State]:
    """Read one more token of each hypothesis: the logits [B, K, V] of what follows, and the next state."""
    state = _with_room(state)
    hypotheses = tokens_BK.shape[1]
    state.bias_BKTK[:, :, state.length] = torch.full((hypotheses, hypotheses), -inf).fill_diagonal_(0)
    place_1 = torch.tensor([state.length], device=tokens_BK.device)
    x_BKD = model.embed(tokens_BK, model.embeddings.target_VD, sinusoids(place_1, model.shape.d_model))
    for index in range(len(model.decoder.layers)):
        x_BKD = _step_layer(model, state, index, x_BKD)
    logits_BKV = model.logits(model.decoder.norm(x_BKD))
    return logits_BKV, replace(state, length=state.length + 1)


def select(state: State, sentences_C: Tensor | None, beams_CK: Tensor) -> State:
    """The state of other hypotheses: of each sentence kept (None: all) those given, in that order."""
    bias_CKTK = state.bias_BKTK if sentences_C is None else state.bias_BKTK[sentences_C]
    rows_C1 = torch.arange(len(beams_CK), device=beams_CK.device)[:, None]
    bias_CKTK = bias_CKTK[rows_C1, beams_CK]
    if sentences_C is None:
        return replace(state, bias_BKTK=bias_CKTK)
    source, target = _select_sentences(state.source, sentences_C), state.target.index_select(2, sentences_C)
    return State(source, target, bias_CKTK, state.length)


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    return cast(list[DecoderLayer], list(model.decoder.layers))


def _select_sentences(source: SourceCache, sentences_C: Tensor) -> SourceCache:
    layers = [(k[sentences_C], v[sentences_C]) for k, v in source.layers]
    return SourceCache(layers, None if source.bias_B11S is None else source.bias_B11S[sentences_C])


def _with_room(state: State) -> State:
    """The state with a place for one more target token."""
    room = state.bias_BKTK.shape[2]
    if state.length < room:
        return state
    target = F.pad(state.target, (0, 0, 0, 0, 0, room))
    return replace(state, target=target, bias_BKTK=F.pad(state.bias_BKTK, (0, 0, 0, room)))


def _step_layer(model: Transformer, state: State, index: int, x_BKD: Tensor) -> Tensor:
    layer = decoder_layers(model)[index]

    def attend_target(y_BKD: Tensor) -> Tensor:
        return _attend_target(layer.attention, y_BKD, state.target[index], state)

    def attend_source(y_BKD: Tensor) -> Tensor:
        keys_values = state.source.layers[index]
        return _attend_source(layer.cross_attention, y_BKD, keys_values, state.source.bias_B11S)

    return layer.combine(x_BKD, attend_target, attend_source)


def _attend_target(attention: SelfAttention, x_BKD: Tensor, cache_2BHTKE: Tensor, state: State) -> Tensor:
    """Self-attention of the newest tokens, whose keys and values are written to the cache."""
    newest_BKPHE = attention.qkv(x_BKD).view(*x_BKD.shape[:2], 3, attention.heads, -1)
    q_BHKE, k_BHKE, v_BHKE = newest_BKPHE.permute(2, 0, 3, 1, 4)
    keys, values = cache_2BHTKE
    keys[:, :, state.length] = k_BHKE
    values[:, :, state.length] = v_BHKE
    now = state.length + 1
    is_alone = x_BKD.shape[1] == 1
    bias_B1KN = None if is_alone else state.bias_BKTK[:, None, :, :now].flatten(3)
    mixed_BHKE = attend(q_BHKE, keys[:, :, :now].flatten(2, 3), values[:, :, :now].flatten(2, 3), bias_B1KN)
    out_BKD: Tensor = attention.output(join_heads(mixed_BHKE))
    return out_BKD


def _attend_source(
    attention: CrossAttention, x_BKD: Tensor, keys_values: tuple[Tensor, Tensor], bias_B11S: Tensor | None
) -> Tensor:
    """Attention to the source, the hypotheses of a sentence being queries to the same keys."""
    (q_BHKE,) = split_heads(attention.query(x_BKD), 1, attention.heads)
    mixed_BHKE = attend(q_BHKE, *keys_values, bias_B11S)
    out_BKD: Tensor = attention.output(join_heads(mixed_BHKE))
    return out_BKD
