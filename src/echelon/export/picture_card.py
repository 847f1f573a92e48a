"""The model card of a classifier. Pure text, no torch."""

from __future__ import annotations

from echelon.export.card import CardFacts, format_scores
from echelon.recipe.schema import ClassificationRecipe

_MOST_CLASSES = 20
_USE = {
    "safetensors": "```python\nfrom echelon import Classifier\n\n"
    'print(Classifier.load("this-folder").classify(["picture.jpg"])[0])\n```',
    "onnx": "`model.onnx` takes `pictures`, bytes of red, green and blue [N, {pixels}, {pixels}, 3], and gives "
    "`probabilities` [N, {classes}]; normalisation is inside. ONNX Runtime runs it, and so does\n\n"
    "```sh\nechelon classify this-folder picture.jpg\n```",
}


_LIMITS = (
    "## Limits\n\nIt knows the classes above and nothing else: any image is put into one of them, however far it "
    "is from all it has learnt from. Probabilities are the model's own and not calibrated."
)
PictureFacts = CardFacts[ClassificationRecipe]


def render_picture_card(facts: PictureFacts) -> str:
    """The card in Markdown, its head in the form that model hubs read."""
    train, data = facts.recipe.train, facts.recipe.data
    columns = "top-1 {top1:.2f}% | top-5 {top5:.2f}% | loss {loss:.4f}"
    sections = [
        _head(facts),
        "## Use\n\n" + _USE[facts.manifest.format].format(**facts.manifest.sizes),
        facts.training(f"Data: {data.path or data.source}. ", f"{train.batch_images:,} images"),
        format_scores(facts.scores, columns, "Signature"),
        _LIMITS,
        _files(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _head(facts: PictureFacts) -> str:
    rules, manifest = facts.manifest.pictures, facts.manifest
    assert rules is not None
    names = ", ".join(rules.classes[:_MOST_CLASSES])
    more = len(rules.classes) - _MOST_CLASSES
    return (
        f"---\nlicense: {facts.licence}\ntags:\n- image-classification\n- echelon\n---\n\n# {manifest.name}\n\n"
        f"Sorts images into {len(rules.classes)} classes: {names}{f' and {more} more' if more > 0 else ''}. "
        f"A network of the kind {facts.recipe.model.preset} with {manifest.sizes['parameters']:,} parameters, for "
        f"images of {rules.pixels}x{rules.pixels}, {facts.size_and_licence}"
    )


def _files(facts: PictureFacts) -> str:
    check = facts.check
    return facts.files(
        f"{check['pictures']} images: probabilities differ by at most {check['largest_difference']:.2g}, and "
        f"{check['equal_classes']} of {check['pictures']} are put into the same class."
    )
