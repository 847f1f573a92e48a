"""The Transformer of transformer.py computed with the C++ kernels: the same weights, the same numbers dropped.

N  source tokens     M  target tokens     D  d_model     F  d_ff     V  vocabulary     L  longest sentence

No padding, but for a few rows after the last sentence, so that shapes repeat: attention does not see them, and their
gradients are zeros. The residual stream stays in float32, what blocks read and write is in the dtype of autocast.
Between two blocks dropout, addition and layer norm are one kernel; backward draws dropout again from its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from echelon.models.dropout import Drop, Dropout
from echelon.models.kernels.ops import Attended, Kernels, Normed, Projections, SavedNorm, supports
from echelon.models.sequences import Sequences, round_up
from echelon.models.transformer import (
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Transformer,
    run_layer,
    sinusoids,
)


@dataclass(frozen=True)
class FusedSublayer:
    """A sublayer with its norm and the dropout of its output."""

    run: Callable[[Tensor], Tensor]
    norm: nn.LayerNorm
    dropout: Dropout


def can_run(model: Transformer, device: torch.device) -> bool:
    """Whether the kernels can compute this model, in the format that autocast asks for."""
    is_float32 = model.embeddings.output_VD.dtype == torch.float32
    is_known = is_float32 and model.shape.activation == "relu"
    return is_known and device.type == "cpu" and supports(_activation_dtype())


def hidden_states(kernels: Kernels, model: Transformer, source: Sequences, target_input: Sequences) -> Tensor:
    """What `model(source, target_input)` computes: hidden states [M, D], in the dtype of autocast."""
    fast = _Pass(kernels, _activation_dtype(), model.recomputes)
    with torch.autocast("cpu", enabled=False):
        memory_ND = fast.encode(model, source)
        return fast.decode(model, target_input, memory_ND, source)[: len(target_input.tokens)]


def _activation_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


@dataclass(frozen=True)
class _Pass:
    """One forward pass."""

    kernels: Kernels
    dtype: torch.dtype
    recomputes: bool

    def encode(self, model: Transformer, source: Sequences) -> Tensor:
        x_ND = self.embed(model, source, model.embeddings.source_VD)
        layers = cast(Sequence[EncoderLayer], model.encoder.layers)
        blocks = [block for layer in layers for block in self.encoder_blocks(layer, source)]
        return self.run_blocks(x_ND, blocks, model.encoder.norm)

    def decode(self, model: Transformer, target: Sequences, memory_ND: Tensor, source: Sequences) -> Tensor:
        x_MD = self.embed(model, target, model.embeddings.target_VD)
        layers = cast(Sequence[DecoderLayer], model.decoder.layers)
        blocks = [
            block for layer in layers for block in self.decoder_blocks(layer, target, memory_ND, source)
        ]
        return self.run_blocks(x_MD, blocks, model.decoder.norm)

    def embed(self, model: Transformer, sequences: Sequences, table_VD: Tensor) -> Tensor:
        places_LD = sinusoids(torch.arange(sequences.longest), model.shape.d_model)
        return _embed((self.kernels, model.dropout.draw()), sequences, places_LD, table_VD)

    def run_blocks(self, x_ND: Tensor, blocks: list[FusedSublayer], final_norm: nn.Module) -> Tensor:
        """The blocks one after the other, each addition fused with the norm that follows it."""
        norms = [block.norm for block in blocks]
        is_post = not isinstance(final_norm, nn.LayerNorm)
        if isinstance(final_norm, nn.LayerNorm):  # pre-norm: the norm of the next block follows a block
            _, y_ND = self.add_norm(x_ND, None, norms[0])
            norms = [*norms[1:], final_norm]
        else:
            y_ND = x_ND.to(self.dtype)

        def run(
            block: FusedSublayer, norm: nn.LayerNorm, x_ND: Tensor, y_ND: Tensor
        ) -> tuple[Tensor, Tensor]:
            return self.add_norm(x_ND, block.run(y_ND), norm, block.dropout, is_post=is_post)

        for block, norm in zip(blocks, norms, strict=True):
            x_ND, y_ND = run_layer(run, self.recomputes, block, norm, x_ND, y_ND)
        return y_ND

    def encoder_blocks(self, layer: EncoderLayer, source: Sequences) -> list[FusedSublayer]:
        dropout = layer.residual.dropout
        return [
            FusedSublayer(
                lambda y: self.attend_self(layer.attention, y, source), layer.attention_norm, dropout
            ),
            FusedSublayer(
                lambda y: self.feed_forward(layer.feed_forward, y), layer.feed_forward_norm, dropout
            ),
        ]

    def decoder_blocks(
        self, layer: DecoderLayer, target: Sequences, memory_ND: Tensor, source: Sequences
    ) -> list[FusedSublayer]:
        dropout = layer.residual.dropout

        def attend_source(y_MD: Tensor) -> Tensor:
            return self.attend_cross(layer.cross_attention, y_MD, target, memory_ND, source)

        return [
            FusedSublayer(
                lambda y: self.attend_self(layer.attention, y, target), layer.attention_norm, dropout
            ),
            FusedSublayer(attend_source, layer.cross_attention_norm, dropout),
            FusedSublayer(
                lambda y: self.feed_forward(layer.feed_forward, y), layer.feed_forward_norm, dropout
            ),
        ]

    def add_norm(
        self,
        x_ND: Tensor,
        block_ND: Tensor | None,
        norm: nn.LayerNorm,
        dropout: Dropout | None = None,
        *,
        is_post: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The new stream and what the next block reads: x + dropout(block) and its norm, or twice the norm."""
        drop = dropout.draw() if dropout else Drop()
        settings = _AddNormSettings(self.kernels, norm, self.dtype, drop, is_post)
        stream_ND, normed_ND = _add_norm(settings, x_ND, block_ND, norm.weight, norm.bias)
        return (x_ND if stream_ND is None else stream_ND), normed_ND

    def linear(self, x_ND: Tensor, layer: nn.Linear) -> Tensor:
        return _linear(self.kernels, x_ND, layer.weight, layer.bias)

    def feed_forward(self, block: FeedForward, y_ND: Tensor) -> Tensor:
        inner, outer, using = block.inner, block.outer, (self.kernels, block.dropout.draw())
        return _feed_forward(using, y_ND, inner.weight, inner.bias, outer.weight, outer.bias)

    def attend_self(self, block: SelfAttention, y_ND: Tensor, tokens: Sequences) -> Tensor:
        qkv_N3D = self.linear(y_ND, block.qkv)
        how = Attended(tokens, tokens, block.heads, block.is_causal, block.dropout.draw())
        return self.linear(_attend_self(self.kernels, how, qkv_N3D), block.output)

    def attend_cross(
        self, block: CrossAttention, y_MD: Tensor, target: Sequences, memory_ND: Tensor, source: Sequences
    ) -> Tensor:
        q_MD, kv_N2D = self.linear(y_MD, block.query), self.linear(memory_ND, block.kv)
        how = Attended(target, source, block.heads, is_causal=False, drop=block.dropout.draw())
        return self.linear(_attend_cross(self.kernels, how, q_MD, kv_N2D), block.output)


