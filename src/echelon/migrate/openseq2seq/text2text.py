"""Text2Text with a Transformer as a translation recipe."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from echelon.migrate.openseq2seq.base_params import Draft
from echelon.migrate.openseq2seq.settings import Settings

TOKENS_A_PAIR = 32
"""What a sentence pair of WMT takes in pieces, near enough: batches were counted in pairs, ours are in tokens."""
NO_LIMIT = 1_000_000
CLEAN = {
    "max_words": NO_LIMIT,
    "max_ratio": float(NO_LIMIT),
    "drop_duplicates": False,
    "drop_identical": False,
}
"""OpenSeq2Seq looked at nothing but max_length."""

ENCODER_REASONS = {
    "remove_padding": "is always so: tokens are packed",
    "norm_params": "has no equivalent: norms are layer norms in float32",
    "regularizer": "is left out",
}
DECODER_REASONS = {
    **ENCODER_REASONS,
    "extra_decode_length": "is left out: the limit follows from the source's length",
}
MODEL_SILENT = {"pad_embeddings_2_eight", "EOS_ID", "GO_SYMBOL", "END_SYMBOL", "PAD_SYMBOL", "GO_ID"}
LOSS_SILENT = {"batch_size", "tgt_vocab_size", "offset_target_by_one"}
DATA_REASONS = {
    "shuffle_buffer_size": "is left out: every epoch is shuffled as a whole",
    "map_parallel_calls": "is left out: data are prepared once",
    "prefetch_buffer_size": "is left out: data are mapped from disk",
    "pad_lengths_to_eight": "is left out: tokens are packed",
}
DATA_SILENT = {
    "shuffle",
    "repeat",
    "pad_vocab_to_eight",
    "special_tokens_already_in_vocab",
    "use_start_token",
    "use_targets",
    "num_cpus",
}


def convert_text(modes: dict[str, Settings], draft: Draft, slots: int) -> None:
    """Data, model and batch of a Text2Text configuration, from its settings for train, eval and infer."""
    train = modes["train"]
    _convert_model(train, draft)
    _convert_data(modes, draft)
    pairs = train.count("batch_size_per_gpu", 32)
    slot_tokens = max(pairs * TOKENS_A_PAIR, draft.table["data"].get("max_tokens", 256))
    draft.put("train", batch_tokens=slot_tokens * slots)
    draft.notes.append(
        train.note(
            "batch_size_per_gpu",
            f"counts pairs: {pairs} became {slot_tokens:,} tokens for each of {slots} slots, at {TOKENS_A_PAIR} a pair",
        )
    )


def _convert_model(settings: Settings, draft: Draft) -> None:
    encoder, decoder = settings.inner("encoder_params"), settings.inner("decoder_params")

    def same(key: str, default: Any) -> Any:
        value, other = encoder.number(key, default), decoder.number(key, default)
        if value != other:
            raise decoder.error(key, f"is {other}, but the encoder has {value}; both must be alike")
        return value

    draft.put(
        "model",
        preset="base",
        d_model=same("hidden_size", 512),
        d_ff=same("filter_size", 2048),
        heads=same("num_heads", 8),
        encoder_layers=encoder.number("encoder_layers", 6),
        decoder_layers=decoder.number("num_hidden_layers", 6),
        norm="pre",
        dropout=float(same("layer_postprocess_dropout", 0.1)),
        attention_dropout=float(same("attention_dropout", 0.0)),
        activation_dropout=float(same("relu_dropout", 0.0)),
    )
    beam, penalty = decoder.number("beam_size"), decoder.number("alpha")
    draft.put("evaluate", beam=beam, length_penalty=None if penalty is None else float(penalty))
    loss = settings.inner("loss_params")
    draft.put("train", label_smoothing=float(loss.number("label_smoothing", 0.0)))
    draft.notes += [
        *encoder.left_over(ENCODER_REASONS, MODEL_SILENT),
        *decoder.left_over(DECODER_REASONS, MODEL_SILENT),
        *loss.left_over({}, LOSS_SILENT),
    ]


def _convert_data(modes: dict[str, Settings], draft: Draft) -> None:
    layers = {mode: _layer(settings, mode) for mode, settings in modes.items()}
    train = layers["train"]
    if "eval" not in layers:
        raise modes["train"].error("eval_params", "is missing; a recipe needs a validation set")
    tokeniser = _tokeniser(train, draft)
    draft.put("data", tokeniser=tokeniser)
    draft.table["data"]["clean"] = dict(CLEAN)
    _convert_lengths(layers, draft)
    draft.table["data"]["train"] = [_corpus(train, tokeniser, draft)]
    _convert_languages(train, draft)
    draft.table["data"]["valid"] = _corpus(layers["eval"], tokeniser, draft)
    if "infer" in layers:
        why = _why_no_references(layers["infer"])
        if why is None:
            draft.table["data"]["test"] = _corpus(layers["infer"], tokeniser, draft)
        else:
            draft.notes.append(f"{why}: without references there is no data.test")
    for layer in layers.values():
        for key in ("src_vocab_file", "tgt_vocab_file"):
            layer.get(key)
        if layer.get("delimiter", " ") != " ":
            raise layer.error("delimiter", "is not a space; put spaces between the pieces")
    if train.get("shuffle", True) is False:
        draft.notes.append(train.note("shuffle", "has no equivalent: every epoch is shuffled"))
    notes = [note for layer in layers.values() for note in layer.left_over(DATA_REASONS, DATA_SILENT)]
    draft.notes += dict.fromkeys(notes)


def _convert_lengths(layers: dict[str, Settings], draft: Draft) -> None:
    """What becomes of longer lines, which OpenSeq2Seq cut in every mode."""
    train, evaluated, infer = (layers.get(mode) for mode in ("train", "eval", "infer"))
    assert train is not None
    assert evaluated is not None
    draft.put("data", max_tokens=train.number("max_length"))
    draft.notes.append(
        train.note(
            "max_length",
            "is data.max_tokens: pairs with a longer side are left out; OpenSeq2Seq cut them; so are pairs with "
            "an empty side. What else data.clean drops is turned off, as nothing was cleaned there",
        )
    )
    if evaluated.number("max_length") is not None:
        draft.notes.append(
            evaluated.note(
                "max_length", "is left out for eval: lines are split as evaluate.split_above says, not cut"
            )
        )
    longest = None if infer is None else infer.number("max_length")
    draft.put("evaluate", split_above=longest)
    if infer is not None and longest is not None:
        draft.notes.append(
            infer.note(
                "max_length",
                "is evaluate.split_above for infer: longer lines are split by `translate`; OpenSeq2Seq cut them",
            )
        )
    else:
        draft.notes.append(
            "infer_params have no max_length: `translate` splits lines of more pieces than data.max_tokens; set "
            "evaluate.split_above to have longer ones translated whole"
        )


def _convert_languages(train: Settings, draft: Draft) -> None:
    """The languages that the names of the training files tell."""
    found = _languages(train.text("source_file") or "", train.text("target_file") or "")
    source, target = found or ("en", "de")
    draft.put("data", source_language=source, target_language=target)
    says = "as the names of the training files have them" if found else "as nothing else is known"
    draft.notes.append(
        f"the configuration names no languages: {source} to {target} is assumed, {says}; set data.source_language and "
        "data.target_language if that is wrong"
    )


def _languages(source: str, target: str) -> tuple[str, str] | None:
    """What distinguishes train.en.tok from train.de.tok, if that is a two-letter code in each."""
    parts = [PurePosixPath(path).name.split(".") for path in (source, target)]
    if len(parts[0]) != len(parts[1]):
        return None
    differing = [pair for pair in zip(*parts, strict=True) if pair[0] != pair[1]]
    if len(differing) != 1 or not all(re.fullmatch("[a-z]{2}", code) for code in differing[0]):
        return None
    return differing[0]


def _why_no_references(infer: Settings) -> str | None:
    """Why the text of infer_params cannot be scored; None if it can."""
    source, target = infer.text("source_file"), infer.text("target_file")
    if infer.get("use_targets", True) is False:
        return infer.note("use_targets", "is False for infer")
    if target is None:
        return infer.note("target_file", "is missing for infer")
    return infer.note("target_file", "is the source again") if source == target else None


def _layer(settings: Settings, mode: str) -> Settings:
    name = settings.name("data_layer")
    if name != "ParallelTextDataLayer":
        raise settings.error(
            "data_layer", f"of {mode} is {name or 'missing'}; only ParallelTextDataLayer is converted"
        )
    return settings.inner("data_layer_params")


def _tokeniser(layer: Settings, draft: Draft) -> str | None:
    """The SentencePiece model beside the vocabulary; None if the vocabulary is not SentencePiece's."""
    source, target = layer.text("src_vocab_file"), layer.text("tgt_vocab_file")
    if source != target:
        raise layer.error(
            "tgt_vocab_file", "is not src_vocab_file: vocabularies of two languages have no equivalent"
        )
    if source is None or not source.endswith(".vocab"):
        draft.notes.append(
            layer.note(
                "src_vocab_file",
                "is not SentencePiece's: a new vocabulary is learnt, and files must hold plain text",
            )
        )
        return None
    return f"{source.removesuffix('.vocab')}.model"


def _corpus(layer: Settings, tokeniser: str | None, draft: Draft) -> dict[str, Any]:
    corpus: dict[str, Any] = {}
    for ours, theirs in (("source", "source_file"), ("target", "target_file")):
        path = layer.text(theirs)
        if path is None:
            raise layer.error(theirs, "is missing")
        if "[" in path:
            draft.notes.append(layer.note(theirs, f"is {path}: put the real path there"))
        corpus[ours] = path
    if tokeniser is not None:
        corpus["pieces"] = True
    return corpus
