"""The results of verbs in words, for people. Pure functions of what --json prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echelon.commands.listing import RunSummary
from echelon.commands.running import RunStatus
from echelon.data.held_out import describe_left_out
from echelon.data.images.store import PreparedImages, SplitEntry
from echelon.data.planning import AnyPrepared
from echelon.data.prepared import CorpusEntry
from echelon.explain.tables import render_table
from echelon.monitor.screen import describe_scores, show_seconds

_WORST_CLASSES = 5


def prepared_words(prepared: AnyPrepared) -> str:
    """What preparation made, and what it dropped and why."""
    if isinstance(prepared, PreparedImages):
        return _images_words(prepared)
    manifest = prepared.manifest
    lines = [_corpus_words(corpus) for corpus in manifest.corpora]
    return "\n".join(
        [*lines, f"vocabulary: {manifest.vocabulary:,} pieces", f"prepared data: {prepared.folder}"]
    )


def _images_words(prepared: PreparedImages) -> str:
    manifest = prepared.manifest
    lines = [_split_words(split) for split in manifest.splits]
    seen = f"{len(manifest.classes):,} classes; the model sees {manifest.pixels}x{manifest.pixels} pixels"
    return "\n".join([*lines, seen, f"prepared data: {prepared.folder}"])


def _split_words(split: SplitEntry) -> str:
    fewest, most = min(split.per_class), max(split.per_class)
    each = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{split.name}: {split.images:,} pictures, {each} a class: {split.label}"


def _corpus_words(corpus: CorpusEntry) -> str:
    dropped = {reason.replace("_", " "): count for reason, count in vars(corpus.dropped).items() if count}
    reasons = (
        f"; dropped {', '.join(f'{count:,} {name}' for name, count in dropped.items())}" if dropped else ""
    )
    return (
        f"{corpus.name}: {corpus.pairs:,} pairs of {corpus.lines:,} lines, "
        f"{corpus.source.tokens:,} source and {corpus.target.tokens:,} target tokens{reasons}"
    )


def trained_words(result: dict[str, Any]) -> str:
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


def evaluated_words(result: dict[str, Any]) -> str:
    """A score with everything that is needed to compare it."""
    return (
        f"{result['split']}: {describe_scores(result)}\n"
        f"checkpoint: {result['checkpoint']} (step {result['step']})\n"
        f"signature: {result['signature']}\n"
        f"outputs: {result['outputs']}" + _left_out_words(result) + _class_words(result)
    )


def _left_out_words(result: dict[str, Any]) -> str:
    left_out = result.get("left_out_of_loss")
    return f"\nnote: {describe_left_out(left_out['pairs'], left_out['above_tokens'])}" if left_out else ""


def _class_words(result: dict[str, Any]) -> str:
    """Of image classification: the classes with the lowest accuracy, and what they are mistaken for."""
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


def classified_words(pictures: Sequence[dict[str, Any]]) -> str:
    """Each file with its likeliest classes."""
    width = max(len(picture["file"]) for picture in pictures)
    lines = []
    for picture in pictures:
        guesses = (f"{guess['class']} {guess['probability']:.1%}" for guess in picture["classes"])
        lines.append(f"{picture['file']:<{width}}  {', '.join(guesses)}")
    return "\n".join(lines)


def demo_words(result: dict[str, Any]) -> str:
    """The end of the demo: the score, some translations, and what to do next."""
    if not result["finished"]:
        return trained_words(result)
    lines = [f"\nDone in {show_seconds(result['seconds'])}. {trained_words(result)}\n"]
    for source, target in result["translations"].items():
        lines += [f"  {source}", f"    {target}"]
    lines += [f"\nWhere the time went, and what would make it faster: {result['report']}"]
    lines += [f"Now try your own sentences: {result['program']} translate {result['run']}"]
    return "\n".join(lines)


def runs_words(runs: Sequence[RunSummary], folder: Path, width: int | None = None) -> str:
    """A table of runs that fits `width`."""
    if not runs:
        return f"no runs in {folder}"
    rows = [("RUN", "STATE", "STEP", "SCORE", "SIZE", "CHANGED")]
    rows += [
        (
            run.name,
            run.state,
            f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else ""),
            _score_words(run),
            f"{run.bytes / 1e6:,.1f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.last_change)),
        )
        for run in runs
    ]
    return render_table(rows, width)


def status_words(status: RunStatus) -> str:
    """A run that may be going on, its hosts, and what was told last."""
    run = status.run
    lines = [f"{run.path}: {run.state}, step {run.step:,}" + (f" of {run.steps:,}" if run.steps else "")]
    if status.seconds_per_step:
        lines[0] += f", {status.seconds_per_step * 1000:,.0f} ms a step"
    if status.seconds_left is not None:
        lines[0] += f", {show_seconds(status.seconds_left)} to go"
    if run.state == "unknown":
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.last_change))
        lines.append(f"  as of {when}: its launcher has gone, and not all of its hosts can be asked")
    if _score_words(run):
        lines.append(f"  {_score_words(run)}")
    if status.generation is not None:
        lines.append(f"  generation {status.generation}")
    lines += [f"  {host.host}: {host.state}, {_count_workers(host.workers)}" for host in status.hosts]
    lines += [f"  {event.splitlines()[0]}" for event in status.events if event]
    return "\n".join(lines)


def _score_words(run: RunSummary) -> str:
    """The run's own score, and those of the sets that it was given to score."""
    others = {name: found for name, found in run.scores.items() if name not in ("valid", "test")}
    checkpoint = f"test, {run.test['checkpoint']}" if run.test else "test"
    bleu = {checkpoint if run.bleu_of == "test" else run.bleu_of: run.bleu} | {
        name: found.get("bleu") for name, found in others.items()
    }
    top1 = {checkpoint if run.top1_of == "test" else run.top1_of: run.top1} | {
        name: found.get("top1") for name, found in others.items()
    }
    words = [f"BLEU {value:.2f} ({name})" for name, value in bleu.items() if value is not None]
    words += [f"top-1 {value:.2f}% ({name})" for name, value in top1.items() if value is not None]
    return ", ".join(words)


