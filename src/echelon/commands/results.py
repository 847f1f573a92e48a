"""The results of verbs, formatted for people. Pure functions of what --json prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echelon.commands.runs import RunSummary
from echelon.commands.status import RunStatus
from echelon.data.held_out import describe_left_out
from echelon.data.images.image_store import PreparedImages, SplitEntry
from echelon.data.prepared import CorpusEntry, Prepared
from echelon.explain.tables import render_table
from echelon.files.checkpoint_layout import default_choice
from echelon.monitor.screen import describe_scores, show_seconds
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import main_scores, target_names
from echelon.runfolder import RunFolder

_WORST_CLASSES = 5


def unscored_note(run: RunFolder, recipe: Recipe) -> str | None:
    """A note that the newest checkpoint is used because none is the best yet; None otherwise."""
    if default_choice(run.checkpoints, recipe.evaluate.final) == recipe.evaluate.final:
        return None
    return f"note: {run.path}: nothing was scored yet, so no checkpoint is the best; the newest is used"


def format_prepared_text(prepared: Prepared) -> str:
    """What preparation made of parallel text, and what it dropped and why."""
    manifest = prepared.manifest
    lines = [_format_corpus(corpus) for corpus in manifest.corpora]
    return "\n".join(
        [*lines, f"vocabulary: {manifest.vocabulary:,} pieces", f"prepared data: {prepared.folder}"]
    )


def format_prepared_images(prepared: PreparedImages) -> str:
    """What preparation made of images."""
    manifest = prepared.manifest
    lines = [_format_split(split) for split in manifest.splits]
    seen = f"{len(manifest.classes):,} classes; the model sees {manifest.pixels}x{manifest.pixels} pixels"
    return "\n".join([*lines, seen, f"prepared data: {prepared.folder}"])


def _format_split(split: SplitEntry) -> str:
    fewest, most = min(split.per_class), max(split.per_class)
    each = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{split.name}: {split.images:,} images, {each} a class: {split.label}"


def _format_corpus(corpus: CorpusEntry) -> str:
    dropped = {reason.replace("_", " "): count for reason, count in vars(corpus.dropped).items() if count}
    reasons = (
        f"; dropped {', '.join(f'{count:,} {name}' for name, count in dropped.items())}" if dropped else ""
    )
    return (
        f"{corpus.name}: {corpus.pairs:,} pairs of {corpus.lines:,} lines, "
        f"{corpus.source.tokens:,} source and {corpus.target.tokens:,} target tokens{reasons}"
    )


def format_training(result: dict[str, Any]) -> str:
    """How a training ended."""
    if not result["finished"]:
        saved = result["saved_step"]
        where = f"saved at step {saved}" if saved else "before anything was saved"
        return f"{result['run']}: interrupted, {where}; the same command resumes from there"
    if result.get("paused"):
        return (
            f"{result['run']}: saved at step {result['step']}; the same command without train.stop_at resumes"
        )
    test, valid = result.get("test"), result.get("valid")
    if test:
        return f"{result['run']}: {result['step']} steps, test {describe_scores(test)} ({test.get('checkpoint')})"
    scores = f", best validation {describe_scores(valid)} (step {valid['step']})" if valid else ""
    return f"{result['run']}: {result['step']} steps{scores}"


def format_evaluation(result: dict[str, Any]) -> str:
    """A score with all that is needed to compare it."""
    return (
        f"{result['split']}: {describe_scores(result)}\n"
        f"checkpoint: {result['checkpoint']} (step {result['step']})\n"
        f"signature: {result['signature']}\n"
        f"outputs: {result['outputs']}" + _format_left_out(result) + _format_classes(result)
    )


def _format_left_out(result: dict[str, Any]) -> str:
    left_out = result.get("left_out_of_loss")
    return f"\nnote: {describe_left_out(left_out['pairs'], left_out['above_tokens'])}" if left_out else ""


def _format_classes(result: dict[str, Any]) -> str:
    """The classes with the lowest accuracy, and what they are mistaken for."""
    scored = [entry for entry in result.get("classes", []) if entry["top1"] is not None]
    if not scored:
        return ""
    worst = sorted(scored, key=lambda entry: entry["top1"])[:_WORST_CLASSES]
    lines = ["\nclasses with the lowest accuracy:"]
    for entry in worst:
        taken = [pair for pair in result.get("confused", []) if pair["class"] == entry["name"]]
        mistakes = ", ".join(f"{pair['taken_for']!r} ({_times(pair['images'])})" for pair in taken[:3])
        lines.append(
            f"  {entry['name']:<20}{entry['top1']:6.2f}%" + (f"  mistaken for {mistakes}" if taken else "")
        )
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def format_classification(pictures: Sequence[dict[str, Any]]) -> str:
    """Each file with its most likely classes."""
    width = max(len(picture["file"]) for picture in pictures)
    lines = []
    for picture in pictures:
        guesses = (f"{guess['class']} {guess['probability']:.1%}" for guess in picture["classes"])
        lines.append(f"{picture['file']:<{width}}  {', '.join(guesses)}")
    return "\n".join(lines)


def format_demo(result: dict[str, Any]) -> str:
    """The end of the demo: the score, some translations, and what to do next."""
    if not result["finished"]:
        return format_training(result)
    lines = [f"\nDone in {show_seconds(result['seconds'])}. {format_training(result)}\n"]
    for source, target in result["translations"].items():
        lines += [f"  {source}", f"    {target}"]
    lines += [f"\nWhere the time went, and what would make it faster: {result['report']}"]
    lines += [f"Now try your own sentences: {result['program']} translate {result['run']}"]
    return "\n".join(lines)


def format_runs(runs: Sequence[RunSummary], folder: Path, width: int | None = None) -> str:
    """A table of runs that fits `width`."""
    if not runs:
        return f"no runs in {folder}"
    rows = [("RUN", "STATE", "STEP", "SCORE", "SIZE", "CHANGED")]
    rows += [
        (
            run.name,
            run.state,
            f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else ""),
            _format_scores(run),
            f"{run.bytes / 1e6:,.1f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.last_change)),
        )
        for run in runs
    ]
    return render_table(rows, width)


def format_status(status: RunStatus) -> str:
    """A run's state, its hosts and its latest events."""
    run = status.run
    lines = [f"{run.path}: {run.state}, step {run.step:,}" + (f" of {run.steps:,}" if run.steps else "")]
    if status.seconds_per_step:
        lines[0] += f", {status.seconds_per_step * 1000:,.0f} ms a step"
    if status.seconds_left is not None:
        lines[0] += f", {show_seconds(status.seconds_left)} to go"
    if run.state == "unknown":
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.last_change))
        lines.append(f"  as of {when}: its launcher has gone, and not all of its hosts can be asked")
    if _format_scores(run):
        lines.append(f"  {_format_scores(run)}")
    if status.generation is not None:
        lines.append(f"  generation {status.generation}")
    lines += [
        f"  {host.host}: {host.state}" + (f", {_count_workers(host.workers)}" if host.is_reached else "")
        for host in status.hosts
    ]
    lines += [f"  {event.splitlines()[0]}" for event in status.events if event]
    return "\n".join(lines)


