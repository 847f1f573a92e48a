"""Marian models compute in Echelon what they compute in transformers, and go back bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from echelon import Decoding, Translator
from echelon.commands.convert import convert_model, format_model
from echelon.data.tokeniser import BOS, EOS, PAD, UNK
from echelon.errors import EchelonError, UserError
from echelon.export.export import export_run
from echelon.export.export_folder import ExportOptions
from echelon.inference.torch_models import build_model
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Transformer
from echelon.pretrained.conversion import as_run, convert_pretrained
from echelon.pretrained.pretrained_folder import PretrainedFolder
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.train.weights import choose_weights
from tests.data.test_paired_pieces import SOURCE, TARGET
from tests.pretrained.marian_folders import CONFIGURATIONS, ORDER, PAIR, SIZE, make_marian, transformers
from tests.small_run import make_small_run


def loaded(run: RunFolder) -> Transformer:
    return build_model(load_translation_recipe(run.recipe), SIZE + 1, choose_weights(run, "last"))


@torch.no_grad()
def our_logits(model: Transformer, source: list[int], target: list[int]) -> torch.Tensor:
    """By their ids, from their ids."""
    read, wanted = (Sequences.of([[ORDER[index] for index in ids]]) for ids in (source, target))
    return model.logits(model(read, shift_right(wanted, BOS)))[:, ORDER]


@torch.no_grad()
def their_logits(model: Any, source: list[int], target: list[int]) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).logits[0]
    return found


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_agree_and_the_way_back_changes_no_bit(tmp_path: Path, name: str) -> None:
    theirs = make_marian(tmp_path / "theirs", **CONFIGURATIONS[name])
    run = convert_pretrained(tmp_path / "theirs", tmp_path / "run").run
    sentences = [2, 9, 5, 17, 30, 0], [4, 21, 8, 0]

    expected = their_logits(theirs, *sentences)
    ours = our_logits(loaded(run), *sentences)
    result = export_run(run, ExportOptions("huggingface", tmp_path / "back"))
    back = transformers.MarianMTModel.from_pretrained(tmp_path / "back").eval()

    assert expected.abs().max() > 3
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    assert result["check"]["largest_difference"] == 0
    assert torch.equal(their_logits(back, *sentences), expected)
    before, after = (
        safetensors.torch.load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back")
    )
    if name == "output apart, swish":  # transformers saves a matrix that nothing uses
        del before["model.shared.weight"]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    for file in ("source.spm", "target.spm"):
        assert (tmp_path / "back" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    assert json.loads((tmp_path / "back" / "vocab.json").read_text()) == json.loads(
        (tmp_path / "theirs" / "vocab.json").read_text()
    )


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_converted_run_translates_as_transformers_does(tmp_path: Path) -> None:
    theirs = make_marian(tmp_path / "theirs", activation_function="swish")
    run = convert_pretrained(tmp_path / "theirs", tmp_path / "run").run
    tokeniser = transformers.MarianTokenizer.from_pretrained(tmp_path / "theirs")
    ours = Translator.load(run.path)

    assert ours._tokeniser.encode(SOURCE) == [
        [ORDER[index] for index in ids[:-1]] for ids in tokeniser(SOURCE)["input_ids"]
    ]
    assert ours._tokeniser.for_target.encode(TARGET) == [
        [ORDER[index] for index in ids[:-1]] for ids in tokeniser(text_target=TARGET)["input_ids"]
    ]
    for line in SOURCE:
        made = theirs.generate(
            **tokeniser([line], return_tensors="pt"),
            num_beams=1,
            do_sample=False,
            max_new_tokens=8,
            bad_words_ids=[[SIZE - 1], [1]],  # as here: neither the padding nor the unknown piece
            forced_eos_token_id=None,
        )
        found = ours.translate(line, Decoding(beam=1, max_length=8))
        expected = [ORDER[index] for index in made[0].tolist()[1:]]
        assert found.text == ours._tokeniser.decode([expected])[0]
        assert found.text


def test_a_translator_of_our_own_goes_to_transformers(tmp_path: Path) -> None:
    run = make_small_run(tmp_path / "run", "model.norm=post")
    (run.path / "data.json").unlink(missing_ok=True)

    export_run(run, ExportOptions("huggingface", tmp_path / "out"))

    recipe = load_translation_recipe(run.recipe)
    vocabulary = len(json.loads((tmp_path / "out" / "vocab.json").read_text()))
    ours = build_model(recipe, vocabulary, choose_weights(run, "best"))
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "out").eval()
    order = [EOS, UNK, *range(4, vocabulary), BOS, PAD]
    source, target = [2, 9, 5, 17, 30, 0], [4, 21, 8, 0]
    with torch.no_grad():
        read, wanted = (Sequences.of([[order[index] for index in ids]]) for ids in (source, target))
        logits = ours.logits(ours(read, shift_right(wanted, BOS)))[:, order]
    torch.testing.assert_close(logits, their_logits(theirs, source, target), atol=1e-4, rtol=0)


def test_a_model_that_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    run = make_small_run(tmp_path / "run", "model.norm=pre")
    with pytest.raises(UserError, match="norms behind each block"):
        export_run(run, ExportOptions("huggingface", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale_embedding": False}, "scale_embedding = false has no counterpart"),
        ({"normalize_before": True}, "normalize_before = True has no counterpart"),
        ({"activation_function": "gelu_new"}, "activation_function = 'gelu_new'"),
        ({"encoder_ffn_dim": 64}, "differ in ffn_dim"),
        ({"decoder_vocab_size": SIZE + 1}, "vocabularies of different sizes"),
        ({"d_model": 10**9}, "d_model = '1000000000' is not a number from 1 to 65,536"),
        ({"d_model": 64}, "has no shared embedding of"),
        ({"encoder_layers": 10**6}, "encoder_layers = '1000000'"),
        ({"encoder_layers": 3}, "lacks model.encoder.layers.2"),
        ({"encoder_layers": 1}, "has tensors that a Marian model has not"),
        ({"pad_token_id": SIZE}, "pad_token_id = .* is no id of a piece"),
        ({"pad_token_id": 0, "decoder_start_token_id": 0}, "have the same id"),
        ({"model_type": "bart"}, "of the architecture 'bart'"),
        ({"activation_function": ["relu"]}, r"activation_function = \['relu'\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    make_marian(tmp_path / "theirs", activation_function="swish")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))

    with pytest.raises(UserError, match=says):
        convert_pretrained(tmp_path / "theirs", tmp_path / "run")

    assert list(tmp_path.iterdir()) == [tmp_path / "theirs"]


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        # Shapes with a zero have no bytes in the file, whatever else they have.
        ("encoder.embed_positions", torch.empty(2**60, 0), "not the usual sines and cosines"),
        ("encoder.embed_positions", torch.tensor(1.0), "not the usual sines and cosines"),
        ("encoder.layers.0.self_attn.k_proj", torch.ones(3, 5), r"is 3 x 5, not 32 x 32"),
        ("encoder.layers.0.self_attn.q_proj", torch.tensor(1.0), r"is one number, not 32 x 32"),
        ("encoder.layers.0.self_attn.q_proj", torch.empty(2**60, 0), r"is 1152921504606846976 x 0, not"),
        ("decoder.layers.0.final_layer_norm", torch.ones(3), r"is 3, not 32"),
        ("decoder.layers.0.fc1", torch.ones(48, 32, dtype=torch.int64), "whole numbers"),
    ],
)
def test_a_tensor_of_another_size_is_refused_before_anything_is_made_of_it(
    tmp_path: Path, name: str, tensor: Tensor, says: str
) -> None:
    make_marian(tmp_path / "theirs", activation_function="swish")
    file = tmp_path / "theirs" / "model.safetensors"
    safetensors.torch.save_file({**safetensors.torch.load_file(file), f"model.{name}.weight": tensor}, file)

    with pytest.raises(UserError, match=says):
        convert_pretrained(tmp_path / "theirs", tmp_path / "run")

    assert list(tmp_path.iterdir()) == [tmp_path / "theirs"]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("source.spm", b"", "has no pair of SentencePiece models"),
        ("target.spm", b"garbage", "has no pair of SentencePiece models"),
        ("vocab.json", {"<s>": 5}, "vocab.json: has pieces that Echelon has already: <s>"),
    ],
)
def test_a_vocabulary_that_no_text_could_be_cut_by_is_refused(
    tmp_path: Path, file: str, content: Any, says: str
) -> None:
    make_marian(tmp_path / "theirs", activation_function="swish")
    path = tmp_path / "theirs" / file
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        known = json.loads(path.read_text())
        kept = {piece: number for piece, number in known.items() if number not in content.values()}
        path.write_text(json.dumps({**kept, **content}))

    with pytest.raises(EchelonError, match=says):
        convert_pretrained(tmp_path / "theirs", tmp_path / "run")

    assert list(tmp_path.iterdir()) == [tmp_path / "theirs"]


def test_what_is_no_language_does_not_become_a_part_of_a_path(tmp_path: Path) -> None:
    make_marian(tmp_path / "theirs", activation_function="swish")
    settings = tmp_path / "theirs" / "tokenizer_config.json"
    settings.write_text(json.dumps({"source_lang": "/../../etc/hosts", "target_lang": "pt-BR"}))

    recipe = convert_pretrained(tmp_path / "theirs", tmp_path / "run").recipe

    assert isinstance(recipe, TranslationRecipe)
    (corpus,) = recipe.data.train
    assert (corpus.source, corpus.target) == ("train.en", "train.pt-BR")


def test_a_folder_is_converted_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    make_marian(tmp_path / "theirs", activation_function="swish")

    first, second = as_run(tmp_path / "theirs"), as_run(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.json").write_text(
        json.dumps(
            {
                piece: number
                for number, piece in enumerate(reversed(["<pad>", *PAIR.pieces[4:], "<unk>", "</s>"]))
            }
        )
    )

    assert first == second
    assert as_run(tmp_path / "theirs") != first
    assert PretrainedFolder(tmp_path / "theirs").has("vocab.json")


def test_the_verb_says_what_was_made_and_how_to_go_on(tmp_path: Path) -> None:
    make_marian(tmp_path / "theirs", activation_function="swish")

    result = convert_model(tmp_path / "theirs", tmp_path / "run")

    assert result["task"] == "translation"
    assert result["numbers"] == sum(
        tensor.numel() for tensor in choose_weights(RunFolder(tmp_path / "run"), "last").tensors.values()
    )
    assert f"`echelon translate {tmp_path / 'run'}` uses it" in format_model(result)
    with pytest.raises(UserError, match="already exists"):
        convert_model(tmp_path / "theirs", tmp_path / "run")
    with pytest.raises(UserError, match="edge runner reads one SentencePiece model"):
        export_run(RunFolder(tmp_path / "run"), ExportOptions("onnx", tmp_path / "out", edge=True))
