"""Where the decoder looks: the cross-attention of one layer, its heads averaged.

M  target tokens    N  source tokens    D  d_model    H  heads    E  width of a head
"""

from __future__ import annotations

import torch
from torch import Tensor

from echelon.models.attention import split_heads
from echelon.models.incremental import decoder_layers
from echelon.models.sequences import Sequences
from echelon.models.transformer import CrossAttention, Memory, Transformer


def alignment_layer(layers: int) -> int:
    """The layer whose attention follows the words best: the second to last, if there are two."""
    return max(0, layers - 2)


@torch.no_grad()
def align(model: Transformer, source: list[int], target: list[int], bos: int = 2) -> Tensor:
    """How much each token of `target` looked at each source token, [M, N]; rows sum to 1."""
    device = model.embeddings.source_VD.device
    memory = model.encode(Sequences.of([source], device))
    read = Sequences.of([[bos, *target]], device)
    x_MD = model.embed(read.tokens, model.embeddings.target_VD, model.places(read))
    wanted = alignment_layer(model.shape.decoder_layers)
    weights_MN = x_MD.new_empty(0)
    for layer in decoder_layers(model)[: wanted + 1]:

        def look(y_MD: Tensor, attention: CrossAttention = layer.cross_attention) -> Tensor:
            nonlocal weights_MN
            weights_MN = _weights(attention, y_MD, memory)
            out_MD: Tensor = attention(y_MD, read, memory)
            return out_MD

        x_MD = layer.combine(x_MD, lambda y_MD, own=layer.attention: own(y_MD, read), look)  # type: ignore[misc]
    return weights_MN[: len(target)].float()


def _weights(attention: CrossAttention, x_MD: Tensor, memory: Memory) -> Tensor:
    (q_1HME,) = split_heads(attention.query(x_MD)[None], 1, attention.heads)
    k_1HNE, _ = split_heads(attention.kv(memory.hidden_ND)[None], 2, attention.heads)
    scores_1HMN = (q_1HME @ k_1HNE.transpose(2, 3)).float() * q_1HME.shape[3] ** -0.5
    weights_MN: Tensor = scores_1HMN.softmax(3).mean((0, 1))
    return weights_MN
