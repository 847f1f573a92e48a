"""A Transformer in Hugging Face's layout, as the Marian model that computes the same."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch

from echelon.data.paired_pieces import PairedModels
from echelon.data.tokeniser import Tokeniser
from echelon.models.transformer import Transformer
from echelon.pretrained.marian import (
    read_marian,
    require_exportable,
    their_config,
    their_order,
    their_vocabulary,
    to_theirs,
)
from echelon.pretrained.pretrained_folder import CONFIG, WEIGHTS, PretrainedFolder
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import read_file, write_atomically, write_json
from echelon.tasks.translation import build_transformer
from echelon.train.weights import Weights, load_weights


def write_huggingface(
    model: Transformer, recipe: TranslationRecipe, tokeniser: Tokeniser, tokeniser_file: Path, folder: Path
) -> None:
    """Write what MarianMTModel and MarianTokenizer of transformers read; UserError if they cannot have this model."""
    require_exportable(model.shape)
    tensors, order = to_theirs(model.state_dict(), model.shape), their_order(model.state_dict(), model.shape)
    safetensors.torch.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = their_config(recipe.model, model.shape, order)
    write_json(folder / CONFIG, config)
    special = ("eos_token_id", "forced_eos_token_id", "pad_token_id", "decoder_start_token_id")
    write_json(
        folder / "generation_config.json",
        {
            **{key: config[key] for key in special},
            "bad_words_ids": [[config["pad_token_id"]]],
            "num_beams": recipe.evaluate.beam,
            "max_length": 512,
        },
    )
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": recipe.data.source_language,
        "target_lang": recipe.data.target_language,
        "separate_vocabs": False,
        "model_max_length": 512,
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_atomically(folder / "vocab.json", their_vocabulary(tokeniser.pieces(range(tokeniser.size)), order))
    content = read_file(tokeniser_file)
    models = (content, content)
    if tokeniser.is_paired:
        pair = PairedModels.from_json(content)
        models = (pair.source, pair.target)
    for name, spm in zip(("source.spm", "target.spm"), models, strict=True):
        write_atomically(folder / name, spm)


def read_huggingface(path: Path, recipe: TranslationRecipe) -> Transformer:
    """The written model, read back; its ids are ours."""
    folder = PretrainedFolder(path)
    found = read_marian(folder, folder.read_config())
    model = build_transformer(recipe.model_copy(update={"model": found.model}), len(found.tokeniser.pieces))
    load_weights(model, Weights(found.tensors, 0, WEIGHTS))
    return model.eval()
