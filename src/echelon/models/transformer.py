"""The Transformer: packed tokens in, hidden states out. Nothing here knows of recipes or other workers.

N  source tokens     B  sentences              D  d_model          H  heads
M  target tokens     L  longest sentence       F  d_ff             E  width of a head, D / H
V  vocabulary        S, T  longest source, target

Everything but attention runs on packed tensors, one row per token. Attention alone needs rectangles,
and on GPUs mostly not even that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from echelon.models.attention import attend, attend_packed, join_heads, split_heads, takes_packed
from echelon.models.dropout import Dropout
from echelon.models.sequences import Sequences
from echelon.shapes.transformer import TransformerShape, embedding_names

Sublayer = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Sublayer] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


@dataclass(frozen=True)
class Dropouts:
    """Shares of numbers set to zero while training."""

    residual: float = 0.0
    """Of each block's output before it is added, and of the embeddings."""
    attention: float = 0.0
    """Of the attention weights."""
    activation: float = 0.0
    """Inside the feed-forward blocks, after the activation."""


@dataclass(frozen=True)
class Memory:
    """What the encoder hands to the decoder."""

    hidden_ND: Tensor
    source: Sequences


class Transformer(nn.Module):
    """Encoder and decoder of "Attention is all you need", with LayerNorm before or after each block.

    Where it `recomputes`, only the inputs of its layers are kept for the gradient.
    """

    def __init__(
        self, shape: TransformerShape, dropouts: Dropouts | None = None, *, recomputes: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self.recomputes = recomputes
        dropouts = dropouts or Dropouts()
        self.embeddings = Embeddings(shape)
        self.dropout = Dropout(dropouts.residual)
        self.encoder = Encoder(shape, dropouts, recomputes)
        self.decoder = Decoder(shape, dropouts, recomputes)
        self.output_bias: Tensor | None
        self.register_buffer("output_bias", torch.zeros(shape.vocabulary) if shape.output_bias else None)

    def forward(self, source: Sequences, target_input: Sequences) -> Tensor:
        """Hidden states [M, D], one per token of `target_input`, each predicting the token after it."""
        return self.decode(target_input, self.encode(source))

    def encode(self, source: Sequences) -> Memory:
        x_ND = self.embed(source.tokens, self.embeddings.source_VD, self.places(source))
        return Memory(self.encoder(x_ND, source), source)

    def decode(self, target_input: Sequences, memory: Memory) -> Tensor:
        x_MD = self.embed(target_input.tokens, self.embeddings.target_VD, self.places(target_input))
        hidden_MD: Tensor = self.decoder(x_MD, target_input, memory)
        return hidden_MD

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """Scores of the next token [M, V], in float32 at least."""
        bias_V = None if self.output_bias is None else self.output_bias.to(hidden_MD.dtype)
        logits_MV = F.linear(hidden_MD, self.embeddings.output_VD, bias_V)
        return logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))

    def embed(self, tokens_N: Tensor, table_VD: Tensor, places_ND: Tensor) -> Tensor:
        x_ND = F.embedding(tokens_N, table_VD) * math.sqrt(self.shape.d_model)
        embedded_ND: Tensor = self.dropout(x_ND + places_ND.to(x_ND.dtype))
        return embedded_ND

    def places(self, sequences: Sequences) -> Tensor:
        """The position vector of each token, [N, D]."""
        places_L = torch.arange(sequences.longest, device=sequences.tokens.device)
        return sinusoids(places_L, self.shape.d_model)[sequences.positions_N]


