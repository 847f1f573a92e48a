"""Fine-tuning with adapters: it follows plain PyTorch, changes little, and what comes out is a plain model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call

import echelon
from echelon import Classifier
from echelon.errors import TrainingError
from echelon.export.export import export_run
from echelon.export.export_folder import ExportOptions
from echelon.inference.torch_models import build_model
from echelon.models.kernels.selection import KernelChoice
from echelon.monitor.records import read_records
from echelon.pretrained.conversion import as_run
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.translation import TranslationTask
from echelon.tasks.translation_loss import TranslationLoss
from echelon.train.checkpoint import choose_checkpoint
from echelon.train.model_parts import adapt
from echelon.train.weights import choose_weights
from tests.pretrained.marian_folders import CONFIGURATIONS, make_marian, transformers
from tests.pretrained.plain_resnet import SMALL, make_plain
from tests.pretrained.test_fine_tuning import recipe_for, write_corpus
from tests.pretrained.test_resnet_weights import SETTINGS
from tests.sample_image_recipe import sample_image_recipe

STEPS, RATE, RANK, ALPHA = 6, 1e-2, 2, 6.0
TARGETS = ["*.attention.qkv", "decoder.*.feed_forward.*"]
LORA = (f"lora.rank={RANK}", f"lora.alpha={ALPHA}", f"lora.targets={TARGETS}".replace("'", '"'))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model that our kernels can compute, and corpora."""
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path, "train", 60)
    write_corpus(tmp_path, "valid", 4)
    make_marian(tmp_path / "theirs", **CONFIGURATIONS["source apart, relu"])
    return tmp_path


def lora_recipe(place: Path, *overrides: str) -> TranslationRecipe:
    changes = (
        f"train.steps={STEPS}",
        f"schedule.learning_rate={RATE}",
        "evaluate.every=3",
        *LORA,
        *overrides,
    )
    return recipe_for(place / "theirs", place, *changes)


def last_tensors(run: Path) -> dict[str, Tensor]:
    """All that the last checkpoint holds."""
    checkpoint = choose_checkpoint(RunFolder(run).checkpoints, "last")
    optimiser = {f"optimiser/{name}": tensor for name, tensor in checkpoint.load_optimiser().items()}
    return checkpoint.load_model() | optimiser


def plain_training(run: RunFolder, start: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    """The losses and the merged weights by PyTorch alone: two factors for each matrix, and Adam."""
    recipe = load_translation_recipe(run.recipe)
    assert recipe.lora is not None
    task = TranslationTask.of_run(recipe, run, torch.device("cpu"))
    model = task.build_model()
    torch.manual_seed(recipe.seed)
    ours = task.build_model()
    adapt(ours, recipe.lora)
    factors = {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in ours.named_parameters()
        if parameter.requires_grad
    }
    model.load_state_dict(start)
    loss_of = TranslationLoss(recipe.train, KernelChoice(None, "off"), torch.device("cpu"))
    optimiser = torch.optim.Adam(factors.values(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)

    def weights() -> dict[str, Tensor]:
        layers = [name.removesuffix(".lora.up") for name in factors if name.endswith(".lora.up")]
        return {
            f"{layer}.weight": start[f"{layer}.weight"]
            + ALPHA / RANK * factors[f"{layer}.lora.up"] @ factors[f"{layer}.lora.down"]
            for layer in layers
        }

    losses = []
    for step in range(1, STEPS + 1):
        slots = task.slots(step)
        targets = sum(slot.targets for slot in slots)
        optimiser.zero_grad()
        total = 0.0
        for slot in slots:
            loss = functional_call(
                _Loss(model, loss_of), {f"model.{k}": v for k, v in weights().items()}, task.load(slot)
            )
            (loss / targets).backward()
            total += loss.item() / targets
        optimiser.step()
        losses.append(total)
    return losses, start | {name: tensor.detach() for name, tensor in weights().items()}


class _Loss(nn.Module):
    def __init__(self, model: nn.Module, loss_of: TranslationLoss) -> None:
        super().__init__()
        self.model, self._loss_of = model, loss_of

    def forward(self, batch: object) -> Tensor:
        return self._loss_of(self.model, batch).smoothed  # type: ignore[arg-type]


def test_translators_are_adapted_as_plain_pytorch_does_on_any_number_of_workers(place: Path) -> None:
    recipe = lora_recipe(place)
    start = choose_weights(RunFolder(as_run(place / "theirs")), "last").tensors

    one = echelon.train(recipe, workers=1, run=place / "one", show=False)
    echelon.train(recipe, workers=2, run=place / "two", show=False)
    echelon.train(recipe, settings={"train.stop_at": 3}, workers=2, run=place / "again", show=False)
    echelon.train(recipe, workers=1, run=place / "again", show=False)

    folder, saved = RunFolder(one.path), last_tensors(one.path)
    for other in ("two", "again"):
        tensors = last_tensors(place / other)
        assert tensors.keys() == saved.keys()
        assert all(torch.equal(tensors[name], saved[name]) for name in saved), other

    losses, expected = plain_training(folder, start)
    records = read_records(folder.worker_records(0))
    assert [r["loss"] for r in records if r["kind"] == "step"] == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]
    found = choose_weights(folder, "last").tensors
    assert found.keys() == start.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=0, msg=name)
    changed = {name for name in start if not torch.equal(found[name], start[name])}
    layers = ("encoder.layers.0.attention.qkv", "decoder.layers.0.feed_forward.inner")
    assert {f"{layer}.weight" for layer in layers} < changed
    assert len(changed) == 2 + 1 + 2

    adapters = {name for name in saved if ".lora." in name and not name.endswith("scale")}
    numbers = sum(saved[name].numel() for name in adapters if not name.startswith("optimiser/"))
    assert {name.rpartition("/")[2] for name in saved if name.startswith("optimiser/exp")} == {
        name for name in adapters if "/" not in name
    }
    assert all(torch.equal(saved[name], start[name]) for name in start)
    facts = next(r for r in records if r["kind"] == "start")
    assert facts["parameters"] == numbers
    assert 4 * numbers <= facts["exchanged_bytes"] < 4 * (numbers + 100)


