"""A model for decoding whose matrices are stored in a low precision: autocast would convert them at every step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from echelon.models.transformer import Transformer


@torch.no_grad()
def in_low_precision(model: Transformer, dtype: torch.dtype) -> Transformer:
    """A copy to be used under autocast, with the same results to the bit; embeddings and norms stay as they are."""
    device = model.embeddings.source_VD.device
    with torch.device("meta"):
        low = Transformer(replace(model.shape, tied=False)).eval()
    low.to_empty(device=device)
    tensors = {
        name: tensor for name, tensor in model.state_dict().items() if not name.startswith("embeddings.")
    }
    embeddings = model.embeddings
    tables = {"source": embeddings.source_VD, "target": embeddings.target_VD, "output": embeddings.output_VD}
    low.load_state_dict({**tensors, **{f"embeddings.{name}": table for name, table in tables.items()}})
    for module in low.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)
    low.embeddings.output = nn.Parameter(low.embeddings.output_VD.to(dtype))
    return low.requires_grad_(False)
