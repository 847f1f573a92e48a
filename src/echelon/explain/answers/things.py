"""How big the training set and a checkpoint are, and why."""

from __future__ import annotations

from echelon.data.images.store import ImageManifest
from echelon.data.shards import SideCount
from echelon.explain.accounting import positive
from echelon.explain.answers.case import Answer, Case
from echelon.explain.checkpoints import checkpoint_parts
from echelon.explain.wording import show_bytes, show_count, show_step
from echelon.files.checkpoint_layout import complete_folders


def how_big_is_the_data(case: Case) -> Answer:
    question = "How big was the training set?"
    if case.manifest is None:
        return Answer(
            "training_set", question, "unknown", "The prepared data are not on this machine any more."
        )
    if isinstance(case.manifest, ImageManifest):
        return _how_many_pictures(question, case.manifest)
    corpora = [corpus for corpus in case.manifest.corpora if corpus.name.startswith("train")]
    source = sum((corpus.source for corpus in corpora), SideCount())
    target = sum((corpus.target for corpus in corpora), SideCount())
    pairs, lines = sum(corpus.pairs for corpus in corpora), sum(corpus.lines for corpus in corpora)
    languages = case.manifest.source_language, case.manifest.target_language
    evidence = [
        f"{language} ({side}): {show_bytes(count.bytes)} of text, {show_count(count.words)} words, "
        f"{show_count(count.tokens)} tokens"
        for language, side, count in zip(languages, ("source", "target"), (source, target), strict=True)
    ]
    evidence.append(f"{show_count(lines - pairs)} of {show_count(lines)} lines were dropped in cleaning")
    evidence.append(f"a joint vocabulary of {show_count(case.manifest.vocabulary)} pieces")
    return Answer(
        "training_set",
        question,
        f"{pairs} lines",
        f"{show_bytes(source.bytes + target.bytes)} in {show_count(pairs)} line pairs: "
        f"{show_count(source.tokens)} source and "
        f"{show_count(target.tokens)} target tokens.",
        evidence,
    )


def _how_many_pictures(question: str, manifest: ImageManifest) -> Answer:
    splits = {split.name: split for split in manifest.splits}
    size = sum(file.bytes for file in manifest.files if file.name.startswith("train"))
    evidence = [
        f"{split.name}: {show_count(split.images)} pictures, {split.label}" for split in manifest.splits
    ]
    evidence.append(
        f"prepared, the training set takes {show_bytes(size)}; the model sees {manifest.pixels}x{manifest.pixels}"
    )
    return Answer(
        "training_set",
        question,
        f"{splits['train'].images} pictures",
        f"{show_bytes(size)} in {show_count(splits['train'].images)} images of {show_count(len(manifest.classes))} "
        "classes, as prepared.",
        evidence,
    )


def what_is_a_checkpoint(case: Case) -> Answer:
    """Its files."""
    history, question = case.history, "Which files is a checkpoint made of?"
    folders = [folder for _, folder in complete_folders(history.run.checkpoints)]
    if not folders:
        sentence = "There is no complete checkpoint in the run's folder."
        return Answer("checkpoint_files", question, "none", sentence)
    files = sorted(file for file in folders[-1].iterdir() if file.suffix in (".safetensors", ".json"))
    told = [file for file in files if not file.name.endswith("checksum.json")]
    evidence = [f"{file.name}: {show_bytes(file.stat().st_size)}" for file in told]
    return Answer(
        "checkpoint_files",
        question,
        f"{len(files)} files",
        f"{folders[-1].name} has {', '.join(file.name for file in told)}, and a checksum beside each: tensors as "
        "safetensors, everything else as JSON.",
        [*evidence, "complete if every file and every checksum is there"],
    )


def how_big_is_a_checkpoint(case: Case) -> Answer:
    history, question = case.history, "How big is a checkpoint, and why?"
    parameters, sized = history.facts.get("parameters"), [c for c in history.checkpoints if c.get("bytes")]
    if not parameters or not sized:
        return Answer("checkpoint", question, "none", "No checkpoint has been written yet.")
    parts = checkpoint_parts(history.recipe, parameters, case.workload.matrices if case.workload else ())
    sizes = {part.name: part.bytes(history.size) for part in parts if part.bytes(history.size)}
    size, expected = sized[-1]["bytes"], sum(sizes.values())
    evidence = [
        f"{name}: {show_count(part / 4)} numbers x 4 bytes = {show_bytes(part)}"
        for name, part in sizes.items()
    ]
    evidence.append(
        f"the remaining {show_bytes(size - expected)} are tensor names and shapes, running statistics if the model "
        "has any, checksums and state.json (step, best score, patience)"
    )
    mean = sum(positive(record.get("seconds")) for record in sized) / len(sized)
    evidence.append(f"{len(sized)} were written, each in {show_step(mean)} behind training")
    return Answer(
        "checkpoint",
        question,
        show_bytes(size),
        f"{show_bytes(size)}: {show_count(parameters)} parameters x {expected / parameters:.4g} bytes "
        f"({', '.join(sizes)}), and {show_bytes(size - expected)} of names and state.",
        evidence,
    )
