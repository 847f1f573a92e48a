"""Marian models of transformers as our Transformer, and back: settings, names of tensors, vocabulary.

Their ids begin with the end of sentence and the unknown piece, and end with the padding, which also begins the target.
Ours begin with padding, end and beginning of sentence, and the unknown piece. Theirs has no padding beside the
beginning of the target, so one row is added for ours, whose logit is so low that it never counts; on the way back it is
left out. A model that began here has both rows, and keeps them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from echelon.data.paired_pieces import SPECIAL_PIECES, PairedModels, PiecesOfSide
from echelon.data.tokeniser import BOS, EOS, MOST_PIECES, PAD, UNK
from echelon.errors import UserError
from echelon.models.transformer import sinusoids
from echelon.pretrained.pretrained_folder import PretrainedFolder
from echelon.recipe.schema import Model
from echelon.shapes.transformer import TransformerShape, embedding_names, parameters

NEVER = -100.0
"""The logit of a piece that is none: e^-100 does not change a sum of float32."""
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_SUPPORTED = {
    "normalize_before": False,
    "add_final_layer_norm": False,
    "normalize_embedding": False,
    "add_bias_logits": False,
    "static_position_embeddings": True,
}
"""What these settings must be, if they are given."""
_LANGUAGE = re.compile("[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8}){0,3}")
"""What may stand in a file's name."""
_NORMS = {"attention_norm": "self_attn_layer_norm", "feed_forward_norm": "final_layer_norm"}
_LINEARS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.out_proj",),
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
}
"""Our linear layers, and theirs that they are made of."""


@dataclass(frozen=True)
class MarianModel:
    """A model in our terms."""

    model: Model
    tokeniser: PairedModels
    tensors: dict[str, Tensor]
    languages: tuple[str, str]


def read_marian(folder: PretrainedFolder, config: Mapping[str, Any]) -> MarianModel:
    """The model in a folder; UserError with the reason if it does not fit our Transformer."""
    size, model = _integer(config, "vocab_size", MOST_PIECES), _model(config)
    order = _order(folder, config, size)
    tokeniser, languages = _read_tokeniser(folder, order, size)
    tensors = folder.load_tensors()
    return MarianModel(model, tokeniser, _to_ours(tensors, model, order, folder), languages)


def _model(config: Mapping[str, Any]) -> Model:
    for key, wanted in _SUPPORTED.items():
        if key in config and config[key] is not None and config[key] != wanted:
            raise UserError(f"config.json: {key} = {config[key]} has no counterpart in Echelon's Transformer")
    if config.get("scale_embedding") is not True:
        raise UserError(
            "config.json: scale_embedding = false has no counterpart in Echelon's Transformer, which multiplies "
            "embeddings by the square root of their width"
        )
    for what in ("ffn_dim", "attention_heads"):
        if config.get(f"encoder_{what}") != config.get(f"decoder_{what}"):
            raise UserError(f"config.json: encoder and decoder differ in {what}; Echelon has one for both")
    if config.get("decoder_vocab_size") not in (None, config.get("vocab_size")):
        raise UserError(
            "config.json: source and target have vocabularies of different sizes; Echelon has one list of pieces"
        )
    activation = config.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(
            f"config.json: activation_function = {activation!r}; Echelon knows {', '.join(_ACTIVATIONS)}"
        )
    is_shared = config.get("share_encoder_decoder_embeddings", True) is True
    is_tied = config.get("tie_word_embeddings", True) is True
    settings: dict[str, Any] = {
        "d_model": _integer(config, "d_model"),
        "d_ff": _integer(config, "encoder_ffn_dim"),
        "heads": _integer(config, "encoder_attention_heads", 1024),
        "encoder_layers": _integer(config, "encoder_layers", 256),
        "decoder_layers": _integer(config, "decoder_layers", 256),
        "norm": "post",
        "tied": is_tied,
        "separate_source": is_tied and not is_shared,
        "attention_biases": True,
        "activation": _ACTIVATIONS[activation],
        "output_bias": True,
        **{key: _share(config, key) for key in ("dropout", "attention_dropout", "activation_dropout")},
    }
    if settings["d_model"] % settings["heads"] or settings["d_model"] % 2:
        raise UserError("config.json: d_model does not divide into attention heads, or is odd")
    return Model.model_validate(settings)


