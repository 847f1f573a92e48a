"""What is learnt from the same samples, one way and another: validation loss and BLEU on Multi30k.

Two local workers train recipes/multi30k.toml with every seed: for 1,500 steps under every exchange, against exact
all-reduce; or to the recipe's end on every path through the model, against plain PyTorch in float32. Two hours, and
three for paths, on two cores; fewer steps say less. Usage, with ECHELON_DATA set:
    python -m bench.quality [--what exchanges|paths] [--steps N] [--seeds 1,2] [--only low_rank,local]
        [--json FILE] [--runs FOLDER]
What FILE holds already is not trained again; a training that was interrupted goes on from its checkpoint in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder, write_json

RECIPE = Path(__file__).parents[1] / "recipes" / "multi30k.toml"
EXCHANGES = {
    "all_reduce": [],
    "compressed bf16": ["train.exchange=compressed"],
    "compressed fp16": ["train.exchange=compressed", "exchange.wire=fp16"],
    "compressed int8": ["train.exchange=compressed", "exchange.wire=int8"],
    "low_rank": ["train.exchange=low_rank"],
    "local": ["train.exchange=local"],
    "local averaging": ["train.exchange=local", "exchange.outer_rate=1", "exchange.outer_momentum=0"],
    "parameter_server": ["train.exchange=parameter_server", "exchange.synchronous=false"],
}
PATHS = {
    "plain float32": ["train.kernels=off", "train.precision=float32"],
    "plain bf16": ["train.kernels=off", "train.precision=bf16"],
    "fast float32": ["train.kernels=auto", "train.precision=float32"],
    "fast bf16": ["train.kernels=auto", "train.precision=bf16"],
}
WAYS = {"exchanges": EXCHANGES, "paths": PATHS}
"""The first of each is what the others are compared with: always trained too."""
NEVER = 10**9
"""Steps between two evaluations or saves: there is one at the end in any case."""
LIMITS = {"compressed": 0.01, "low_rank": 0.01, "local": 0.03, "plain": 0.01, "fast": 0.01}
"""How much larger the mean loss may be."""


@dataclass(frozen=True)
class Result:
    """Where one training ended."""

    way: str
    seed: int
    steps: int | None
    """None: to the recipe's end."""
    loss: float
    bleu: float


def train(way: str, settings: list[str], seed: int, steps: int | None, folder: Path) -> Result:
    """Train so many steps, or to the recipe's end."""
    run = RunFolder(folder / f"{way}-{seed}".replace(" ", "-"))
    settings = [*settings, f"seed={seed}", "data.test=", f"evaluate.every={NEVER}"]
    if steps is not None:
        settings += [
            "train.epochs=",
            f"train.steps={steps}",
            f"checkpoint.every={NEVER}",
            f"schedule.warmup_steps={min(800, steps // 4)}",
        ]
    workers = 3 if way == "parameter_server" else 2
    command = [sys.executable, "-m", "echelon", "train", str(RECIPE), "--run", str(run.path)]
    command += ["--workers", str(workers), *(word for each in settings for word in ("--set", each))]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{way} with seed {seed} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    valid = [record for record in read_records(run.worker_records(0)) if record["kind"] == "valid"][-1]
    return Result(way, seed, steps, valid["loss"], valid["bleu"])


def read_results(file: Path | None) -> list[Result]:
    """What an earlier comparison has left there."""
    if file is None or not file.exists():
        return []
    try:
        return [Result(**each) for each in json.loads(file.read_text())]
    except (ValueError, TypeError) as error:
        sys.exit(f"{file} holds no results of this benchmark ({error}): name another file")


def table(results: list[Result]) -> str:
    """Means over seeds, and the losses and scores of each, as Markdown."""
    names = list(dict.fromkeys(result.way for result in results))
    lines = [
        f"| | validation loss | of each seed | to {names[0]} | allowed | BLEU |",
        "|---|---|---|---|---|---|",
    ]
    exact = statistics.fmean(result.loss for result in results if result.way == names[0])
    for name in names:
        mine = [result for result in results if result.way == name]
        loss = statistics.fmean(result.loss for result in mine)
        limit = LIMITS.get(name.split()[0]) if name != names[0] else None
        losses = " ".join(f"{result.loss:.4f}" for result in mine)
        bleu = " ".join(f"{result.bleu:.1f}" for result in mine)
        allowed = f"{limit:+.0%}" if limit else ""
        lines.append(f"| {name} | {loss:.4f} | {losses} | {loss / exact - 1:+.2%} | {allowed} | {bleu} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=list(WAYS), default="exchanges")
    parser.add_argument("--steps", type=int, help="1,500 for exchanges, the recipe's own for paths")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2])
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=Path, help="where runs are kept; not given: nowhere")
    options = parser.parse_args()
    ways = WAYS[options.what]
    steps = options.steps or (1500 if options.what == "exchanges" else None)
    done = {(each.way, each.seed, each.steps): each for each in read_results(options.json)}
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bench-quality-") as scratch:
        folder = options.runs or Path(scratch)
        for seed in options.seeds:
            for way in dict.fromkeys([next(iter(ways)), *(options.only or ways)]):
                result = done.get((way, seed, steps)) or train(way, ways[way], seed, steps, folder)
                results.append(result)
                print(result, flush=True)
                done[way, seed, steps] = result
                if options.json:
                    write_json(options.json, [asdict(each) for each in done.values()])
    print(f"\n{table(results)}")


if __name__ == "__main__":
    main()
