"""How big the training set and a checkpoint are, and why."""

from __future__ import annotations

from echelon.explain.accounting import positive
from echelon.explain.answers.case import Answer, Case
from echelon.explain.checkpoints import checkpoint_parts
from echelon.explain.training_set import DataSizeDeclaration
from echelon.explain.units import show_bytes, show_count, show_step
from echelon.files.checkpoint_layout import complete_folders
from echelon.recipe.tasks import find_task


def how_big_is_the_data(case: Case) -> Answer:
    question = "How big was the training set?"
    if case.manifest is None:
        return Answer("training_set", question, "unknown", "The prepared data are no longer on this machine.")
    task: DataSizeDeclaration = find_task(case.history.recipe.task)
    found = task.measure_training_set(case.manifest)
    return Answer("training_set", question, found.verdict, found.sentence, found.evidence)


def what_is_a_checkpoint(case: Case) -> Answer:
    """The files of a checkpoint."""
    history, question = case.history, "Which files is a checkpoint made of?"
    folders = [folder for _, folder in complete_folders(history.run.checkpoints)]
    if not folders:
        sentence = "There is no complete checkpoint in the run's folder."
        return Answer("checkpoint_files", question, "none", sentence)
    files = sorted(file for file in folders[-1].iterdir() if file.suffix in (".safetensors", ".json"))
    told = [file for file in files if not file.name.endswith("checksum.json")]
    evidence = [f"{file.name}: {show_bytes(file.stat().st_size)}" for file in told]
    if sum(file.name.startswith("optimiser-") for file in told) > 1:
        evidence.append(
            "each of the optimiser's tensors, largest first, goes to the worker with the least to write; the first "
            "worker also writes the weights, so its share may be small or empty"
        )
    return Answer(
        "checkpoint_files",
        question,
        f"{len(files)} files",
        f"{folders[-1].name} has {', '.join(file.name for file in told)}, and a checksum beside each: tensors as "
        "safetensors, everything else as JSON.",
        [*evidence, "a checkpoint is complete if every file and every checksum is there"],
    )


def how_big_is_a_checkpoint(case: Case) -> Answer:
    history, question = case.history, "How big is a checkpoint, and why?"
    parameters, sized = history.facts.get("parameters"), [c for c in history.checkpoints if c.get("bytes")]
    if not parameters or not sized:
        return Answer("checkpoint", question, "none", "No checkpoint has been written yet.")
    frozen = history.facts.get("frozen_parameters") or 0
    matrices = case.workload.matrices if case.workload else ()
    parts = checkpoint_parts(history.recipe, parameters, matrices, frozen)
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
    evidence.append(f"{len(sized)} were written, in {show_step(mean)} on average, while training continued")
    return Answer(
        "checkpoint",
        question,
        show_bytes(size),
        f"{show_bytes(size)}: {_format_parameters(parameters, frozen)} x {expected / (parameters + frozen):.4g} bytes "
        f"({', '.join(sizes)}), and {show_bytes(size - expected)} of names and state.",
        evidence,
    )


def _format_parameters(trained: int, frozen: int) -> str:
    if not frozen:
        return f"{show_count(trained)} parameters"
    return f"{show_count(trained + frozen)} parameters, of which {show_count(trained)} are trained,"
