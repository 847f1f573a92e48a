"""What a Transformer is before it exists: its parameters, bytes and FLOPs, without torch.

`echelon.models.transformer` builds the module; the tests hold the two equal, name by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from typing import Literal, TypedDict

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class TransformerShape:
    """Everything that decides which parameters a Transformer has."""

    vocabulary: int
    """Number of subwords, special ones included; source and target share them."""
    d_model: int
    """Width of the residual stream."""
    d_ff: int
    """Width inside the feed-forward blocks."""
    heads: int
    """Attention heads; each is `d_model / heads` wide."""
    encoder_layers: int
    decoder_layers: int
    norm: Literal["pre", "post"] = "pre"
    """Where LayerNorm stands: before each block, with a last one at the end of each stack, or after."""
    tied: bool | Literal["target"] = True
    """Source embedding, target embedding and output layer are one matrix, not three; "target": the last two are one."""
    attention_biases: bool = False
    """Whether the projections of the attention blocks have biases; feed-forward layers always do."""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """Inside the feed-forward blocks."""
    output_bias: bool = False
    """Whether the logits have a bias; it is not trained, so it does not count as a parameter."""

    def __post_init__(self) -> None:
        if min(self.vocabulary, self.d_model, self.d_ff, self.heads) < 1:
            raise ValueError("vocabulary, d_model, d_ff and heads must be at least 1")
        if min(self.encoder_layers, self.decoder_layers) < 1:
            raise ValueError("encoder_layers and decoder_layers must be at least 1")
        if self.d_model % self.heads:
            raise ValueError(f"d_model = {self.d_model} does not divide into {self.heads} heads")
        if self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} is odd; positions need a sine and a cosine half")


class Sizes(TypedDict):
    """The part of a TransformerShape that has a well-known name."""

    d_model: int
    d_ff: int
    heads: int
    encoder_layers: int
    decoder_layers: int


PRESETS: dict[str, Sizes] = {
    "tiny": {"d_model": 128, "d_ff": 256, "heads": 4, "encoder_layers": 4, "decoder_layers": 4},
    "small": {"d_model": 256, "d_ff": 1024, "heads": 4, "encoder_layers": 3, "decoder_layers": 3},
    "base": {"d_model": 512, "d_ff": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "encoder_layers": 6, "decoder_layers": 6},
}
"""Use as `TransformerShape(vocabulary=8000, **PRESETS["small"])`."""


@dataclass(frozen=True)
class ParameterShape:
    """One parameter tensor."""

    name: str
    """Exactly as in the module's `named_parameters()`."""
    shape: tuple[int, ...]
    layer: str
    """The part of the model it belongs to, e.g. `encoder.layers.0`; the same words as in `forward_flops`."""
    kind: Literal["embedding", "matrix", "bias", "norm"]

    @property
    def count(self) -> int:
        return prod(self.shape)


def parameters(shape: TransformerShape) -> list[ParameterShape]:
    """Every parameter tensor, in the order of the module's `named_parameters()`."""
    result = _embeddings(shape)
    for index in range(shape.encoder_layers):
        layer = f"encoder.layers.{index}"
        result += _self_attention(shape, layer) + _feed_forward(shape, layer)
    result += _final_norm(shape, "encoder")
    for index in range(shape.decoder_layers):
        layer = f"decoder.layers.{index}"
        result += _self_attention(shape, layer) + _cross_attention(shape, layer) + _feed_forward(shape, layer)
    return result + _final_norm(shape, "decoder")


def parameter_sizes(shape: TransformerShape) -> dict[str, tuple[int, ...]]:
    """The size of every parameter by its name."""
    return {parameter.name: parameter.shape for parameter in parameters(shape)}


def parameter_count(shape: TransformerShape) -> int:
    """Number of trained numbers."""
    return sum(parameter.count for parameter in parameters(shape))


def _embeddings(shape: TransformerShape) -> list[ParameterShape]:
    size = (shape.vocabulary, shape.d_model)
    names = embedding_names(shape)
    return [ParameterShape(f"embeddings.{name}", size, "embeddings", "embedding") for name in names]


def embedding_names(shape: TransformerShape) -> list[str]:
    """The matrices for source, target and output, in this order; one that serves for several is named once."""
    match shape.tied:
        case "target":
            return ["source", "target"]
        case True:
            return ["shared"]
        case False:
            return ["source", "target", "output"]


