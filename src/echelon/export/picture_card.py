"""The model card of a classifier. Pure text, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.export.card import format_scores
from echelon.inference.exported_model import ExportManifest
from echelon.recipe.schema import ClassificationRecipe

_MOST_CLASSES = 20
_USE = {
    "safetensors": "```python\nfrom echelon import Classifier\n\n"
    'print(Classifier.load("this-folder").classify(["picture.jpg"])[0])\n```',
    "onnx": "`model.onnx` takes `pictures`, bytes of red, green and blue [N, {pixels}, {pixels}, 3], and gives "
    "`probabilities` [N, {classes}]; normalisation is inside. ONNX Runtime runs it, and so does\n\n"
    "```sh\nechelon classify this-folder picture.jpg\n```",
}


@dataclass(frozen=True)
class PictureFacts:
    """Facts for the card that the recipe does not hold."""

    manifest: ExportManifest
    recipe: ClassificationRecipe
    scores: Mapping[str, Any]
    """By split, as `evaluate` keeps them."""
    bytes: int
    licence: str
    check: Mapping[str, Any]


def render_picture_card(facts: PictureFacts) -> str:
    """The card in Markdown, its head in the form that model hubs read."""
    sections = [_head(facts), _use(facts), _training(facts), _scores(facts), _limits(), _files(facts)]
    return "\n\n".join(sections) + "\n"


def _head(facts: PictureFacts) -> str:
    rules, manifest = facts.manifest.pictures, facts.manifest
    assert rules is not None
    names = ", ".join(rules.classes[:_MOST_CLASSES])
    more = len(rules.classes) - _MOST_CLASSES
    return (
        f"---\nlicense: {facts.licence}\ntags:\n- image-classification\n- echelon\n---\n\n# {manifest.name}\n\n"
        f"Tells {len(rules.classes)} classes of pictures apart: {names}{f' and {more} more' if more > 0 else ''}. "
        f"A network of the kind {facts.recipe.model.preset} with {manifest.sizes['parameters']:,} parameters, for "
        f"pictures of {rules.pixels}x{rules.pixels}, in {manifest.precision}, {facts.bytes / 1e6:,.1f} MB on disk. "
        f"Format: {manifest.format}. Licence: {facts.licence}."
    )


def _use(facts: PictureFacts) -> str:
    return "## Use\n\n" + _USE[facts.manifest.format].format(**facts.manifest.sizes)


def _training(facts: PictureFacts) -> str:
    train, data = facts.recipe.train, facts.recipe.data
    return (
        f"## Training\n\n`recipe.toml` is the whole recipe. Data: {data.path or data.source}. Checkpoint: "
        f"{facts.manifest.checkpoint} (step {facts.manifest.step:,}); {train.batch_images:,} pictures a step, "
        f"{train.precision}, {facts.recipe.optimiser.kind}, seed {facts.recipe.seed}."
    )


def _scores(facts: PictureFacts) -> str:
    table = format_scores(facts.scores, "top-1 {top1:.2f}% | top-5 {top5:.2f}% | loss {loss:.4f}")
    signatures = sorted({str(score["signature"]) for score in facts.scores.values()})
    return table + (f"\n\nSignature: `{'`, `'.join(signatures)}`." if signatures else "")


def _limits() -> str:
    return (
        "## Limits\n\nIt knows the classes above and nothing else: any picture is put into one of them, however far it "
        "is from all it has learnt from. Probabilities are the model's own and not calibrated."
    )


def _files(facts: PictureFacts) -> str:
    check = facts.check
    return (
        "## Files\n\n`sha256sum -c SHA256SUMS` checks them. When this folder was written its outputs were compared "
        f"with the PyTorch model's on {check['pictures']} pictures: probabilities differ by at most "
        f"{check['largest_difference']:.2g}, and {check['equal_classes']} of {check['pictures']} are put into the same "
        "class."
    )