def _integer(config: Mapping[str, Any], key: str, most: int = 65536) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UserError(f"config.json: {key} = {str(value)[:40]!r} is not a number from 1 to {most:,}")
    return value


def _share(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key, 0.0)
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"config.json: {key} = {str(value)[:40]!r} is not a share")
    return float(value)


def _order(folder: PretrainedFolder, config: Mapping[str, Any], size: int) -> list[int | None]:
    """Their id of each of ours; None for the row that is added."""
    start, pad = config.get("decoder_start_token_id"), config.get("pad_token_id")
    special = {
        "decoder_start_token_id": start,
        "pad_token_id": pad,
        "eos_token_id": config.get("eos_token_id"),
        "<unk> in vocab.json": _read_vocabulary(folder).get("<unk>"),
    }
    for name, value in special.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
            raise UserError(f"{folder.path}: {name} = {str(value)[:40]!r} is no id of a piece")
    first = [None if pad == start else pad, special["eos_token_id"], start, special["<unk> in vocab.json"]]
    if len(set(first)) != len(first):
        raise UserError(f"{folder.path}: two of the special pieces have the same id: {special}")
    order = [*first, *(number for number in range(size) if number not in first)]
    if len(order) > MOST_PIECES:
        raise UserError(f"{folder.path}: {len(order):,} pieces; Echelon takes at most {MOST_PIECES:,}")
    return order


def _read_vocabulary(folder: PretrainedFolder) -> dict[str, Any]:
    vocabulary = folder.read_json("vocab.json")
    if not isinstance(vocabulary, dict):
        raise UserError(f"{folder.path / 'vocab.json'}: is not a table of pieces and their ids")
    return vocabulary


def _read_tokeniser(
    folder: PretrainedFolder, order: Sequence[int | None], size: int
) -> tuple[PairedModels, tuple[str, str]]:
    """Both SentencePiece models, and the languages if the folder names them."""
    settings = folder.read_json("tokenizer_config.json") if folder.has("tokenizer_config.json") else {}
    settings = settings if isinstance(settings, dict) else {}
    if settings.get("separate_vocabs"):
        raise UserError(f"{folder.path}: has a vocabulary for each language; Echelon has one list of pieces")
    by_id: dict[int, str] = {}
    for piece, number in _read_vocabulary(folder).items():
        if not isinstance(number, int) or number in by_id or not 0 <= number < size:
            raise UserError(f"{folder.path / 'vocab.json'}: {piece[:40]!r} has an id that is not its own")
        by_id[number] = piece
    others = [by_id.get(number or 0, f"<none {number}>") for number in order[len(SPECIAL_PIECES) :]]
    if twice := sorted({*others} & {*SPECIAL_PIECES}):
        raise UserError(
            f"{folder.path / 'vocab.json'}: has pieces that Echelon has already: {', '.join(twice)}"
        )
    pair = PairedModels(
        (*SPECIAL_PIECES, *others), *(folder.read(name) for name in ("source.spm", "target.spm"))
    )
    try:
        for model in (pair.source, pair.target):
            PiecesOfSide(pair.pieces, model)
    except RuntimeError as error:
        raise UserError(f"{folder.path}: has no pair of SentencePiece models: {error}") from None
    found = [settings.get(key) for key in ("source_lang", "target_lang")]
    source, target = (
        value if isinstance(value, str) and _LANGUAGE.fullmatch(value) else default
        for value, default in zip(found, ("en", "de"), strict=True)
    )
    return pair, (source, target)


