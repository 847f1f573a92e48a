"""Scaled dot-product attention on rectangles.

B  sentences    H  heads    Q  queries    K  keys    E  width of a head    D  d_model = H * E    L  tokens
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.models.dropout import Dropout


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
        bias = torch.zeros(1, device=q_BHQE.device)  # not a number: this makes the sum float32
    scores_BHQK = torch.add(bias, q_BHQE @ k_BHKE.transpose(2, 3), alpha=q_BHQE.shape[3] ** -0.5)
    weights_BHQK = scores_BHQK.softmax(dim=3).to(v_BHKE.dtype)
    return (weights_BHQK if dropout is None else dropout(weights_BHQK)) @ v_BHKE


def attend_fused(
    q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, bias: Tensor | None, dropout: Dropout | None
) -> Tensor:
    share = dropout.share if dropout is not None and dropout.training else 0.0
    mask = None if bias is None else bias.to(q_BHQE.dtype)
    return F.scaled_dot_product_attention(q_BHQE, k_BHKE, v_BHKE, attn_mask=mask, dropout_p=share)


def split_heads(x_BLD: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """`parts` tensors [B, H, L, E] out of one [B, L, parts * D]."""
    x_BLPHE = x_BLD.view(*x_BLD.shape[:2], parts, heads, -1)
    return x_BLPHE.permute(2, 0, 3, 1, 4).contiguous().unbind(0)


def join_heads(x_BHLE: Tensor) -> Tensor:
    return x_BHLE.transpose(1, 2).flatten(2)
