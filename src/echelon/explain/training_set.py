"""How big a training set is, from the manifest of the prepared data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from echelon.data.images.image_store import ImageManifest
from echelon.data.prepared import Manifest
from echelon.data.shards import SideCount
from echelon.explain.units import show_bytes, show_count


@dataclass(frozen=True)
class TrainingSetSize:
    """The answer of a task to how big its training set is."""

    verdict: str
    """One or two words, for programs."""
    sentence: str
    evidence: list[str] = field(default_factory=list)


class DataSizeDeclaration(Protocol):
    """What a task says about the size of its data."""

    def measure_training_set(self, manifest: Any) -> TrainingSetSize: ...


def measure_text(manifest: Manifest) -> TrainingSetSize:
    """Of parallel text: bytes, words and tokens of both sides."""
    corpora = [corpus for corpus in manifest.corpora if corpus.name.startswith("train")]
    source = sum((corpus.source for corpus in corpora), SideCount())
    target = sum((corpus.target for corpus in corpora), SideCount())
    pairs, lines = sum(corpus.pairs for corpus in corpora), sum(corpus.lines for corpus in corpora)
    languages = manifest.source_language, manifest.target_language
    evidence = [
        f"{language} ({side}): {show_bytes(count.bytes)} of text, {show_count(count.words)} words, "
        f"{show_count(count.tokens)} tokens"
        for language, side, count in zip(languages, ("source", "target"), (source, target), strict=True)
    ]
    evidence.append(f"{show_count(lines - pairs)} of {show_count(lines)} lines were dropped in cleaning")
    evidence.append(f"a joint vocabulary of {show_count(manifest.vocabulary)} pieces")
    sentence = (
        f"{show_bytes(source.bytes + target.bytes)} in {show_count(pairs)} line pairs: "
        f"{show_count(source.tokens)} source and {show_count(target.tokens)} target tokens."
    )
    return TrainingSetSize(f"{pairs} lines", sentence, evidence)


def measure_pictures(manifest: ImageManifest) -> TrainingSetSize:
    """Of pictures: how many, of how many classes, and their bytes."""
    splits = {split.name: split for split in manifest.splits}
    size = sum(file.bytes for file in manifest.files if file.name.startswith("train"))
    evidence = [
        f"{split.name}: {show_count(split.images)} images, {split.label}" for split in manifest.splits
    ]
    evidence.append(
        f"prepared, the training set takes {show_bytes(size)}; the model sees {manifest.pixels}x{manifest.pixels}"
    )
    images = splits["train"].images
    sentence = (
        f"{show_bytes(size)} in {show_count(images)} images of {show_count(len(manifest.classes))} "
        "classes, as prepared."
    )
    return TrainingSetSize(f"{images} images", sentence, evidence)