def _to_ours(
    theirs: dict[str, Tensor], model: Model, order: Sequence[int | None], folder: PretrainedFolder
) -> dict[str, Tensor]:
    shape = _shape(model, len(order))
    left = dict(theirs)

    def take(*names: str) -> Tensor:
        for name in names:
            if name in left:
                return left.pop(name)
        raise UserError(f"{folder.weights}: lacks {names[0]}, which its config.json asks for")

    num_theirs = len(order) - (order[PAD] is None)
    shared = ("model.shared.weight", "lm_head.weight")
    sources = {
        "shared": (*shared, "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        "source": ("model.encoder.embed_tokens.weight", *shared),
        "target": ("model.decoder.embed_tokens.weight", *shared),
        "output": ("lm_head.weight",),
    }
    ours = {}
    for name in embedding_names(shape):
        found = next((left[other] for other in sources[name] if other in left), None)
        if found is None or tuple(found.shape) != (num_theirs, shape.d_model):
            raise UserError(f"{folder.weights}: has no {name} embedding of {num_theirs} x {shape.d_model}")
        ours[f"embeddings.{name}"] = _reordered(found, order, 0.0)
    for names in sources.values():
        for name in names:
            left.pop(name, None)
    bias = left.pop("final_logits_bias", torch.zeros(1, num_theirs))
    if bias.numel() != num_theirs:
        raise UserError(f"{folder.weights}: final_logits_bias has {bias.numel()} numbers, not {num_theirs}")
    ours["output_bias"] = _reordered(bias.flatten(), order, NEVER)
    sizes = {each.name: each.shape for each in parameters(shape)}
    for name, parts in _layers(shape):
        rows, *columns = sizes[name]
        tensors = [take(part) for part in parts]
        for part, tensor in zip(parts, tensors, strict=True):
            _require_size(folder, part, tensor, (rows // len(parts), *columns))
        ours[name] = torch.cat(tensors)
    for stack in ("encoder", "decoder"):
        _check_positions(left.pop(f"model.{stack}.embed_positions.weight", None), shape, folder)
    if left:
        raise UserError(f"{folder.weights}: has tensors that a Marian model has not: {sorted(left)[:3]}")
    return ours


def _shape(model: Model, vocabulary: int) -> TransformerShape:
    from echelon.recipe.sizes import transformer_shape

    return transformer_shape(model, vocabulary)


def _reordered(table: Tensor, order: Sequence[int | None], added: float) -> Tensor:
    rows = table[torch.tensor([number or 0 for number in order])]
    if order[PAD] is None:
        rows[PAD] = added
    return rows


def _layers(shape: TransformerShape) -> Iterator[tuple[str, list[str]]]:
    """Our name of every tensor of a layer, and theirs of its parts, one below the other."""
    for stack, count in (("encoder", shape.encoder_layers), ("decoder", shape.decoder_layers)):
        norms = _NORMS | ({"cross_attention_norm": "encoder_attn_layer_norm"} if stack == "decoder" else {})
        linears = {
            ours: theirs
            for ours, theirs in _LINEARS.items()
            if stack == "decoder" or not ours.startswith("cross_attention")
        }
        for index in range(count):
            ours_before, theirs_before = f"{stack}.layers.{index}", f"model.{stack}.layers.{index}"
            for kind in ("weight", "bias"):
                for ours, theirs in norms.items():
                    yield f"{ours_before}.{ours}.{kind}", [f"{theirs_before}.{theirs}.{kind}"]
                for ours, parts in linears.items():
                    if kind == "weight" or ours.startswith("feed_forward") or shape.attention_biases:
                        yield (
                            f"{ours_before}.{ours}.{kind}",
                            [f"{theirs_before}.{part}.{kind}" for part in parts],
                        )


def _require_size(folder: PretrainedFolder, name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    """UserError unless it is what the model needs: nothing is made of other sizes, which need not be in the file."""
    if not tensor.is_floating_point():
        raise UserError(f"{folder.weights}: {name} has whole numbers; weights are fractions")
    if tuple(tensor.shape) != wanted:
        has, needs = (" x ".join(map(str, size)) or "one number" for size in (tensor.shape, wanted))
        raise UserError(f"{folder.weights}: {name} is {has}, not {needs}")


def _check_positions(table: Tensor | None, shape: TransformerShape, folder: PretrainedFolder) -> None:
    """UserError if positions were saved that are not the usual sines and cosines."""
    if table is None:
        return
    is_table = table.ndim == 2 and table.shape[1] == shape.d_model  # its length is then bounded by the file's
    if not is_table or not torch.allclose(
        table, sinusoids(torch.arange(len(table)), shape.d_model), atol=2e-3
    ):
        raise UserError(f"{folder.weights}: has positions that are not the usual sines and cosines")


def require_exportable(shape: TransformerShape) -> None:
    """UserError if transformers has no model that computes the same."""
    if shape.norm != "post":
        raise UserError(
            'the model has norm = "pre", and Marian models of transformers have their norms behind each block; '
            'use another --format, or train with model.norm = "post"'
        )


def to_theirs(ours: Mapping[str, Tensor], shape: TransformerShape) -> dict[str, Tensor]:
    """The tensors of a Marian model in float32; biases that ours lacks are zeros."""
    order = torch.tensor(their_order(ours, shape))
    tables = {name: ours[f"embeddings.{name}"].float()[order] for name in embedding_names(shape)}
    names = {
        "shared": "model.shared.weight",
        "source": "model.encoder.embed_tokens.weight",
        "target": "model.decoder.embed_tokens.weight",
        "output": "lm_head.weight",
    }
    theirs = {names[name]: table.contiguous() for name, table in tables.items()}
    bias = ours["output_bias"].float() if shape.output_bias else torch.zeros(shape.vocabulary)
    theirs["final_logits_bias"] = bias[order][None].contiguous()
    for name, parts in _layers(shape):
        for part, tensor in zip(parts, ours[name].float().chunk(len(parts)), strict=True):
            theirs[part] = tensor.contiguous()
    if not shape.attention_biases:
        for name in [name for name in theirs if name.endswith("_proj.weight")]:
            theirs[name.removesuffix("weight") + "bias"] = torch.zeros(shape.d_model)
    return theirs


def their_order(ours: Mapping[str, Tensor], shape: TransformerShape) -> list[int]:
    """Our id of each of theirs: end of sentence, unknown, pieces, the beginning, and the padding if it is another."""
    is_added = shape.output_bias and float(ours["output_bias"][PAD]) == NEVER
    order = [EOS, UNK, *range(len(SPECIAL_PIECES), shape.vocabulary), BOS]
    return order if is_added else [*order, PAD]


def their_vocabulary(pieces: Sequence[str], order: Sequence[int]) -> str:
    """vocab.json."""
    listed = [pieces[index] for index in order]
    listed[-1] = SPECIAL_PIECES[PAD]
    return json.dumps({piece: number for number, piece in enumerate(listed)}, ensure_ascii=False, indent=1)


def their_config(model: Model, shape: TransformerShape, order: Sequence[int]) -> dict[str, Any]:
    """config.json."""
    size = len(order)
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": size,
        "decoder_vocab_size": size,
        "d_model": shape.d_model,
        "encoder_ffn_dim": shape.d_ff,
        "decoder_ffn_dim": shape.d_ff,
        "encoder_attention_heads": shape.heads,
        "decoder_attention_heads": shape.heads,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "max_position_embeddings": 1024,
        "activation_function": shape.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "share_encoder_decoder_embeddings": shape.tied is True,
        "tie_word_embeddings": shape.tied is not False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "pad_token_id": size - 1,
        "decoder_start_token_id": order.index(BOS),
        "init_std": math.sqrt(1 / shape.d_model),
        "dtype": "float32",
    }
