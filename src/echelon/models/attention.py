"""Scaled dot-product attention, on rectangles and on packed tokens.

B  sentences    H  heads    Q  queries    K  keys    E  width of a head    D  d_model = H * E    L  tokens
N  source tokens, M  target tokens of all sentences, packed
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.models.dropout import Dropout
from echelon.models.sequences import Sequences

FLASH_WIDTH = 8
"""Torch's flash attention, which alone is causal on packed tokens, wants heads of a multiple of this width."""


def attend(
    q_BHQE: Tensor,
    k_BHKE: Tensor,
    v_BHKE: Tensor,
    bias: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(E) + bias) v, the softmax in float32; the bias is -inf where a key is not seen."""
    # torch's fused attention is made for GPUs. With the short sentences of a CPU's batches it takes 2 (with
    # dropout) to 8 times (without) as long as the two products.
    way = attend_plainly if q_BHQE.device.type == "cpu" else attend_fused
    return way(q_BHQE, k_BHKE, v_BHKE, bias, dropout)


def attend_plainly(
    q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, bias: Tensor | None, dropout: Dropout | None
) -> Tensor:
    if bias is None:
        bias = torch.zeros(1, device=q_BHQE.device)  # not a plain number: this makes the sum float32
    scores_BHQK = torch.add(bias, q_BHQE @ k_BHKE.transpose(2, 3), alpha=q_BHQE.shape[3] ** -0.5)
    weights_BHQK = scores_BHQK.softmax(dim=3).to(v_BHKE.dtype)
    return (weights_BHQK if dropout is None else dropout(weights_BHQK)) @ v_BHKE


def attend_fused(
    q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, bias: Tensor | None, dropout: Dropout | None
) -> Tensor:
    mask = None if bias is None else bias.to(q_BHQE.dtype)
    return F.scaled_dot_product_attention(q_BHQE, k_BHKE, v_BHKE, attn_mask=mask, dropout_p=_share(dropout))


def takes_packed(x_ND: Tensor, heads: int) -> bool:
    """Whether attention on this device is at its best without padding, and can do without for heads of this width."""
    return x_ND.is_cuda and x_ND.shape[1] // heads % FLASH_WIDTH == 0


def attend_packed(
    q_MHE: Tensor,
    k_NHE: Tensor,
    v_NHE: Tensor,
    *,
    queries: Sequences,
    keys: Sequences,
    is_causal: bool,
    dropout: Dropout,
) -> Tensor:
    """Attention within sentences without a padded rectangle: torch's flash attention for variable lengths.

    torch has it in two forms. Nested tensors take dropout and float32 too; varlen_attn() takes neither.
    """
    mixed_BHQE = F.scaled_dot_product_attention(
        _nested(q_MHE, queries),
        _nested(k_NHE, keys),
        _nested(v_NHE, keys),
        dropout_p=_share(dropout),
        is_causal=is_causal,
    )
    return mixed_BHQE.transpose(1, 2).values()


def _nested(x_NHE: Tensor, sequences: Sequences) -> Tensor:
    """The view [B, H, length of each, E]; the bounds are given as asking the GPU for them would wait for it."""
    nested_BLHE = torch.nested.nested_tensor_from_jagged(
        x_NHE.contiguous(), sequences.offsets, min_seqlen=min(sequences.lengths), max_seqlen=sequences.longest
    )
    return nested_BLHE.transpose(1, 2)


def _share(dropout: Dropout | None) -> float:
    return dropout.share if dropout is not None and dropout.training else 0.0


def split_heads(x_BLD: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """`parts` tensors [B, H, L, E] out of one [B, L, parts * D]."""
    x_BLPHE = x_BLD.view(*x_BLD.shape[:2], parts, heads, -1)
    return x_BLPHE.permute(2, 0, 3, 1, 4).contiguous().unbind(0)


def join_heads(x_BHLE: Tensor) -> Tensor:
    return x_BHLE.transpose(1, 2).flatten(2)