def stopped_words(result: dict[str, Any]) -> str:
    """That a run has been stopped, or did not run."""
    if not result["was_running"]:
        words = f"{result['run']}: nobody was training it ({result['state']} at step {result['step']:,})"
    else:
        words = f"{result['run']}: {result['state']} at step {result['step']:,}"
    if result["unreachable"]:
        words += f"; not reached: {', '.join(result['unreachable'])}, whose agents leave when they find out"
    return words


def benchmark_words(result: dict[str, Any]) -> str:
    """What was measured, how near it is to what the machine can do, and where the rest went."""
    seconds = result["seconds_per_step"]
    phases = {phase: time_s / seconds for phase, time_s in result["breakdown"].items()}
    model = phases["forward"] + phases["backward"]
    update, exchange, batches = phases["optimiser"], phases["communication"], phases["data"]
    # A peak that was measured while others used the machine may be lower than what training reached.
    beside_products = max(0.0, model - result["peak_share"])
    other = max(0.0, 1 - model - update - exchange - batches)
    tokens, images = result.get("tokens_per_second"), result.get("images_per_second")
    speed = f"{images:,.0f} images/s" if tokens is None else f"{tokens:,.0f} target tokens/s"
    return (
        f"{speed}, {seconds * 1000:,.1f} ms a step "
        f"({result['steps']} steps, {_count_workers(result['workers'])}, {result['precision']}, {result['kernels']})\n"
        f"{result['flops_per_step']:.3g} FLOPs a step: {result['peak_share']:.0%} of the "
        f"{result['peak_flops'] / 1e9:,.0f} GFLOP/s that matrix products reach here in {result['precision']}\n"
        f"the rest: {beside_products:.1%} what forward and backward do beside that, {update:.1%} the update, "
        f"{exchange:.1%} the exchange, {batches:.1%} planning and loading batches, {other:.1%} other"
    )


def _count_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def exported_words(result: dict[str, Any]) -> str:
    """What `export` says when it is done."""
    check = result["check"]
    if "pictures" in check:
        compared = (
            f"{check['pictures']} pictures: probabilities differ by at most {check['largest_difference']:.2g}, "
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


def served_words(server: dict[str, Any]) -> str:
    """Where the server is, and how to get in."""
    lines = [
        f"{server['model']}, computed by {server['engine']} ({server['precision']}): {server['address']}"
    ]
    if server["token"]:
        lines.append(f"token: {server['token']}")
        lines.append(f"page:  {server['address']}#token={server['token']}")
    return "\n".join(lines)
