"""Hugging Face's `generate` on the weights of one of our models; runs in an environment of its own, without Echelon.

Reads JSON lines {"batches": [[[ids], ...], ...]} from stdin and answers {"outputs": [[ids], ...], "seconds": s}, by the
clock or, with "cpu" as third word, of the processor. M2M100 is Hugging Face's pre-norm Transformer with sinusoidal
positions; its positions are replaced by ours.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import M2M100Config, M2M100ForConditionalGeneration


def build(folder: Path) -> Any:
    shape = json.loads((folder / "shape.json").read_text())
    config = M2M100Config(
        vocab_size=shape["vocabulary"],
        d_model=shape["d_model"],
        encoder_layers=shape["encoder_layers"],
        decoder_layers=shape["decoder_layers"],
        encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=shape["d_ff"],
        decoder_ffn_dim=shape["d_ff"],
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        decoder_start_token_id=2,
    )
    model = M2M100ForConditionalGeneration(config).eval()
    missing, unknown = model.load_state_dict(
        rename(load_file(folder / "model.safetensors"), shape), strict=False
    )
    assert not unknown, unknown
    assert all(name.endswith(("lm_head.weight", "embed_tokens.weight")) for name in missing), missing
    model.tie_weights()
    for stack in (model.model.encoder, model.model.decoder):
        table = stack.embed_positions.weights
        half = torch.arange(shape["d_model"] // 2, dtype=torch.float32) * (
            -2 * math.log(10_000) / shape["d_model"]
        )
        angles = torch.arange(len(table) - 1, dtype=torch.float32)[:, None] * half.exp()
        table[1:] = torch.cat([angles.sin(), angles.cos()], dim=1)
    return model


def rename(ours: dict[str, torch.Tensor], shape: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Our tensors under Hugging Face's names; attention without biases gets zeros."""
    theirs = {"model.shared.weight": ours["embeddings.shared"]}
    for stack in ("encoder", "decoder"):
        for part in ("weight", "bias"):
            theirs[f"model.{stack}.layer_norm.{part}"] = ours[f"{stack}.norm.{part}"]
        for index in range(shape[f"{stack}_layers"]):
            mine, its = f"{stack}.layers.{index}", f"model.{stack}.layers.{index}"
            add_attention(theirs, ours, f"{mine}.attention", f"{its}.self_attn")
            pairs = {"attention_norm": "self_attn_layer_norm", "feed_forward.inner": "fc1"}
            pairs |= {"feed_forward.outer": "fc2", "feed_forward_norm": "final_layer_norm"}
            if stack == "decoder":
                add_attention(theirs, ours, f"{mine}.cross_attention", f"{its}.encoder_attn")
                pairs["cross_attention_norm"] = "encoder_attn_layer_norm"
            for name, other in pairs.items():
                for part in ("weight", "bias"):
                    theirs[f"{its}.{other}.{part}"] = ours[f"{mine}.{name}.{part}"]
    return theirs


def add_attention(
    theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor], mine: str, its: str
) -> None:
    if f"{mine}.qkv.weight" in ours:
        parts = ours[f"{mine}.qkv.weight"].chunk(3)
    else:
        parts = (ours[f"{mine}.query.weight"], *ours[f"{mine}.kv.weight"].chunk(2))
    for name, weight in zip(("q", "k", "v", "out"), (*parts, ours[f"{mine}.output.weight"]), strict=True):
        theirs[f"{its}.{name}_proj.weight"] = weight
        theirs[f"{its}.{name}_proj.bias"] = torch.zeros(len(weight))


@torch.inference_mode()
def generate(model: Any, batch: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, batch))
    tokens = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in batch])
    found = model.generate(
        input_ids=tokens,
        attention_mask=(tokens != 0).long(),
        num_beams=4,
        max_length=int(1.5 * longest + 20),
        length_penalty=0.6,
        do_sample=False,
    )
    return [[token for token in row if token > 3] for row in found.tolist()]


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    model = build(Path(sys.argv[1]))
    clock = time.process_time if sys.argv[3] == "cpu" else time.perf_counter
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    for line in sys.stdin:
        started = clock()
        outputs = [ids for batch in json.loads(line)["batches"] for ids in generate(model, batch)]
        sys.stdout.write(json.dumps({"outputs": outputs, "seconds": clock() - started}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
