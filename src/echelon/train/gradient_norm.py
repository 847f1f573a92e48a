"""The norm of the gradient, block by block: the same bits however the blocks are spread over the workers.

A float sum depends on the order of adding. So each block of the flat buffer has a norm of its own, and the norm of all
is that of the blocks' norms, in the buffer's order. Each stretch that the optimiser updates in one way begins a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK_NUMBERS = 4096


def cut_blocks(stretches: Sequence[slice]) -> list[slice]:
    """The blocks of the flat buffer; only the last one of a stretch is shorter than the others."""
    return [
        slice(start, min(start + BLOCK_NUMBERS, stretch.stop))
        for stretch in stretches
        for start in range(stretch.start, stretch.stop, BLOCK_NUMBERS)
    ]


def block_norms(gradients: Tensor, spans: Sequence[slice]) -> Tensor:
    """The norm of each block of these spans, which begin where a block does."""
    norms = [norm for span in spans for norm in _norms(gradients[span])]
    return torch.cat(norms) if norms else gradients.new_empty(0)


def total_norm(norms: Tensor) -> float:
    """The norm of the whole gradient from those of all of its blocks."""
    return float(torch.linalg.vector_norm(norms.double()))


def _norms(gradient: Tensor) -> list[Tensor]:
    num_whole = len(gradient) // BLOCK_NUMBERS * BLOCK_NUMBERS
    rows, rest = gradient[:num_whole].view(-1, BLOCK_NUMBERS), gradient[num_whole:]
    if gradient.is_cuda:  # there the number of rows shows in the bits of each
        norms = [torch.stack(torch._foreach_norm(list(rows)))] if len(rows) else []
    else:
        norms = [torch.linalg.vector_norm(rows, dim=1)]
    return [*norms, torch.linalg.vector_norm(rest).view(1)] if len(rest) else norms