def _format_scores(run: RunSummary) -> str:
    """The run's own score, and those of other sets that it was scored on."""
    others = {name: found for name, found in run.scores.items() if name not in ("valid", "test")}
    checkpoint = f"test, {run.test['checkpoint']}" if run.test else "test"
    words = []
    for score in main_scores():
        if (own := run.own_scores.get(score.key)) is not None:
            words.append(f"{score.format(own.value)} ({checkpoint if own.of == 'test' else own.of})")
        values = ((name, found.get(score.key)) for name, found in others.items())
        words += [f"{score.format(value)} ({name})" for name, value in values if value is not None]
    return ", ".join(words)


def format_stop(result: dict[str, Any]) -> str:
    """Whether a run was stopped, or was not running."""
    if not result["was_running"]:
        words = f"{result['run']}: was not being trained ({result['state']} at step {result['step']:,})"
    else:
        words = f"{result['run']}: {result['state']} at step {result['step']:,}"
    if result["unreachable"]:
        words += f"; not reached: {', '.join(result['unreachable'])}, whose agents leave when they find out"
    return words


_SUSPECT_PEAK = (
    ": other programs were using the machine while that was measured, so measure again when it is idle"
)


def _format_speed(result: dict[str, Any]) -> str:
    """What was measured of the speed, whichever task's unit that is in."""
    return next(
        f"{result[f'{unit}_per_second']:,.0f} {targets}/s"
        for unit, targets in target_names().items()
        if f"{unit}_per_second" in result
    )


def format_benchmark(result: dict[str, Any]) -> str:
    """What was measured, how close it comes to the machine's peak, and where the rest of the time went."""
    seconds = result["seconds_per_step"]
    phases = {phase: time_s / seconds for phase, time_s in result["breakdown"].items()}
    model = phases["forward"] + phases["backward"]
    update, exchange, batches = phases["optimiser"], phases["communication"], phases["data"]
    beside_products = max(0.0, model - result["peak_share"])
    other = max(0.0, 1 - model - update - exchange - batches)
    return (
        f"{_format_speed(result)}, {seconds * 1000:,.1f} ms a step "
        f"({result['steps']} steps, {_count_workers(result['workers'])}, {result['precision']}, {result['kernels']})\n"
        f"{result['flops_per_step']:.3g} FLOPs a step: {result['peak_share']:.0%} of the "
        f"{result['peak_flops'] / 1e9:,.0f} GFLOP/s that matrix products reach here in {result['precision']}"
        f"{_SUSPECT_PEAK if result['peak_share'] >= 1 else ''}\n"
        f"the rest: {beside_products:.1%} what forward and backward do beside that, {update:.1%} the update, "
        f"{exchange:.1%} the exchange, {batches:.1%} planning and loading batches, {other:.1%} other"
    )


def _count_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def format_export(result: dict[str, Any]) -> str:
    """The result of `export`."""
    check = result["check"]
    if "pictures" in check:
        compared = (
            f"{check['pictures']} images: probabilities differ by at most {check['largest_difference']:.2g}, "
            f"{check['equal_classes']} are put into the same class"
        )
    else:
        compared = (
            f"{check['sentences']} sentences: log-probabilities differ by at most {check['largest_difference']:.2g}, "
            f"{check['equal_translations']} translations are the same"
        )
    kind = f"{result['format']}, {result['precision']}" + (", edge bundle" if result["edge"] else "")
    return (
        f"{result['folder']}: {kind}, {result['bytes'] / 1e6:,.1f} MB, from {result['checkpoint']}\n"
        f"checked against PyTorch on {compared}"
    )


def format_server(server: dict[str, Any]) -> str:
    """The server's address, and how to log in."""
    lines = [
        f"{server['model']}, computed by {server['engine']} ({server['precision']}): {server['address']}"
    ]
    if server["token"]:
        lines.append(f"token: {server['token']}")
        lines.append(f"page:  {server['address']}#token={server['token']}")
    return "\n".join(lines)