class Embeddings(nn.Module):
    """One matrix if the embeddings are tied, so that it is saved and exchanged once; otherwise two or three."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.names = embedding_names(shape)
        for name in self.names:
            table_VD = torch.empty(shape.vocabulary, shape.d_model)
            self.register_parameter(name, nn.Parameter(nn.init.normal_(table_VD, std=shape.d_model**-0.5)))

    @property
    def source_VD(self) -> Tensor:
        return self.get_parameter(self.names[0])

    @property
    def target_VD(self) -> Tensor:
        return self.get_parameter(self.names[len(self.names) // 2])

    @property
    def output_VD(self) -> Tensor:
        return self.get_parameter(self.names[-1])


class Encoder(nn.Module):
    def __init__(self, shape: TransformerShape, dropouts: Dropouts, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.layers = nn.ModuleList(EncoderLayer(shape, dropouts) for _ in range(shape.encoder_layers))
        self.norm = final_norm(shape)

    def forward(self, x_ND: Tensor, source: Sequences) -> Tensor:
        for layer in self.layers:
            x_ND = run_layer(layer, self.recomputes, x_ND, source)
        normed_ND: Tensor = self.norm(x_ND)
        return normed_ND


class Decoder(nn.Module):
    def __init__(self, shape: TransformerShape, dropouts: Dropouts, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.layers = nn.ModuleList(DecoderLayer(shape, dropouts) for _ in range(shape.decoder_layers))
        self.norm = final_norm(shape)

    def forward(self, x_MD: Tensor, target: Sequences, memory: Memory) -> Tensor:
        for layer in self.layers:
            x_MD = run_layer(layer, self.recomputes, x_MD, target, memory)
        normed_MD: Tensor = self.norm(x_MD)
        return normed_MD


def run_layer(layer: Callable[..., Any], recomputes: bool, *inputs: Any) -> Any:
    """The layer's output; if it recomputes, backward starts from its inputs once more."""
    if recomputes and torch.is_grad_enabled():
        return checkpoint(layer, *inputs, use_reentrant=False)
    return layer(*inputs)


def final_norm(shape: TransformerShape) -> nn.Module:
    """Pre-norm leaves the residual stream itself without a norm; post-norm ends with one already."""
    return nn.LayerNorm(shape.d_model) if shape.norm == "pre" else nn.Identity()


class EncoderLayer(nn.Module):
    def __init__(self, shape: TransformerShape, dropouts: Dropouts) -> None:
        super().__init__()
        self.residual = Residual(shape, dropouts)
        self.attention_norm = nn.LayerNorm(shape.d_model)
        self.attention = SelfAttention(shape, dropouts, is_causal=False)
        self.feed_forward_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, dropouts)

    def forward(self, x_ND: Tensor, source: Sequences) -> Tensor:
        x_ND = self.residual(x_ND, self.attention_norm, lambda y_ND: self.attention(y_ND, source))
        out_ND: Tensor = self.residual(x_ND, self.feed_forward_norm, self.feed_forward)
        return out_ND


class DecoderLayer(nn.Module):
    def __init__(self, shape: TransformerShape, dropouts: Dropouts) -> None:
        super().__init__()
        self.residual = Residual(shape, dropouts)
        self.attention_norm = nn.LayerNorm(shape.d_model)
        self.attention = SelfAttention(shape, dropouts, is_causal=True)
        self.cross_attention_norm = nn.LayerNorm(shape.d_model)
        self.cross_attention = CrossAttention(shape, dropouts)
        self.feed_forward_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, dropouts)

    def forward(self, x_MD: Tensor, target: Sequences, memory: Memory) -> Tensor:
        return self.combine(
            x_MD,
            lambda y_MD: self.attention(y_MD, target),
            lambda y_MD: self.cross_attention(y_MD, target, memory),
        )

    def combine(self, x_MD: Tensor, attend_target: Sublayer, attend_source: Sublayer) -> Tensor:
        """The layer with its attentions given, so that decoding word by word can bring its own."""
        x_MD = self.residual(x_MD, self.attention_norm, attend_target)
        x_MD = self.residual(x_MD, self.cross_attention_norm, attend_source)
        out_MD: Tensor = self.residual(x_MD, self.feed_forward_norm, self.feed_forward)
        return out_MD


class Residual(nn.Module):
    """How a block is wrapped: norm, dropout and addition."""

    def __init__(self, shape: TransformerShape, dropouts: Dropouts) -> None:
        super().__init__()
        self.is_pre_norm = shape.norm == "pre"
        self.dropout = Dropout(dropouts.residual)

    def forward(self, x_ND: Tensor, norm: nn.Module, sublayer: Sublayer) -> Tensor:
        if self.is_pre_norm:
            out_ND: Tensor = x_ND + self.dropout(sublayer(norm(x_ND)))
        else:
            out_ND = norm(x_ND + self.dropout(sublayer(x_ND)))
        return out_ND


class FeedForward(nn.Module):
    def __init__(self, shape: TransformerShape, dropouts: Dropouts) -> None:
        super().__init__()
        self.inner = linear(shape.d_model, shape.d_ff)
        self.outer = linear(shape.d_ff, shape.d_model)
        self.activate = ACTIVATIONS[shape.activation]
        self.dropout = Dropout(dropouts.activation)

    def forward(self, x_ND: Tensor) -> Tensor:
        out_ND: Tensor = self.outer(self.dropout(self.activate(self.inner(x_ND))))
        return out_ND


