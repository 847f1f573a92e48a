"""Echelon and its peers train the same model on the same data, in alternation: a table and a chart.

`make bench-peers`; or one size: `python -m bench.peers.compare small --rounds 7`. The machine should be idle. Every
contender stays loaded and trains a few steps a round, so that the machine's drift strikes all alike; medians of rounds.
Where others use the machine, `--busy` compares one core of each, by the processor time it took.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.contenders import (
    HUGGING_FACE,
    OTHERS,
    Contender,
    Material,
    Tuning,
    echelon,
    install,
    installed_others,
    peer,
    require_tcmalloc,
)
from rich.console import Console

from echelon.launch.cores import available_cores

HERE = Path(__file__).parent
AS_IT_COMES = "Hugging Face Marian, float32"
TUNED_FORM = "the same, "
TUNED = f"{TUNED_FORM}bf16 autocast and tcmalloc"
EAGER = f"{TUNED_FORM}tuned, attention as plain products"
STEPS_A_ROUND = {"small": 3, "base": 1}
SIZES_OF_ALL = ("small",)
"""Of which all peers and all forms of ours are compared: contenders that train `base` take 2 to 4 GB each."""
RESULTS = HERE / "results"


def compare(
    size: str, rounds: int, others: list[str], is_busy: bool, console: Console
) -> Iterator[dict[str, Any]]:
    """After every round the medians by contender, and what Echelon's are of the peak.

    On a busy machine those of one core, by processor time.
    """
    steps = 1 if is_busy else STEPS_A_ROUND[size]
    with tempfile.TemporaryDirectory(prefix="echelon-peers-") as folder:
        material = Material.of(size, Path(folder))
        is_whole = size in SIZES_OF_ALL
        contenders = one_core(material, others) if is_busy else all_cores(material, others, is_whole)
        try:
            contenders = warmed_up(contenders, steps, console)
            for number in range(1, rounds + 1):
                first = number % len(contenders)
                for contender in [*contenders[first:], *contenders[:first]]:
                    contender.answers.append(contender.train(steps))
                console.print(f"{size}: round {number} of {rounds}", highlight=False)
                found = [summary(each, is_busy) for each in contenders]
                yield {"size": size, "rounds": number, "is_busy": is_busy, "contenders": found}
        finally:
            for contender in contenders:
                contender.close()


def all_cores(material: Material, others: list[str], is_whole: bool) -> list[Contender]:
    cores = available_cores()
    alone, together = f"Echelon, 1 worker of {cores} threads", f"Echelon, {cores} workers"
    found = [
        *peers(material, others, cores),
        echelon(material, f"{alone}, {cores} slots", threads=cores, slots=cores),
        echelon(material, f"{together} of 1 thread", workers=cores),
    ]
    if is_whole:
        found += [
            echelon(material, f"{alone}, one slot", threads=cores),
            echelon(material, f"{together}, plain PyTorch", workers=cores, kernels="off"),
        ]
    return found


def one_core(material: Material, others: list[str]) -> list[Contender]:
    return [
        *peers(material, others, 1),
        echelon(material, "Echelon"),
        echelon(material, "Echelon, plain PyTorch", kernels="off"),
    ]


def peers(material: Material, others: list[str], threads: int) -> list[Contender]:
    """Hugging Face first, as it comes and in every form that an expert would try: ratios refer to these."""
    tuned = {TUNED: Tuning(), EAGER: Tuning(is_eager=True)}
    if threads > 1:
        tuned[f"{EAGER}, {threads} processes (DDP)"] = Tuning(is_eager=True, workers=threads)
    return [
        peer(HUGGING_FACE, material, AS_IT_COMES, threads),
        *(
            peer(HUGGING_FACE, material, name, threads // tuning.workers, tuning)
            for name, tuning in tuned.items()
        ),
        *(peer(each, material, f"{OTHERS[each]}, float32", threads) for each in others),
    ]


def warmed_up(contenders: list[Contender], steps: int, console: Console) -> list[Contender]:
    """Those that train here; one that ends, and is not needed, is left out."""
    found = []
    for contender in contenders:
        try:
            contender.train(steps)
        except RuntimeError as error:
            if contender.is_needed:
                raise
            console.print(f"{error} and is left out", highlight=False)
            contender.close()
        else:
            found.append(contender)
    return found


def summary(contender: Contender, is_busy: bool) -> dict[str, Any]:
    answers = contender.answers
    time, peak = ("cpu_seconds", "core_peak_flops") if is_busy else ("seconds", "peak_flops")
    rates = [answer["tokens"] / answer[time] for answer in answers]
    result: dict[str, Any] = {
        "name": contender.name,
        "tokens_per_second": statistics.median(rates),
        "rounds": [round(rate, 1) for rate in rates],
    }
    if peak in answers[0]:
        result["peak_share"] = statistics.median(a["flops"] / a[time] / a[peak] for a in answers)
        result["peak_flops"] = statistics.median(a[peak] for a in answers)
        result["kernels"] = answers[0]["kernels"]
    return result


def table(results: dict[str, Any]) -> str:
    """Markdown: rates and their spread, ratios to the peer as it comes and to the fastest tuned form, share of peak."""
    rates = {each["name"]: each["tokens_per_second"] for each in results["contenders"]}
    plain, tuned = (
        rates[AS_IT_COMES],
        max(rate for name, rate in rates.items() if name.startswith(TUNED_FORM)),
    )
    columns = (
        "target tokens/s",
        "rounds",
        "to the peer as it comes",
        "to the peer tuned",
        "share of bf16 peak",
    )
    lines = [f"| {title(results)} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for each in results["contenders"]:
        rate, share = each["tokens_per_second"], each.get("peak_share")
        cells = (
            f"{rate:,.0f}",
            f"{min(each['rounds']):,.0f} to {max(each['rounds']):,.0f}",
            f"{rate / plain:.2f}",
            f"{rate / tuned:.2f}",
            f"{share:.0%}" if share else "",
        )
        lines.append(f"| {each['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def title(results: dict[str, Any]) -> str:
    return f"{results['size']}, one core" if results["is_busy"] else str(results["size"])


def chart(all_results: list[dict[str, Any]]) -> str:
    """The rates as bars, one group a size, as SVG; each group has a scale of its own."""
    bar, gap, left, width = 22, 34, 440, 420
    parts, y = [], 30
    for results in all_results:
        parts.append(
            f'<text x="10" y="{y}" font-weight="bold">{title(results)}: target tokens a second</text>'
        )
        most = max(each["tokens_per_second"] for each in results["contenders"])
        for each in results["contenders"]:
            y += bar + 6
            length, is_ours = width * each["tokens_per_second"] / most, each["name"].startswith("Echelon")
            colour = "#2a6f97" if is_ours else "#a9b4bc"
            parts += [
                f'<text x="{left - 8}" y="{y}" text-anchor="end">{each["name"]}</text>',
                f'<rect x="{left}" y="{y - bar + 6}" width="{length:.0f}" height="{bar}" fill="{colour}"/>',
                f'<text x="{left + length + 6:.0f}" y="{y}">{each["tokens_per_second"]:,.0f}</text>',
            ]
        y += bar + gap
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 80} {y}" font-family="sans-serif"'
    return (
        f'{head} font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", choices=list(STEPS_A_ROUND), default=list(STEPS_A_ROUND))
    parser.add_argument("--rounds", type=int, default=7, choices=range(1, 1000), metavar="N")
    parser.add_argument("--busy", action="store_true", help="one core, processor time")
    options = parser.parse_args()
    console = Console(stderr=True)
    require_tcmalloc()
    try:
        install(HUGGING_FACE, console)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"Hugging Face, which ratios refer to, cannot be installed: {error}") from None
    others = installed_others(console) if set(options.sizes) & set(SIZES_OF_ALL) else []
    RESULTS.mkdir(exist_ok=True)
    for size in options.sizes:
        file = RESULTS / f"{size}{'-one-core' if options.busy else ''}.json"
        compared = others if size in SIZES_OF_ALL else []
        for results in compare(size, options.rounds, compared, options.busy, console):
            file.write_text(json.dumps(results, indent=2) + "\n")  # kept where somebody stops this early
        print(table(results), "\n")
    known = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"), reverse=True)]
    (RESULTS / "peers.svg").write_text(chart(known))


if __name__ == "__main__":
    main()