def test_an_adapted_translator_is_a_plain_one_to_whoever_uses_it(place: Path) -> None:
    run = RunFolder(echelon.train(lora_recipe(place), run=place / "run", show=False).path)
    again = lora_recipe(place, f"train.init_from={run.path}", "train.steps=1", "lora.alpha=1.0")
    more = RunFolder(echelon.train(again, run=place / "more", show=False).path)

    export_run(run, ExportOptions("huggingface", place / "out", checkpoint="last"))
    theirs = transformers.MarianMTModel.from_pretrained(place / "out").eval()

    merged = choose_weights(run, "last").tensors
    raw = choose_checkpoint(run.checkpoints, "last").load_model()
    layer = "decoder.layers.0.feed_forward.outer"
    product = raw[f"{layer}.lora.up"] @ raw[f"{layer}.lora.down"]
    torch.testing.assert_close(merged[f"{layer}.weight"], raw[f"{layer}.weight"] + ALPHA / RANK * product)
    torch.testing.assert_close(theirs.model.decoder.layers[0].fc2.weight, merged[f"{layer}.weight"])
    recipe = load_translation_recipe(run.recipe)
    model = build_model(recipe, len(merged["output_bias"]), choose_weights(run, "last"))
    assert model.state_dict().keys() == merged.keys()
    started = choose_checkpoint(more.checkpoints, "last").load_model()
    assert torch.equal(started[f"{layer}.weight"], choose_weights(run, "best").tensors[f"{layer}.weight"])
    valid = [r for r in read_records(run.worker_records(0)) if r["kind"] == "valid"]
    scores = echelon.load_run(run.path).scores()
    assert scores is None
    assert all(math.isfinite(record["loss"]) for record in valid)


def test_a_classifier_of_other_classes_trains_its_new_layer_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(make_plain(SMALL).state_dict(), weights)
    lora = (f"train.init_from={weights}", 'lora.targets=["layer3.*","layer4.*"]', "lora.rank=2")
    recipe = sample_image_recipe(*SETTINGS, *lora, 'lora.full=["fc"]')

    one = echelon.train(recipe, workers=1, run=tmp_path / "one", show=False)
    echelon.train(recipe, workers=2, run=tmp_path / "two", show=False)
    with pytest.raises(TrainingError, match=r"put 'fc' into lora\.full"):
        echelon.train(sample_image_recipe(*SETTINGS, *lora), run=tmp_path / "no", show=False)

    before, after = safetensors.torch.load_file(weights), choose_weights(RunFolder(one.path), "last").tensors
    saved, other = last_tensors(one.path), last_tensors(tmp_path / "two")
    assert all(torch.equal(saved[name], other[name]) for name in saved)
    changed = {
        name.split(".")[0]
        for name in after
        if "running" not in name and "num_" not in name
        if after[name].shape != before[name].shape or not torch.equal(after[name], before[name])
    }
    assert changed == {"layer3", "layer4", "fc"}
    assert Classifier.load(one.path).rules.classes
