"""The kernels as functions of tensors: formats and layouts are checked here; that tokens are in the vocabulary, and
positions and offsets in their batch, is for whoever makes batches to see to.

N  rows, one a token    M  query tokens    D  width of the model    H  heads    V  vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, byref, c_float, c_long, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from echelon.models.dropout import Drop
from echelon.models.kernels.build import load_library
from echelon.models.sequences import Sequences

_SUFFIXES = {torch.float32: "float", torch.bfloat16: "bfloat16"}


def supports(dtype: torch.dtype) -> bool:
    """Whether there are kernels for activations of this format."""
    return dtype in _SUFFIXES


class _RowsCall(Structure):
    """Matches Relu of the C++ side, and the beginning of AddNorm and Embed."""

    _fields_: ClassVar[Any] = [
        ("rows", c_long),
        ("width", c_long),
        ("seed", c_uint64),
        ("dropped_levels", c_long),
    ]


class _AddNormCall(_RowsCall):
    _fields_: ClassVar[Any] = [("epsilon", c_float)]


class _EmbedCall(_RowsCall):
    _fields_: ClassVar[Any] = [("scale", c_float)]


class _SumsCall(Structure):
    _fields_: ClassVar[Any] = [("rows", c_long), ("width", c_long)]


class _LossesCall(Structure):
    _fields_: ClassVar[Any] = [
        ("rows", c_long),
        ("vocabulary", c_long),
        ("smoothing", c_float),
        ("weight", c_float),
        ("wants_gradient", c_long),
    ]


class _AttentionCall(Structure):
    _fields_: ClassVar[Any] = [
        *((name, c_long) for name in ("sentences", "heads", "width", "longest_query", "longest_key")),
        ("is_causal", c_long),
        ("seed", c_uint64),
        *((name, c_long) for name in ("dropped_levels", "query_stride", "key_stride")),
        ("query_offsets", c_void_p),
        ("key_offsets", c_void_p),
    ]


@dataclass(frozen=True)
class Attended:
    """Which tokens look at which: queries of one batch at keys of the same or another one."""

    queries: Sequences
    keys: Sequences
    heads: int
    is_causal: bool
    drop: Drop


@dataclass(frozen=True)
class Projections:
    """Queries, keys and values, as parts of one or two tensors."""

    q_MD: Tensor
    k_ND: Tensor
    v_ND: Tensor

    @classmethod
    def of_self(cls, qkv_N3D: Tensor) -> Projections:
        return cls(*qkv_N3D.chunk(3, dim=1))

    @classmethod
    def of_cross(cls, q_MD: Tensor, kv_N2D: Tensor) -> Projections:
        return cls(q_MD, *kv_N2D.chunk(2, dim=1))


@dataclass(frozen=True)
class Normed:
    """x + dropout(block), its norm, and its norm in float32; or the gradients of these."""

    sums_ND: Tensor | None
    normed_ND: Tensor
    stream_ND: Tensor | None


@dataclass(frozen=True)
class SavedNorm:
    """What the gradient of a norm needs."""

    sums_ND: Tensor
    weight_D: Tensor
    statistics_2N: Tensor


class Kernels:
    """The compiled kernels; KernelsUnavailableError if this machine can have none."""

    def __init__(self) -> None:
        self._library = load_library()

    def embed(
        self, table_VD: Tensor, tokens_N: Tensor, places_LD: Tensor, positions_N: Tensor, drop: Drop
    ) -> Tensor:
        """dropout(table[tokens] * sqrt(D) + places[positions]), in float32."""
        _check(torch.float32, table_VD, places_LD)
        _check(torch.int64, tokens_N, positions_N)
        out_ND = table_VD.new_empty(len(tokens_N), table_VD.shape[1])
        call = _EmbedCall(*out_ND.shape, drop.seed, drop.dropped_levels, table_VD.shape[1] ** 0.5)
        self._call("embed_forward", call, table_VD, tokens_N, places_LD, positions_N, out_ND)
        return out_ND

    def embed_backward(self, d_out_ND: Tensor, tokens_N: Tensor, vocabulary: int, drop: Drop) -> Tensor:
        """The gradient of the table."""
        _check(torch.float32, d_out_ND)
        d_table_VD = d_out_ND.new_zeros(vocabulary, d_out_ND.shape[1])
        call = _EmbedCall(*d_out_ND.shape, drop.seed, drop.dropped_levels, d_out_ND.shape[1] ** 0.5)
        self._call("embed_backward", call, tokens_N, d_out_ND, d_table_VD)
        return d_table_VD

    def add_norm(
        self, x_ND: Tensor, block_ND: Tensor | None, norm: nn.LayerNorm, drop: Drop, out: Normed
    ) -> Tensor:
        """Fill `out` in; returns the norm's statistics [2, N]."""
        _check(torch.float32, x_ND, norm.weight, norm.bias, out.sums_ND, out.stream_ND)
        _check(out.normed_ND.dtype, block_ND, out.normed_ND)
        statistics_2N = x_ND.new_empty(2, len(x_ND))
        call = _AddNormCall(*x_ND.shape, drop.seed, drop.dropped_levels, norm.eps)
        made = (out.sums_ND, out.normed_ND, out.stream_ND, *statistics_2N)
        name = f"add_norm_forward_{_SUFFIXES[out.normed_ND.dtype]}"
        self._call(name, call, x_ND, block_ND, norm.weight, norm.bias, *made)
        return statistics_2N

    def add_norm_backward(
        self, saved: SavedNorm, gradients: Normed, drop: Drop, wants_block: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Gradients of x, block, weight and bias, from the `gradients` of what `add_norm` filled in."""
        d_normed_ND = gradients.normed_ND
        _check(torch.float32, saved.sums_ND, saved.weight_D, gradients.stream_ND, gradients.sums_ND)
        _check(d_normed_ND.dtype, d_normed_ND)
        d_x_ND = torch.empty_like(saved.sums_ND)
        d_block_ND = torch.empty_like(d_normed_ND) if wants_block else None
        d_weight_D, d_bias_D = saved.weight_D.new_zeros(2, len(saved.weight_D))
        call = _AddNormCall(*saved.sums_ND.shape, drop.seed, drop.dropped_levels)
        given = (saved.sums_ND, saved.weight_D, *saved.statistics_2N)
        made = (d_x_ND, d_block_ND, d_weight_D, d_bias_D)
        name = f"add_norm_backward_{_SUFFIXES[d_normed_ND.dtype]}"
        self._call(name, call, *given, d_normed_ND, gradients.stream_ND, gradients.sums_ND, *made)
        return made

    def relu_(self, x_NF: Tensor, drop: Drop) -> Tensor:
        """dropout(relu(x)), in place of x."""
        _check(x_NF.dtype, x_NF)
        call = _RowsCall(*x_NF.shape, drop.seed, drop.dropped_levels)
        self._call(f"relu_forward_{_SUFFIXES[x_NF.dtype]}", call, x_NF)
        return x_NF

    def relu_backward_(self, out_NF: Tensor, gradient_NF: Tensor, drop: Drop) -> Tensor:
        """The gradient of x, in place of the gradient of what `relu_` made."""
        _check(out_NF.dtype, out_NF, gradient_NF)
        call = _RowsCall(*out_NF.shape, drop.seed, drop.dropped_levels)
        self._call(f"relu_backward_{_SUFFIXES[out_NF.dtype]}", call, out_NF, gradient_NF)
        return gradient_NF

    def sum_rows(self, x_ND: Tensor) -> Tensor:
        """The sum over all rows [D], in float32."""
        _check(x_ND.dtype, x_ND)
        sums_D = x_ND.new_empty(x_ND.shape[1], dtype=torch.float32)
        self._call(f"sum_of_rows_{_SUFFIXES[x_ND.dtype]}", _SumsCall(*x_ND.shape), x_ND, sums_D)
        return sums_D

    def attend(self, given: Projections, how: Attended) -> tuple[Tensor, Tensor]:
        """Attention within each sentence [M, D], and the logarithms [M, H] that its gradient needs.

        Rows after the last sentence become zeros, here and in gradients.
        """
        out_MD = given.q_MD.new_empty(given.q_MD.shape)
        out_MD[len(how.queries.tokens) :] = 0
        log_sums_MH = given.q_MD.new_empty(len(out_MD), how.heads, dtype=torch.float32)
        tensors = (given.q_MD, given.k_ND, given.v_ND, out_MD, log_sums_MH)
        self._call(f"attention_forward_{_SUFFIXES[out_MD.dtype]}", _attention_call(given, how), *tensors)
        return out_MD, log_sums_MH

    def attend_backward(
        self,
        given: Projections,
        saved: tuple[Tensor, Tensor],
        d_out_MD: Tensor,
        how: Attended,
        gradients: Projections,
    ) -> None:
        """Fill in the `gradients`; `saved` is what `attend` returned."""
        out_MD, log_sums_MH = saved
        _check(out_MD.dtype, out_MD, d_out_MD)
        tensors = (given.q_MD, given.k_ND, given.v_ND, out_MD, d_out_MD, log_sums_MH)
        made = (gradients.q_MD, gradients.k_ND, gradients.v_ND)
        for gradient, sequences in zip(made, (how.queries, how.keys, how.keys), strict=True):
            gradient[len(sequences.tokens) :] = 0
        name = f"attention_backward_{_SUFFIXES[out_MD.dtype]}"
        self._call(name, _attention_call(given, how), *tensors, *made)

    def losses_(
        self, logits_CV: Tensor, targets_C: Tensor, smoothing: float, wants_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Each row's negative log-likelihood and smoothed loss; the latter's gradient in place of the logits."""
        call = _LossesCall(*logits_CV.shape, smoothing, 0.0, wants_gradient)
        return self._losses("losses_of_rows", call, logits_CV, targets_C, len(logits_CV))

    def twin_losses_(
        self, logits_CV: Tensor, targets_C: Tensor, smoothing: float, weight: float, wants_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """The same of twins, which are neighbouring rows: their mean, and `weight` times their divergences."""
        assert len(logits_CV) % 2 == 0
        call = _LossesCall(*logits_CV.shape, smoothing, weight, wants_gradient)
        return self._losses("losses_of_twins", call, logits_CV, targets_C, len(logits_CV) // 2)

    def _losses(
        self, name: str, call: _LossesCall, logits_CV: Tensor, targets_C: Tensor, count: int
    ) -> tuple[Tensor, Tensor]:
        _check(logits_CV.dtype, logits_CV)
        _check(torch.int64, targets_C)
        nlls, losses = logits_CV.new_empty(2, count, dtype=torch.float32)
        self._call(f"{name}_{_SUFFIXES[logits_CV.dtype]}", call, logits_CV, targets_C, nlls, losses)
        return nlls, losses

    def _call(self, name: str, call: Structure, *tensors: Tensor | None) -> None:
        function: Callable[..., None] = getattr(self._library, name)
        pointers = [c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
        function(byref(call), *pointers)


def _attention_call(given: Projections, how: Attended) -> _AttentionCall:
    width = given.q_MD.shape[1]
    assert given.k_ND.stride() == given.v_ND.stride()
    assert given.q_MD.stride(1) == given.k_ND.stride(1) == 1
    assert given.q_MD.dtype == given.k_ND.dtype == given.v_ND.dtype
    assert len(how.queries) == len(how.keys)
    assert len(given.q_MD) >= len(how.queries.tokens)
    assert len(given.k_ND) == len(given.v_ND) >= len(how.keys.tokens)
    _check(torch.int64, how.queries.offsets, how.keys.offsets)
    return _AttentionCall(
        sentences=len(how.queries),
        heads=how.heads,
        width=width // how.heads,
        longest_query=how.queries.longest,
        longest_key=how.keys.longest,
        is_causal=how.is_causal,
        seed=how.drop.seed,
        dropped_levels=how.drop.dropped_levels,
        query_stride=given.q_MD.stride(0),
        key_stride=given.k_ND.stride(0),
        query_offsets=how.queries.offsets.data_ptr(),
        key_offsets=how.keys.offsets.data_ptr(),
    )


def _check(dtype: torch.dtype, *tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None:
            assert (tensor.dtype, tensor.device.type) == (dtype, "cpu")
            assert tensor.is_contiguous()
