from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from echelon.models.loss import summed_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import (
    CrossAttention,
    DecoderLayer,
    Dropouts,
    EncoderLayer,
    Memory,
    Residual,
    SelfAttention,
    Transformer,
    linear,
    sinusoids,
)
from echelon.shapes.transformer import PRESETS, TransformerShape

SHAPE = TransformerShape(
    40, d_model=16, d_ff=24, heads=4, encoder_layers=2, decoder_layers=2, attention_biases=True
)
SOURCE = [[5, 6, 7, 8, 1], [9, 1], [1]]
TARGET = [[10, 11, 1], [12, 13, 14, 15, 16, 1], [17, 1]]


def make_model(shape: TransformerShape = SHAPE, dropouts: Dropouts | None = None) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(shape, dropouts)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # biases start at zero, where an error in them would not be seen
            nn.init.normal_(parameter, std=0.1)
    return model


def textbook_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, is_causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(width)) v for one sentence, head by head."""
    mixed = []
    for q_h, k_h, v_h in zip(q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1), strict=True):
        scores = q_h @ k_h.T / math.sqrt(q_h.shape[1])
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        mixed.append(scores.softmax(1) @ v_h)
    return torch.cat(mixed, 1)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [[5, 2, 1], [3, 3]])
def test_self_attention_equals_the_textbook(lengths: list[int], is_causal: bool) -> None:
    attention = SelfAttention(SHAPE, Dropouts(), is_causal)
    x = torch.randn(sum(lengths), SHAPE.d_model)

    packed = attention(x, Sequences.of([[4] * length for length in lengths]))

    for alone, result in zip(torch.split(x, lengths), torch.split(packed, lengths), strict=True):
        q, k, v = attention.qkv(alone).chunk(3, 1)
        expected = attention.output(textbook_attention(q, k, v, SHAPE.heads, is_causal))
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("sources", [[5, 2, 1], [3, 3, 3]])
def test_cross_attention_equals_the_textbook(sources: list[int]) -> None:
    targets = [2, 4, 1]
    attention = CrossAttention(SHAPE, Dropouts())
    x, hidden = torch.randn(sum(targets), SHAPE.d_model), torch.randn(sum(sources), SHAPE.d_model)
    memory = Memory(hidden, Sequences.of([[4] * length for length in sources]))

    packed = attention(x, Sequences.of([[4] * length for length in targets]), memory)

    parts = zip(
        torch.split(x, targets), torch.split(hidden, sources), torch.split(packed, targets), strict=True
    )
    for alone, source, result in parts:
        k, v = attention.kv(source).chunk(2, 1)
        mixed = textbook_attention(attention.query(alone), k, v, SHAPE.heads, is_causal=False)
        torch.testing.assert_close(result, attention.output(mixed))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False])
def test_packed_batch_equals_each_sentence_alone(norm: Literal["pre", "post"], tied: bool) -> None:
    shape = TransformerShape(40, **PRESETS["tiny"], norm=norm, tied=tied)
    model = make_model(shape)

    together, gradients = run(model, SOURCE, TARGET)
    alone = [run(model, [source], [target]) for source, target in zip(SOURCE, TARGET, strict=True)]

    torch.testing.assert_close(together, torch.cat([hidden for hidden, _ in alone]))
    for name, gradient in gradients.items():
        summed = torch.stack([each[name] for _, each in alone]).sum(0)
        torch.testing.assert_close(gradient, summed, rtol=1e-4, atol=1e-5, msg=f"gradient of {name} differs")


def run(
    model: Transformer, source: list[list[int]], target: list[list[int]]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states, and the gradients of the loss."""
    wanted = Sequences.of(target)
    hidden = model(Sequences.of(source), shift_right(wanted, bos=2))
    loss = summed_loss(hidden, model.embeddings.output_VD, wanted.tokens, smoothing=0.1).smoothed
    names, parameters = zip(*model.named_parameters(), strict=True)
    return hidden, dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_way_of_gpus_reads_a_source_as_the_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = make_model(), Sequences.of(SOURCE)
    memory = model.encode(source)
    cross, target = CrossAttention(SHAPE, Dropouts()), Sequences.of(TARGET)
    x_MD = torch.randn(len(target.tokens), SHAPE.d_model)
    padded = cross(x_MD, target, memory)

    monkeypatch.setattr("echelon.models.transformer.takes_packed", lambda *_: True)

    torch.testing.assert_close(model.encode(source).hidden_ND, memory.hidden_ND)
    torch.testing.assert_close(cross(x_MD, target, memory), padded)


