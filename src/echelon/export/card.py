"""The model card of a translator. Pure text, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from echelon.inference.exported_model import ExportManifest
from echelon.recipe.schema import Recipe, TranslationRecipe

R = TypeVar("R", bound=Recipe)

_USE = {
    "safetensors": "```python\nfrom echelon import Translator\n\n"
    'print(Translator.load("{folder}").translate(["{example}"])[0])\n```',
    "ctranslate2": '```sh\necho "{example}" | echelon translate {folder}\n```',
    "huggingface": "```python\nfrom transformers import MarianMTModel, MarianTokenizer\n\n"
    'model, tokeniser = (kind.from_pretrained("{folder}") for kind in (MarianMTModel, MarianTokenizer))\n'
    'output = model.generate(**tokeniser(["{example}"], return_tensors="pt"))\n'
    "print(tokeniser.batch_decode(output, skip_special_tokens=True))\n```",
    "onnx": "ONNX Runtime runs `encoder.onnx` once a sentence and `decoder.onnx` once a token, with its cache.",
}


@dataclass(frozen=True)
class CardFacts(Generic[R]):
    """What a card says of a model of any task."""

    manifest: ExportManifest
    recipe: R
    scores: Mapping[str, Any]
    """By split, as `evaluate` keeps them."""
    bytes: int
    licence: str
    check: Mapping[str, Any]
    is_edge: bool = False

    @property
    def size_and_licence(self) -> str:
        manifest = self.manifest
        return (
            f"in {manifest.precision}, {self.bytes / 1e6:,.1f} MB on disk. "
            f"Format: {manifest.format}. Licence: {self.licence}."
        )

    def training(self, data: str, step: str) -> str:
        """The section about training."""
        manifest, recipe = self.manifest, self.recipe
        return (
            f"## Training\n\n`recipe.toml` is the whole recipe. {data}Checkpoint: {manifest.checkpoint} (step "
            f"{manifest.step:,}); {step} a step, {recipe.train.precision}, {recipe.optimiser.kind}, "
            f"seed {recipe.seed}."
        )

    def files(self, compared: str) -> str:
        """The section about the files, and how the model `compared` with PyTorch's."""
        return (
            "## Files\n\n`sha256sum -c SHA256SUMS` checks them. When this folder was written its outputs were "
            f"compared with the PyTorch model's on {compared}"
        )


TranslationFacts = CardFacts[TranslationRecipe]


def render_card(facts: TranslationFacts) -> str:
    """The card in Markdown, its head in the form that model hubs read."""
    sections = [
        _head(facts),
        _use(facts),
        _data(facts),
        facts.training("", f"{facts.recipe.train.batch_tokens:,} target tokens"),
        format_scores(
            facts.scores,
            "BLEU {bleu:.2f} | chrF {chrf:.2f} | perplexity {perplexity:.2f}",
            "sacreBLEU signature",
        ),
        _limits(facts),
        _files(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _head(facts: TranslationFacts) -> str:
    text, sizes = facts.manifest.text, facts.manifest.sizes
    assert text is not None
    return (
        f"---\nlicense: {facts.licence}\nlanguage:\n- {text.source_language}\n- {text.target_language}\n"
        f"tags:\n- translation\n- echelon\n---\n\n# {facts.manifest.name}\n\n"
        f"Translates {text.source_language} to {text.target_language}. A Transformer with "
        f"{sizes['parameters']:,} parameters ({sizes['encoder_layers']} + {sizes['decoder_layers']} layers of width "
        f"{sizes['d_model']}, vocabulary {sizes['vocabulary']:,}), {facts.size_and_licence}"
    )


def _use(facts: TranslationFacts) -> str:
    how = _USE[facts.manifest.format].format(folder="this-folder", example="The dog sleeps.")
    if facts.is_edge:
        how = (
            "```sh\npip install -r requirements.txt     # x86-64 and aarch64 (Jetson, Raspberry Pi) alike\n"
            'python3 translate.py "The dog sleeps."\npython3 translate.py < english.txt > german.txt\n```\n\n'
            "Nothing else is needed: no PyTorch, no Echelon."
        )
    return f"## Use\n\n{how}"


def _data(facts: TranslationFacts) -> str:
    corpora = "\n".join(f"- {corpus.label}" for corpus in facts.recipe.data.train)
    return (
        f"## Data\n\nTrained on:\n\n{corpora}\n\nText is brought to Unicode {facts.recipe.data.clean.unicode} "
        "and cut into subwords by the SentencePiece model in `tokeniser.model`."
    )


def format_scores(scores: Mapping[str, Any], columns: str, signature: str) -> str:
    """A section with a table of scores by split, and their signatures, called `signature`.

    `columns` has headings and formats, e.g. `loss {loss:.4f}`.
    """
    if not scores:
        return "## Scores\n\nNone: `echelon evaluate` has not scored this checkpoint. Do not rely on it untested."
    headings, formats = zip(*(column.split() for column in columns.split(" | ")), strict=True)
    row = " | ".join(["| {split}", *formats, "{checkpoint} |"])
    rows = [row.format_map({**score, "split": split}) for split, score in sorted(scores.items())]
    head = " | ".join(["| set", *headings, "checkpoint |"])
    found = "`, `".join(sorted({str(score["signature"]) for score in scores.values()}))
    rule = "|---" * (len(headings) + 2) + "|"
    return "\n".join(["## Scores", "", head, rule, *rows, "", f"{signature}: `{found}`."])


def _limits(facts: TranslationFacts) -> str:
    text = facts.manifest.text
    assert text is not None
    return (
        "## Limits\n\nIt has learnt from the data above and nothing else: other subjects, styles and names come out "
        "badly, and fluent text can be wrong. Do not use it where a mistake does harm without a person reading the "
        f"result. It reads up to {text.longest} subwords at a time; longer lines are split at "
        "sentences and translated one by one."
    )


def _files(facts: TranslationFacts) -> str:
    check = facts.check
    return facts.files(
        f"{check['sentences']} sentences: log-probabilities of tokens differ by at most "
        f"{check['largest_difference']:.2g}, and {check['equal_translations']} of {check['sentences']} translations "
        "are the same, word for word."
    )