class SelfAttention(nn.Module):
    """Each token attends to the tokens of its own sequence; if causal, not to those after it."""

    def __init__(self, shape: TransformerShape, dropouts: Dropouts, is_causal: bool) -> None:
        super().__init__()
        self.heads = shape.heads
        self.is_causal = is_causal
        self.dropout = Dropout(dropouts.attention)
        self.qkv = linear(shape.d_model, shape.d_model, parts=3, bias=shape.attention_biases)
        self.output = linear(shape.d_model, shape.d_model, bias=shape.attention_biases)

    def forward(self, x_ND: Tensor, sequences: Sequences) -> Tensor:
        mix = self.mix_packed if takes_packed(x_ND, self.heads) else self.mix
        out_ND: Tensor = self.output(mix(x_ND, sequences))
        return out_ND

    def mix(self, x_ND: Tensor, sequences: Sequences) -> Tensor:
        q_BHLE, k_BHLE, v_BHLE = split_heads(sequences.pad(self.qkv(x_ND)), 3, self.heads)
        bias = sequences.causal_bias_LL if self.is_causal else sequences.padding_bias_B11L
        return sequences.unpad(join_heads(attend(q_BHLE, k_BHLE, v_BHLE, bias, self.dropout)))

    def mix_packed(self, x_ND: Tensor, sequences: Sequences) -> Tensor:
        q_NHE, k_NHE, v_NHE = self.qkv(x_ND).unflatten(1, (3, self.heads, -1)).unbind(1)
        mixed_NHE = attend_packed(
            q_NHE,
            k_NHE,
            v_NHE,
            queries=sequences,
            keys=sequences,
            is_causal=self.is_causal,
            dropout=self.dropout,
        )
        return mixed_NHE.flatten(1)


class CrossAttention(nn.Module):
    """Each target token looks at all source tokens of its sentence."""

    def __init__(self, shape: TransformerShape, dropouts: Dropouts) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = Dropout(dropouts.attention)
        self.query = linear(shape.d_model, shape.d_model, bias=shape.attention_biases)
        self.kv = linear(shape.d_model, shape.d_model, parts=2, bias=shape.attention_biases)
        self.output = linear(shape.d_model, shape.d_model, bias=shape.attention_biases)

    def forward(self, x_MD: Tensor, target: Sequences, memory: Memory) -> Tensor:
        mix = self.mix_packed if takes_packed(x_MD, self.heads) else self.mix
        out_MD: Tensor = self.output(mix(x_MD, target, memory))
        return out_MD

    def mix(self, x_MD: Tensor, target: Sequences, memory: Memory) -> Tensor:
        (q_BHTE,) = split_heads(target.pad(self.query(x_MD)), 1, self.heads)
        k_BHSE, v_BHSE = split_heads(memory.source.pad(self.kv(memory.hidden_ND)), 2, self.heads)
        mixed_BHTE = attend(q_BHTE, k_BHSE, v_BHSE, memory.source.padding_bias_B11L, self.dropout)
        return target.unpad(join_heads(mixed_BHTE))

    def mix_packed(self, x_MD: Tensor, target: Sequences, memory: Memory) -> Tensor:
        q_MHE = self.query(x_MD).unflatten(1, (self.heads, -1))
        k_NHE, v_NHE = self.kv(memory.hidden_ND).unflatten(1, (2, self.heads, -1)).unbind(1)
        mixed_MHE = attend_packed(
            q_MHE,
            k_NHE,
            v_NHE,
            queries=target,
            keys=memory.source,
            is_causal=False,
            dropout=self.dropout,
        )
        return mixed_MHE.flatten(1)


def linear(d_in: int, d_out: int, parts: int = 1, bias: bool = True) -> nn.Linear:
    """`parts` linear layers in one; each has the initial weights it would have alone."""
    layer = nn.Linear(d_in, parts * d_out, bias=bias)
    with torch.no_grad():
        for part in layer.weight.chunk(parts):
            nn.init.xavier_uniform_(part)
        if bias:
            nn.init.zeros_(layer.bias)
    return layer


def sinusoids(positions_N: Tensor, d_model: int) -> Tensor:
    """Position vectors [N, D] in float32: sines in the first half, cosines in the second."""
    half = torch.arange(d_model // 2, dtype=torch.float32, device=positions_N.device)
    rates_E = torch.exp(half * (-2 * math.log(10_000) / d_model))
    angles_NE = positions_N.float()[:, None] * rates_E
    return torch.cat([angles_NE.sin(), angles_NE.cos()], dim=1)