def test_a_target_token_does_not_see_those_after_it() -> None:
    model = make_model().eval()
    memory = model.encode(Sequences.of([SOURCE[0]]))

    first = model.decode(Sequences.of([[2, 10, 11, 12]]), memory)
    second = model.decode(Sequences.of([[2, 10, 30, 31]]), memory)

    torch.testing.assert_close(first[:2], second[:2])
    assert not torch.allclose(first[2:], second[2:])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layers_equal_those_of_torch(
    norm: Literal["pre", "post"], activation: Literal["relu", "gelu"]
) -> None:
    shape = TransformerShape(100, **PRESETS["small"], norm=norm, attention_biases=True, activation=activation)
    options = {
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": norm == "pre",
        "activation": activation,
    }
    torch.manual_seed(1)
    theirs = nn.TransformerDecoderLayer(shape.d_model, shape.heads, shape.d_ff, **options)  # type: ignore[arg-type]
    theirs_encoder = nn.TransformerEncoderLayer(shape.d_model, shape.heads, shape.d_ff, **options)  # type: ignore[arg-type]
    ours, ours_encoder = DecoderLayer(shape, Dropouts()), EncoderLayer(shape, Dropouts())
    copy_decoder_layer(theirs, ours)
    copy_encoder_layer(theirs_encoder, ours_encoder)
    source, target = Sequences.of([[4] * 9, [4] * 5]), Sequences.of([[4] * 3, [4] * 8])
    x_source, x_target = torch.randn(14, shape.d_model), torch.randn(11, shape.d_model)

    source_mask = source.pad(torch.ones(14)) == 0
    memory = theirs_encoder(source.pad(x_source), src_key_padding_mask=source_mask)
    causal = torch.ones(8, 8).triu(1).bool()
    expected = theirs(target.pad(x_target), memory, tgt_mask=causal, memory_key_padding_mask=source_mask)
    result = ours(x_target, target, Memory(ours_encoder(x_source, source), source))

    torch.testing.assert_close(result, target.unpad(expected), rtol=1e-4, atol=1e-5)


def copy_encoder_layer(theirs: nn.TransformerEncoderLayer, ours: EncoderLayer) -> None:
    randomise(theirs)
    copy_self_attention(theirs.self_attn, ours.attention)
    copy(theirs.linear1, ours.feed_forward.inner)
    copy(theirs.linear2, ours.feed_forward.outer)
    copy(theirs.norm1, ours.attention_norm)
    copy(theirs.norm2, ours.feed_forward_norm)


def copy_decoder_layer(theirs: nn.TransformerDecoderLayer, ours: DecoderLayer) -> None:
    randomise(theirs)
    copy_self_attention(theirs.self_attn, ours.attention)
    copy_cross_attention(theirs.multihead_attn, ours.cross_attention)
    copy(theirs.linear1, ours.feed_forward.inner)
    copy(theirs.linear2, ours.feed_forward.outer)
    copy(theirs.norm1, ours.attention_norm)
    copy(theirs.norm2, ours.cross_attention_norm)
    copy(theirs.norm3, ours.feed_forward_norm)


def randomise(module: nn.Module) -> None:
    """Norms start as ones and biases as zeros, which would hide that they are mixed up."""
    for name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.1)


def copy_self_attention(theirs: nn.MultiheadAttention, ours: SelfAttention) -> None:
    ours.qkv.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    copy(theirs.out_proj, ours.output)


def copy_cross_attention(theirs: nn.MultiheadAttention, ours: CrossAttention) -> None:
    d = theirs.embed_dim
    ours.query.load_state_dict({"weight": theirs.in_proj_weight[:d], "bias": theirs.in_proj_bias[:d]})
    ours.kv.load_state_dict({"weight": theirs.in_proj_weight[d:], "bias": theirs.in_proj_bias[d:]})
    copy(theirs.out_proj, ours.output)


def copy(theirs: nn.Module, ours: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())