_Using = tuple[Kernels, Drop]


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, using: _Using, sequences: Sequences, places_LD: Tensor, table_VD: Tensor) -> Tensor:
        tokens_N, positions_N = (round_up(x_N) for x_N in (sequences.tokens, sequences.positions_N))
        ctx.using, ctx.tokens_N, ctx.vocabulary = using, tokens_N, len(table_VD)
        kernels, drop = using
        return kernels.embed(table_VD, tokens_N, places_LD, positions_N, drop)

    @staticmethod
    def backward(ctx: Any, d_out_ND: Tensor) -> tuple[Tensor | None, ...]:
        kernels, drop = ctx.using
        d_table_VD = kernels.embed_backward(d_out_ND.contiguous(), ctx.tokens_N, ctx.vocabulary, drop)
        return None, None, None, d_table_VD


@dataclass(frozen=True)
class _AddNormSettings:
    kernels: Kernels
    norm: nn.LayerNorm
    dtype: torch.dtype
    drop: Drop
    is_post: bool


class _AddNorm(torch.autograd.Function):
    """Stream and norm; no stream if nothing is added to x before its norm."""

    @staticmethod
    def forward(
        ctx: Any, settings: _AddNormSettings, x_ND: Tensor, block_ND: Tensor | None, *norm_D: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        weight_D, _ = norm_D  # the norm's own, which autograd must see
        out = Normed(
            sums_ND=None if block_ND is None else torch.empty_like(x_ND),
            normed_ND=torch.empty_like(x_ND, dtype=settings.dtype),
            stream_ND=torch.empty_like(x_ND) if settings.is_post else None,
        )
        statistics_2N = settings.kernels.add_norm(x_ND, block_ND, settings.norm, settings.drop, out)
        ctx.settings, ctx.has_block = settings, block_ND is not None
        ctx.save_for_backward(x_ND if out.sums_ND is None else out.sums_ND, weight_D, statistics_2N)
        ctx.set_materialize_grads(False)
        return (out.stream_ND if settings.is_post else out.sums_ND), out.normed_ND

    @staticmethod
    def backward(
        ctx: Any, d_stream_ND: Tensor | None, d_normed_ND: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        settings, saved = ctx.settings, SavedNorm(*ctx.saved_tensors)
        if d_normed_ND is None:
            d_normed_ND = torch.zeros_like(saved.sums_ND, dtype=settings.dtype)
        d_normed_ND = d_normed_ND.contiguous()
        d_stream_ND = None if d_stream_ND is None else d_stream_ND.contiguous()
        gradients = (
            Normed(None, d_normed_ND, d_stream_ND)
            if settings.is_post
            else Normed(d_stream_ND, d_normed_ND, None)
        )
        return None, *settings.kernels.add_norm_backward(saved, gradients, settings.drop, ctx.has_block)


class _Linear(torch.autograd.Function):
    """The products in the dtype of x; the sums over tokens that are the bias' gradient in float32."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
        rounded_OD = weight_OD.to(x_ND.dtype)
        ctx.save_for_backward(x_ND, rounded_OD)
        ctx.kernels = kernels
        return F.linear(x_ND, rounded_OD, None if bias_O is None else bias_O.to(x_ND.dtype))

    @staticmethod
    def backward(ctx: Any, d_out_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, rounded_OD = ctx.saved_tensors
        _, _, is_trained, is_bias_trained = ctx.needs_input_grad
        d_bias_O = ctx.kernels.sum_rows(d_out_NO.contiguous()) if is_bias_trained else None
        return None, d_out_NO @ rounded_OD, d_out_NO.T @ x_ND if is_trained else None, d_bias_O


class _FastFeedForward(torch.autograd.Function):
    """Two linear layers with ReLU and dropout between them, of which only the result is kept."""

    @staticmethod
    def forward(ctx: Any, using: _Using, y_ND: Tensor, *weights: Tensor) -> Tensor:
        inner_FD, inner_bias_F, outer_DF, outer_bias_D = (weight.to(y_ND.dtype) for weight in weights)
        kernels, drop = using
        hidden_NF = kernels.relu_(F.linear(y_ND, inner_FD, inner_bias_F), drop)
        ctx.using = using
        ctx.save_for_backward(y_ND, hidden_NF, inner_FD, outer_DF)
        return F.linear(hidden_NF, outer_DF, outer_bias_D)

    @staticmethod
    def backward(ctx: Any, d_out_ND: Tensor) -> tuple[Tensor | None, ...]:
        y_ND, hidden_NF, inner_FD, outer_DF = ctx.saved_tensors
        inner, inner_bias, outer, outer_bias = ctx.needs_input_grad[2:]  # the frozen ones need no products
        d_outer_DF = d_out_ND.T @ hidden_NF if outer else None
        kernels, drop = ctx.using
        d_hidden_NF = kernels.relu_backward_(hidden_NF, d_out_ND @ outer_DF, drop)
        d_inner_bias_F = kernels.sum_rows(d_hidden_NF) if inner_bias else None
        d_outer_bias_D = kernels.sum_rows(d_out_ND.contiguous()) if outer_bias else None
        d_y_ND, d_inner_FD = d_hidden_NF @ inner_FD, d_hidden_NF.T @ y_ND if inner else None
        return None, d_y_ND, d_inner_FD, d_inner_bias_F, d_outer_DF, d_outer_bias_D


class _AttendSelf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, how: Attended, qkv_N3D: Tensor) -> Tensor:
        out_ND, log_sums_NH = kernels.attend(Projections.of_self(qkv_N3D), how)
        ctx.kernels, ctx.how = kernels, how
        ctx.save_for_backward(qkv_N3D, out_ND, log_sums_NH)
        return out_ND

    @staticmethod
    def backward(ctx: Any, d_out_ND: Tensor) -> tuple[Tensor | None, ...]:
        qkv_N3D, *saved = ctx.saved_tensors
        d_qkv_N3D = torch.empty_like(qkv_N3D)
        given, gradients = Projections.of_self(qkv_N3D), Projections.of_self(d_qkv_N3D)
        ctx.kernels.attend_backward(given, tuple(saved), d_out_ND.contiguous(), ctx.how, gradients)
        return None, None, d_qkv_N3D


class _AttendCross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, how: Attended, q_MD: Tensor, kv_N2D: Tensor) -> Tensor:
        out_MD, log_sums_MH = kernels.attend(Projections.of_cross(q_MD, kv_N2D), how)
        ctx.kernels, ctx.how = kernels, how
        ctx.save_for_backward(q_MD, kv_N2D, out_MD, log_sums_MH)
        return out_MD

    @staticmethod
    def backward(ctx: Any, d_out_MD: Tensor) -> tuple[Tensor | None, ...]:
        q_MD, kv_N2D, *saved = ctx.saved_tensors
        d_q_MD, d_kv_N2D = torch.empty_like(q_MD), torch.empty_like(kv_N2D)
        given, gradients = Projections.of_cross(q_MD, kv_N2D), Projections.of_cross(d_q_MD, d_kv_N2D)
        ctx.kernels.attend_backward(given, tuple(saved), d_out_MD.contiguous(), ctx.how, gradients)
        return None, None, d_q_MD, d_kv_N2D


_embed: Callable[..., Tensor] = _Embed.apply
_add_norm: Callable[..., tuple[Tensor | None, Tensor]] = _AddNorm.apply
_linear: Callable[..., Tensor] = _Linear.apply
_feed_forward: Callable[..., Tensor] = _FastFeedForward.apply
_attend_self: Callable[..., Tensor] = _AttendSelf.apply
_attend_cross: Callable[..., Tensor] = _AttendCross.apply
