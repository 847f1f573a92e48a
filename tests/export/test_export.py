"""Every format gives what PyTorch gives; a damaged or wrong export is never used."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from echelon import Decoding, Translator
from echelon.data.tokeniser import Tokeniser
from echelon.errors import PackageError, UserError
from echelon.export import export
from echelon.export.ctranslate2_format import write_ctranslate2
from echelon.export.edge_runner import Runner
from echelon.export.export import export_run
from echelon.export.export_folder import ExportOptions
from echelon.files.checkpoint_layout import Best
from echelon.inference.exported_model import PackageFolder
from echelon.models.transformer import Transformer
from echelon.recipe.loading import load_translation_recipe
from echelon.runfolder import RunFolder
from echelon.tasks.translation import build_transformer
from tests.models.test_beam_search import make_model
from tests.small_run import keep_model, make_small_run, sentences

LINES = [*sentences(12, seed=8), "", "One\x07 two. " * 9]
VARIANTS = ("model.norm=post", "model.tied=false", "model.attention_biases=true")


@pytest.mark.parametrize(
    "variant", ["model.norm=pre", *(pytest.param(variant, marks=pytest.mark.slow) for variant in VARIANTS)]
)
@pytest.mark.parametrize("format_", ["safetensors", "ctranslate2", "onnx"])
def test_an_export_computes_what_pytorch_computes(tmp_path: Path, format_: Any, variant: str) -> None:
    run = make_small_run(tmp_path / "run", variant)
    told: list[tuple[float, str]] = []
    options = ExportOptions(format_, tmp_path / "out", show=lambda share, doing: told.append((share, doing)))
    result = export_run(run, options)
    assert result["check"]["largest_difference"] < 1e-4
    assert [round(6 * share, 9) for share, _ in told] == [0, 1, 2, 3, 4, 5]
    assert told[1][1] == "writing the model"


@pytest.mark.parametrize("format_", ["safetensors", "ctranslate2", "onnx"])
@pytest.mark.parametrize("activation", ["gelu", "swish"])
def test_a_model_from_elsewhere_is_exported_as_it_is(tmp_path: Path, format_: Any, activation: str) -> None:
    names = ("norm=post", "attention_biases=true", "separate_source=true", "output_bias=true")
    run = make_small_run(
        tmp_path / "run", *(f"model.{name}" for name in names), f"model.activation={activation}"
    )
    vocabulary = Tokeniser.load(run.tokeniser).size
    model = build_transformer(load_translation_recipe(run.recipe), vocabulary)
    assert model.output_bias is not None
    model.output_bias.copy_(torch.linspace(-2, 2, vocabulary))
    shutil.rmtree(run.checkpoints / "step-00000005")
    keep_model(run, model, Best(5, "bleu", 1.0))

    result = export_run(run, ExportOptions(format_, tmp_path / "out"))

    assert result["check"]["largest_difference"] < 1e-4


def test_ctranslate2_translates_as_pytorch_does(run: RunFolder, tmp_path: Path) -> None:
    export_run(run, ExportOptions("ctranslate2", tmp_path / "out"))
    ours, theirs = Translator.load(run.path), Translator.load(tmp_path / "out")
    assert theirs.engine.name == "ctranslate2"
    assert theirs.decoding == ours.decoding
    how = Decoding(beam=3, n_best=2, alignment=True)
    for mine, other in zip(ours.translate(LINES, how), theirs.translate(LINES, how), strict=True):
        assert mine.text == other.text
        # CTranslate2 shares the probability of tokens that are never generated out among the others.
        assert mine.score == pytest.approx(other.score, rel=0.02)
        if mine.alignment and other.alignment:
            torch.testing.assert_close(
                torch.tensor(mine.alignment.weights), torch.tensor(other.alignment.weights), atol=1e-3, rtol=0
            )
    prefixes = ["Haus"] * len(LINES)
    assert [str(found) for found in ours.translate(LINES, prefixes=prefixes)] == [
        str(found) for found in theirs.translate(LINES, prefixes=prefixes)
    ]
    prefix = "Haus Baum " * 40 + "Vogel"
    (begun,) = theirs.translate(["one two"], prefixes=[prefix])
    assert begun.text.startswith(prefix)


def test_ctranslate2_draws_the_same_with_the_same_seed(run: RunFolder, tmp_path: Path) -> None:
    export_run(run, ExportOptions("ctranslate2", tmp_path / "out"))
    translator = Translator.load(tmp_path / "out")

    def draw(seed: int | None) -> list[str]:
        (found,) = translator.translate(["one two"], Decoding(n_best=8, temperature=1.5, seed=seed))
        return [one.text for one in found.alternatives]

    first = draw(4)
    assert len(first) == 8
    assert draw(5) != first
    assert draw(None) != draw(None)
    assert draw(4) == first


@pytest.mark.parametrize("format_", ["ctranslate2", "onnx"])
def test_the_edge_runner_translates_as_the_run_does(run: RunFolder, tmp_path: Path, format_: Any) -> None:
    export_run(run, ExportOptions(format_, tmp_path / "out", edge=True))
    runner = Runner(tmp_path / "out", threads=1)
    found = runner.translate(LINES, beam=3, penalty=0.6, wanted=2)
    expected = Translator.load(run.path).translate(LINES, Decoding(beam=3, n_best=2))
    assert [best[0][0] for best in found] == [one.text for one in expected]
    assert (tmp_path / "out" / "translate.py").read_text().startswith("#!/usr/bin/env python3")


def test_int8_is_smaller_and_the_live_model_keeps_its_weights(tmp_path: Path) -> None:
    model = make_model(vocabulary=40)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pieces = ["<pad>", "</s>", "<s>", "<unk>", *(f"▁w{number}" for number in range(36))]
    for precision in ("float32", "int8"):
        write_ctranslate2(model, pieces, tmp_path / precision, precision)
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("int8", "float32")]
    assert sizes[0] < sizes[1]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_an_export_that_computes_something_else_is_not_kept(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_another(model: Transformer, *rest: Any) -> None:
        with torch.no_grad():
            model.get_parameter("decoder.layers.1.feed_forward.outer.weight").mul_(1.5)
            write_ctranslate2(model, *rest)
            model.get_parameter("decoder.layers.1.feed_forward.outer.weight").div_(1.5)

    monkeypatch.setattr(export, "write_ctranslate2", write_another)
    with pytest.raises(PackageError, match="does not compute what PyTorch computes"):
        export_run(run, ExportOptions("ctranslate2", tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_the_folder_says_what_it_is(run: RunFolder, tmp_path: Path) -> None:
    export_run(run, ExportOptions("safetensors", tmp_path / "out", licence="cc-by-4.0"))
    package = PackageFolder(tmp_path / "out")
    card = package.card.read_text()
    for told in (
        "license: cc-by-4.0",
        "| test | 1.50 | 9.25 |",
        "nrefs:1",
        "train.en",
        "Limits",
        "step-00000005",
    ):
        assert told in card
    assert package.recipe.read_bytes() == run.recipe.read_bytes()
    assert json.loads(package.scores.read_text())["test"]["bleu"] == 1.5
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=package.path, check=True)


@pytest.mark.parametrize("name", ["model.safetensors", "tokeniser.model", "echelon.json"])
def test_a_damaged_folder_is_refused_by_name(run: RunFolder, tmp_path: Path, name: str) -> None:
    export_run(run, ExportOptions("safetensors", tmp_path / "out"))
    content = bytearray((tmp_path / "out" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "out" / name).write_bytes(content)
    with pytest.raises(PackageError, match=name):
        Translator.load(tmp_path / "out")


def test_what_cannot_be_had_is_refused_before_anything_is_written(run: RunFolder, tmp_path: Path) -> None:
    for options in ({"format": "onnx", "precision": "int8"}, {"format": "safetensors", "edge": True}):
        with pytest.raises(UserError):
            ExportOptions(to=tmp_path / "out", **options)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="already exists"):
        ExportOptions("safetensors", tmp_path / "mine", force=True)
    export_run(run, ExportOptions("safetensors", tmp_path / "out"))
    export_run(run, ExportOptions("safetensors", tmp_path / "out", force=True))
    assert Translator.load(tmp_path / "out").translate(["one"])[0].text


@pytest.mark.parametrize("failing", ["out", ".earlier"])
def test_a_replacement_that_is_interrupted_leaves_the_earlier_export(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    export_run(run, ExportOptions("safetensors", tmp_path / "out", licence="the first"))
    rename = Path.rename

    def interrupted(path: Path, to: Path) -> Path:
        if to.name.endswith(failing) and not path.name.endswith(".earlier"):
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_run(run, ExportOptions("safetensors", tmp_path / "out", licence="the second", force=True))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "the first" in PackageFolder(tmp_path / "out").card.read_text()
    assert Translator.load(tmp_path / "out").translate(["one"])[0].text


def test_an_export_goes_where_a_link_leads(run: RunFolder, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(Path("exports") / "v1")
    for licence in ("the first", "the second"):
        export_run(run, ExportOptions("safetensors", link, licence=licence, force=True))
        assert link.is_symlink()
        assert licence in PackageFolder(tmp_path / "exports" / "v1").card.read_text()
    assert [path.name for path in (tmp_path / "exports").iterdir()] == ["v1"]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="a link that leads back to itself"):
        ExportOptions("safetensors", tmp_path / "loop")