def test_embeddings_are_scaled_and_placed() -> None:
    model = make_model()
    tokens = Sequences.of([[5, 6], [7]])

    embedded = model.embed(tokens.tokens, model.embeddings.source_VD, model.places(tokens))

    for row, (token, place) in enumerate([(5, 0), (6, 1), (7, 0)]):
        angles = [place / 10_000 ** (2 * i / SHAPE.d_model) for i in range(SHAPE.d_model // 2)]
        position = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        expected = model.embeddings.source_VD[token] * SHAPE.d_model**0.5 + position
        torch.testing.assert_close(embedded[row], expected)


def test_positions_far_out_are_still_exact() -> None:
    far = sinusoids(torch.tensor([4000]), 8)[0]

    angles = [4000 / 10_000 ** (2 * i / 8) for i in range(4)]
    torch.testing.assert_close(far[:4], torch.tensor([math.sin(a) for a in angles]), rtol=0, atol=1e-3)


def test_initial_weights_have_the_intended_spread() -> None:
    torch.manual_seed(0)
    merged = linear(256, 256, parts=3)
    model = Transformer(TransformerShape(2000, **PRESETS["small"]))

    limit = math.sqrt(6 / (256 + 256))
    for part in merged.weight.chunk(3):
        assert part.abs().max().item() == pytest.approx(limit, rel=0.01)
        assert part.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02)
    assert not merged.bias.any()
    assert model.embeddings.source_VD.std().item() == pytest.approx(256**-0.5, rel=0.02)


def test_tied_embeddings_are_one_matrix_and_untied_three() -> None:
    tied = Transformer(SHAPE).embeddings
    untied = Transformer(TransformerShape(40, **PRESETS["tiny"], tied=False)).embeddings

    assert tied.source_VD is tied.target_VD is tied.output_VD
    assert len({id(table) for table in (untied.source_VD, untied.target_VD, untied.output_VD)}) == 3


def test_the_source_alone_can_have_an_embedding_of_its_own() -> None:
    embeddings = Transformer(replace(SHAPE, tied="target")).embeddings

    assert embeddings.source_VD is not embeddings.target_VD is embeddings.output_VD


def test_the_output_bias_is_added_to_the_logits_and_is_not_trained() -> None:
    model = make_model(replace(SHAPE, output_bias=True))
    assert model.output_bias is not None
    model.output_bias.copy_(torch.arange(40.0))
    hidden = torch.randn(3, 16)

    expected = hidden @ model.embeddings.output_VD.T + torch.arange(40.0)

    torch.testing.assert_close(model.logits(hidden), expected)
    assert "output_bias" in model.state_dict()
    assert "output_bias" not in dict(model.named_parameters())


@pytest.mark.parametrize("dropout", ["residual", "attention", "activation"])
def test_each_dropout_acts_while_training_only(dropout: str) -> None:
    model = make_model(dropouts=Dropouts(**{dropout: 0.5}))
    inputs = Sequences.of(SOURCE), shift_right(Sequences.of(TARGET), bos=2)

    assert not torch.equal(model(*inputs), model(*inputs))
    assert torch.equal(model.eval()(*inputs), model(*inputs))
    torch.testing.assert_close(model(*inputs), make_model().eval()(*inputs))


def test_residual_dropout_zeroes_its_share_and_scales_the_rest() -> None:
    model = make_model(TransformerShape(40, **PRESETS["base"]), Dropouts(residual=0.3))
    tokens = Sequences.of([[4] * 500])
    places = torch.zeros(500, 512)

    embedded = model.embed(tokens.tokens, model.embeddings.source_VD, places)
    without = model.eval().embed(tokens.tokens, model.embeddings.source_VD, places)

    is_kept = embedded != 0
    assert is_kept.float().mean().item() == pytest.approx(0.7, abs=0.005)
    torch.testing.assert_close(embedded[is_kept], without[is_kept] / 0.7, rtol=1e-4, atol=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_residual_dropout_acts_on_the_output_of_each_block(norm: Literal["pre", "post"]) -> None:
    residual = Residual(replace(SHAPE, norm=norm), Dropouts(residual=0.3))
    x_ND = torch.ones(200, 500)

    out_ND = residual(x_ND, nn.Identity(), torch.ones_like)

    assert (out_ND == 1).float().mean().item() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(out_ND[out_ND != 1].mean().item(), 1 + 1 / 0.7, rtol=1e-4, atol=0)


def test_attention_dropout_keeps_the_mean() -> None:
    attention = SelfAttention(SHAPE, Dropouts(attention=0.3), is_causal=False)
    x, tokens = torch.randn(6, SHAPE.d_model), Sequences.of([[4] * 4, [4] * 2])

    with torch.no_grad():
        mean = torch.stack([attention(x, tokens) for _ in range(2000)]).mean(0)

    torch.testing.assert_close(mean, attention.eval()(x, tokens), rtol=0, atol=0.06)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("is_training", [True, False])
def test_autocast_is_finite_and_close(
    dtype: torch.dtype, norm: Literal["pre", "post"], is_training: bool
) -> None:
    dropouts = Dropouts(0.1, 0.1, 0.1)  # in training, so that attention takes its other way
    shape = TransformerShape(40, **PRESETS["tiny"], norm=norm)
    model = make_model(shape, dropouts).train(is_training)

    torch.manual_seed(3)
    exact, exact_gradients = run(model, SOURCE, TARGET)
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=dtype):
        hidden, gradients = run(model, SOURCE, TARGET)

    assert all(gradient.isfinite().all() for gradient in gradients.values())
    if not is_training:  # dropout draws other numbers in another dtype
        torch.testing.assert_close(hidden, exact, rtol=0, atol=0.06)
        for name, gradient in gradients.items():
            # a ReLU on the other side of zero makes a visible difference in so few tokens
            error = (gradient - exact_gradients[name]).norm() / exact_gradients[name].norm()
            assert error < 0.15, f"gradient of {name} is off by {error:.1%}"


def test_a_model_in_bfloat16_works() -> None:
    model = make_model().bfloat16().eval()

    hidden = model(Sequences.of(SOURCE), shift_right(Sequences.of(TARGET), bos=2))

    assert hidden.dtype == torch.bfloat16
    assert model.logits(hidden).dtype == torch.float32
    assert hidden.isfinite().all()


def test_masks_and_indices_are_made_once() -> None:
    def count_kernels(layers: int) -> int:
        model = make_model(replace(SHAPE, encoder_layers=layers, decoder_layers=layers))
        with torch.profiler.profile() as profile:
            model(Sequences.of(SOURCE), shift_right(Sequences.of(TARGET), bos=2))
        return sum(
            event.name in ("aten::repeat_interleave", "aten::lt", "aten::arange")
            for event in profile.events()
        )

    assert count_kernels(layers=1) == count_kernels(layers=4)