def _self_attention(shape: TransformerShape, layer: str) -> list[ParameterShape]:
    d, biases = shape.d_model, shape.attention_biases
    return [
        *_norm(d, layer, "attention_norm"),
        *_linear(layer, "attention.qkv", (3 * d, d), biases),
        *_linear(layer, "attention.output", (d, d), biases),
    ]


def _cross_attention(shape: TransformerShape, layer: str) -> list[ParameterShape]:
    d, biases = shape.d_model, shape.attention_biases
    return [
        *_norm(d, layer, "cross_attention_norm"),
        *_linear(layer, "cross_attention.query", (d, d), biases),
        *_linear(layer, "cross_attention.kv", (2 * d, d), biases),
        *_linear(layer, "cross_attention.output", (d, d), biases),
    ]


def _feed_forward(shape: TransformerShape, layer: str) -> list[ParameterShape]:
    d, d_ff = shape.d_model, shape.d_ff
    return [
        *_norm(d, layer, "feed_forward_norm"),
        *_linear(layer, "feed_forward.inner", (d_ff, d), True),
        *_linear(layer, "feed_forward.outer", (d, d_ff), True),
    ]


def _final_norm(shape: TransformerShape, stack: str) -> list[ParameterShape]:
    return _norm(shape.d_model, stack, "norm") if shape.norm == "pre" else []


def _linear(layer: str, name: str, size: tuple[int, int], has_bias: bool) -> list[ParameterShape]:
    matrix = ParameterShape(f"{layer}.{name}.weight", size, layer, "matrix")
    bias = ParameterShape(f"{layer}.{name}.bias", size[:1], layer, "bias")
    return [matrix, bias] if has_bias else [matrix]


def _norm(width: int, layer: str, name: str) -> list[ParameterShape]:
    return [ParameterShape(f"{layer}.{name}.{part}", (width,), layer, "norm") for part in ("weight", "bias")]


@dataclass(frozen=True)
class TokenCounts:
    """What the FLOPs of a batch depend on; s and t are a sentence pair's source and target lengths."""

    source: int
    """Sum of s over the batch."""
    target: int
    """Sum of t."""
    source_squares: int
    """Sum of s * s."""
    target_squares: int
    """Sum of t * t."""
    products: int
    """Sum of s * t."""

    @classmethod
    def of(cls, lengths: Iterable[tuple[int, int]]) -> TokenCounts:
        """Count sentence pairs given as (source length, target length)."""
        pairs = list(lengths)
        return cls(
            source=sum(s for s, _ in pairs),
            target=sum(t for _, t in pairs),
            source_squares=sum(s * s for s, _ in pairs),
            target_squares=sum(t * t for _, t in pairs),
            products=sum(s * t for s, t in pairs),
        )

    def times(self, factor: int) -> TokenCounts:
        """The counts of a batch that holds every pair `factor` times."""
        return TokenCounts(**{name: factor * count for name, count in asdict(self).items()})


def forward_flops(shape: TransformerShape, tokens: TokenCounts) -> dict[str, int]:
    """FLOPs of one forward pass by layer, on real tokens: padding is not useful work.

    A multiply-add is 2 FLOPs; only matrix products count (embedding look-ups, norms, softmax are zero).
    With d = d_model, f = d_ff, V = vocabulary, and S, T the source and target tokens of the batch:

        encoder layer   2 S (4 d^2 + 2 d f)  +  4 d sum(s^2)
        decoder layer   2 T (6 d^2 + 2 d f)  +  2 S (2 d^2)  +  2 d sum(t^2)  +  4 d sum(s t)
        output          2 T d V

    Attention is two products (scores and mixing) of 2 d per query and key; the decoder's causal attention is
    counted as half the square.
    """
    d, ff = shape.d_model, 2 * shape.d_model * shape.d_ff
    encoder_layer = 2 * tokens.source * (4 * d * d + ff) + 4 * d * tokens.source_squares
    decoder_layer = (
        2 * tokens.target * (6 * d * d + ff)
        + 2 * tokens.source * 2 * d * d
        + 2 * d * tokens.target_squares
        + 4 * d * tokens.products
    )
    return {
        **{f"encoder.layers.{index}": encoder_layer for index in range(shape.encoder_layers)},
        **{f"decoder.layers.{index}": decoder_layer for index in range(shape.decoder_layers)},
        "output": 2 * tokens.target * d * shape.vocabulary,
    }


def training_flops(shape: TransformerShape, tokens: TokenCounts) -> int:
    """FLOPs of forward and backward: 3 x forward, as each product has two gradients of its own size."""
    return 3 * sum(forward_flops(shape, tokens).values())
