"""The model card of a translator. Pure text, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.inference.exported_model import ExportManifest
from echelon.recipe.schema import TranslationRecipe

_USE = {
    "safetensors": "```python\nfrom echelon import Translator\n\n"
    'print(Translator.load("{folder}").translate(["{example}"])[0])\n```',
    "ctranslate2": '```sh\necho "{example}" | echelon translate {folder}\n```',
    "onnx": "ONNX Runtime runs `encoder.onnx` once a sentence and `decoder.onnx` once a token, with its cache.",
}


@dataclass(frozen=True)
class CardFacts:
    """Facts for the card that the recipe does not hold."""

    manifest: ExportManifest
    recipe: TranslationRecipe
    scores: Mapping[str, Any]
    """By split, as `evaluate` keeps them."""
    bytes: int
    licence: str
    is_edge: bool
    check: Mapping[str, Any]


def render_card(facts: CardFacts) -> str:
    """The card in Markdown, its head in the form that model hubs read."""
    sections = [
        _head(facts),
        _use(facts),
        _data(facts),
        _training(facts),
        _scores(facts),
        _limits(facts),
        _files(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _head(facts: CardFacts) -> str:
    text, sizes = facts.manifest.text, facts.manifest.sizes
    assert text is not None
    return (
        f"---\nlicense: {facts.licence}\nlanguage:\n- {text.source_language}\n- {text.target_language}\n"
        f"tags:\n- translation\n- echelon\n---\n\n# {facts.manifest.name}\n\n"
        f"Translates {text.source_language} to {text.target_language}. A Transformer with "
        f"{sizes['parameters']:,} parameters ({sizes['encoder_layers']} + {sizes['decoder_layers']} layers of width "
        f"{sizes['d_model']}, vocabulary {sizes['vocabulary']:,}), in {facts.manifest.precision}, "
        f"{facts.bytes / 1e6:,.1f} MB on disk. Format: {facts.manifest.format}. Licence: {facts.licence}."
    )


def _use(facts: CardFacts) -> str:
    how = _USE[facts.manifest.format].format(folder="this-folder", example="The dog sleeps.")
    if facts.is_edge:
        how = (
            "```sh\npip install -r requirements.txt     # x86-64 and aarch64 (Jetson, Raspberry Pi) alike\n"
            'python3 translate.py "The dog sleeps."\npython3 translate.py < english.txt > german.txt\n```\n\n'
            "Nothing else is needed: no PyTorch, no Echelon."
        )
    return f"## Use\n\n{how}"


def _data(facts: CardFacts) -> str:
    corpora = "\n".join(f"- {corpus.label}" for corpus in facts.recipe.data.train)
    return (
        f"## Data\n\nTrained on:\n\n{corpora}\n\nText is brought to Unicode {facts.recipe.data.clean.unicode} "
        "and cut into subwords by the SentencePiece model in `tokeniser.model`."
    )


def _training(facts: CardFacts) -> str:
    train = facts.recipe.train
    return (
        f"## Training\n\n`recipe.toml` is the whole recipe. Checkpoint: {facts.manifest.checkpoint} (step "
        f"{facts.manifest.step:,}); {train.batch_tokens:,} target tokens a step, {train.precision}, "
        f"{facts.recipe.optimiser.kind}, seed {facts.recipe.seed}."
    )


def _scores(facts: CardFacts) -> str:
    table = format_scores(facts.scores, "BLEU {bleu:.2f} | chrF {chrf:.2f} | perplexity {perplexity:.2f}")
    signatures = sorted({str(score["signature"]) for score in facts.scores.values()})
    return table + (f"\n\nsacreBLEU signature: `{'`, `'.join(signatures)}`." if signatures else "")


def format_scores(scores: Mapping[str, Any], columns: str) -> str:
    """A section with a table of scores by split; `columns` has headings and formats, e.g. `loss {loss:.4f}`."""
    if not scores:
        return "## Scores\n\nNone: `echelon evaluate` has not scored this checkpoint. Do not rely on it untested."
    headings, formats = zip(*(column.split() for column in columns.split(" | ")), strict=True)
    row = " | ".join(["| {split}", *formats, "{checkpoint} |"])
    rows = [row.format_map({**score, "split": split}) for split, score in sorted(scores.items())]
    head = " | ".join(["| set", *headings, "checkpoint |"])
    return "\n".join(["## Scores", "", head, "|---" * (len(headings) + 2) + "|", *rows])


def _limits(facts: CardFacts) -> str:
    text = facts.manifest.text
    assert text is not None
    return (
        "## Limits\n\nIt has learnt from the data above and nothing else: other subjects, styles and names come out "
        "badly, and fluent text can be wrong. Do not use it where a mistake does harm without a person reading the "
        f"result. It reads up to {text.longest} subwords at a time; longer lines are split at "
        "sentences and translated one by one."
    )


def _files(facts: CardFacts) -> str:
    check = facts.check
    return (
        "## Files\n\n`sha256sum -c SHA256SUMS` checks them. When this folder was written its outputs were compared "
        f"with the PyTorch model's on {check['sentences']} sentences: log-probabilities of tokens differ by at most "
        f"{check['largest_difference']:.2g}, and {check['equal_translations']} of {check['sentences']} translations "
        "are the same, word for word."
    )
