"""A Transformer as two ONNX models: the encoder, and the decoder one token at a time with its cache.

B  sentences    K  hypotheses of a sentence    S  longest source    T  target tokens so far
L  decoder layers    H  heads    E  width of a head    D  d_model    V  vocabulary

    encoder: tokens [B, S], lengths [B]
          -> memory_keys, memory_values [L, B, H, S, E], memory_bias [B, 1, 1, S]
    decoder: tokens [B, K], position [1], memory_*, keys, values [L, B, K, H, T, E]
          -> log_probabilities [B, K, V], new_keys, new_values [L, B, K, H, T + 1, E]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from echelon.export.onnx_graph import Graph
from echelon.models.incremental import decoder_layers
from echelon.models.transformer import CrossAttention, EncoderLayer, FeedForward, SelfAttention, Transformer

BuildBlock = Callable[[str], str]


def write_onnx(model: Transformer, encoder: Path, decoder: Path) -> None:
    """Write both models; the weights are float32."""
    _encoder_graph(model).write(encoder)
    _decoder_graph(model).write(decoder)


def _encoder_graph(model: Transformer) -> Graph:
    shape, graph = model.shape, Graph("encoder")
    tokens_BS = graph.input("tokens", np.int64, ["B", "S"])
    lengths_B = graph.input("lengths", np.int64, ["B"])
    longest = graph.op("Gather", graph.op("Shape", tokens_BS), graph.constant(1))
    places_S = graph.op("Range", graph.constant(0), longest, graph.constant(1))
    is_padding_BS = graph.op("GreaterOrEqual", places_S, graph.unsqueeze(lengths_B, 1))
    bias_BS = graph.op("Where", is_padding_BS, graph.constant(-math.inf), graph.constant(0.0))
    bias_B11S = graph.unsqueeze(bias_BS, 1, 2)
    x_BSD = _embed(graph, tokens_BS, places_S, model.embeddings.source_VD)
    for layer in model.encoder.layers:
        assert isinstance(layer, EncoderLayer)

        def attend(y_BSD: str, attention: SelfAttention = layer.attention) -> str:
            q, k, v = _heads(graph, _linear(graph, y_BSD, attention.qkv), 3, shape.heads)
            return _linear(graph, _join(graph, _attend(graph, q, k, v, bias_B11S)), attention.output)

        x_BSD = _residual(graph, model, x_BSD, layer.attention_norm, attend)
        x_BSD = _residual(
            graph,
            model,
            x_BSD,
            layer.feed_forward_norm,
            _feed_forward(graph, layer.feed_forward, shape.activation),
        )
    x_BSD = _norm(graph, x_BSD, model.encoder.norm)
    pairs = [
        _heads(graph, _linear(graph, x_BSD, layer.cross_attention.kv), 2, shape.heads)
        for layer in decoder_layers(model)
    ]
    memory = ["L", "B", "H", "S", "E"]
    graph.output("memory_keys", graph.stack([keys for keys, _ in pairs]), np.float32, memory)
    graph.output("memory_values", graph.stack([values for _, values in pairs]), np.float32, memory)
    graph.output("memory_bias", bias_B11S, np.float32, ["B", 1, 1, "S"])
    return graph


def _decoder_graph(model: Transformer) -> Graph:
    shape, graph = model.shape, Graph("decoder")
    tokens_BK = graph.input("tokens", np.int64, ["B", "K"])
    place_1 = graph.input("position", np.int64, [1])
    memory = ["L", "B", "H", "S", "E"]
    memory_keys = graph.unstack(graph.input("memory_keys", np.float32, memory), shape.decoder_layers)
    memory_values = graph.unstack(graph.input("memory_values", np.float32, memory), shape.decoder_layers)
    bias_B11S = graph.input("memory_bias", np.float32, ["B", 1, 1, "S"])
    cache = ["L", "B", "K", "H", "T", "E"]
    keys = graph.unstack(graph.input("keys", np.float32, cache), shape.decoder_layers)
    values = graph.unstack(graph.input("values", np.float32, cache), shape.decoder_layers)
    x_BKD = _embed(graph, tokens_BK, place_1, model.embeddings.target_VD)
    for index, layer in enumerate(decoder_layers(model)):

        def attend_target(y_BKD: str, attention: SelfAttention = layer.attention, index: int = index) -> str:
            qkv = graph.reshape(_linear(graph, y_BKD, attention.qkv), [0, 0, 3, shape.heads, -1])
            q, k, v = (graph.unsqueeze(part, 3) for part in graph.unstack(qkv, 3, axis=2))
            keys[index] = graph.op("Concat", keys[index], k, axis=3)
            values[index] = graph.op("Concat", values[index], v, axis=3)
            mixed = _attend(graph, q, keys[index], values[index], rank=5)
            return _linear(graph, graph.reshape(mixed, [0, 0, -1]), attention.output)

        def attend_source(
            y_BKD: str, attention: CrossAttention = layer.cross_attention, index: int = index
        ) -> str:
            (q,) = _heads(graph, _linear(graph, y_BKD, attention.query), 1, shape.heads)
            mixed = _attend(graph, q, memory_keys[index], memory_values[index], bias_B11S)
            return _linear(graph, _join(graph, mixed), attention.output)

        x_BKD = _residual(graph, model, x_BKD, layer.attention_norm, attend_target)
        x_BKD = _residual(graph, model, x_BKD, layer.cross_attention_norm, attend_source)
        x_BKD = _residual(
            graph,
            model,
            x_BKD,
            layer.feed_forward_norm,
            _feed_forward(graph, layer.feed_forward, shape.activation),
        )
    hidden_BKD = _norm(graph, x_BKD, model.decoder.norm)
    logits_BKV = graph.op("MatMul", hidden_BKD, graph.weight(_array(model.embeddings.output_VD).T))
    if model.output_bias is not None:
        logits_BKV = graph.op("Add", logits_BKV, graph.weight(_array(model.output_bias)))
    graph.output(
        "log_probabilities", graph.op("LogSoftmax", logits_BKV, axis=-1), np.float32, ["B", "K", "V"]
    )
    graph.output("new_keys", graph.stack(keys), np.float32, cache)
    graph.output("new_values", graph.stack(values), np.float32, cache)
    return graph


def _embed(graph: Graph, tokens: str, places: str, table: Tensor) -> str:
    d_model = table.shape[1]
    rates = np.exp(np.arange(d_model // 2, dtype=np.float32) * np.float32(-2 * math.log(10_000) / d_model))
    angles = graph.op("Mul", graph.unsqueeze(graph.cast(places, np.float32), 1), graph.constant(rates))
    positions = graph.op("Concat", graph.op("Sin", angles), graph.op("Cos", angles), axis=1)
    embedded = graph.op("Gather", graph.weight(_array(table)), tokens)
    return graph.op("Add", graph.op("Mul", embedded, graph.constant(math.sqrt(d_model))), positions)


def _residual(graph: Graph, model: Transformer, x: str, norm: nn.LayerNorm, block: BuildBlock) -> str:
    if model.shape.norm == "pre":
        return graph.op("Add", x, block(_norm(graph, x, norm)))
    return _norm(graph, graph.op("Add", x, block(x)), norm)


def _feed_forward(graph: Graph, block: FeedForward, activation: str) -> BuildBlock:
    return lambda y: _linear(graph, graph.activate(_linear(graph, y, block.inner), activation), block.outer)


def _norm(graph: Graph, x: str, norm: nn.Module) -> str:
    if not isinstance(norm, nn.LayerNorm):
        return x
    scale, bias = graph.weight(_array(norm.weight)), graph.weight(_array(norm.bias))
    return graph.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=norm.eps)


def _linear(graph: Graph, x: str, linear: nn.Linear) -> str:
    product = graph.op("MatMul", x, graph.weight(_array(linear.weight).T))
    return product if linear.bias is None else graph.op("Add", product, graph.weight(_array(linear.bias)))


def _heads(graph: Graph, x: str, parts: int, heads: int) -> list[str]:
    """[B, Q, parts * D] as `parts` tensors [B, H, Q, E]."""
    split = graph.unstack(graph.reshape(x, [0, 0, parts, heads, -1]), parts, axis=2)
    return [graph.op("Transpose", part, perm=[0, 2, 1, 3]) for part in split]


def _join(graph: Graph, x_BHQE: str) -> str:
    return graph.reshape(graph.op("Transpose", x_BHQE, perm=[0, 2, 1, 3]), [0, 0, -1])


def _attend(graph: Graph, q: str, k: str, v: str, bias: str | None = None, *, rank: int = 4) -> str:
    """softmax(q k^T / sqrt(E) + bias) v over the last two axes; the others are alike or broadcast."""
    width = graph.op("Gather", graph.op("Shape", q), graph.constant(-1))
    scale = graph.op("Sqrt", graph.cast(width, np.float32))
    scores = graph.op("Div", graph.op("MatMul", q, graph.transpose_last(k, rank)), scale)
    if bias is not None:
        scores = graph.op("Add", scores, bias)
    return graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().float().cpu().numpy()
