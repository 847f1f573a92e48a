"""What each exchange learns from the same samples: validation loss and BLEU on Multi30k, against exact all-reduce.

Two local workers train recipes/multi30k.toml for the same number of steps under every exchange, with every seed. An
hour and more on two cores; fewer steps say less. Usage, with ECHELON_DATA set:
    python -m bench.quality [--steps 1500] [--seeds 1,2] [--only all_reduce,local] [--json FILE]
"""

from __future__ import annotations

import argparse
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
    "parameter_server": ["train.exchange=parameter_server", "exchange.synchronous=false"],
}
LIMITS = {"compressed": 0.01, "low_rank": 0.01, "local": 0.03}
"""How much larger the mean loss may be."""


@dataclass(frozen=True)
class Result:
    """Where one training ended."""

    exchange: str
    seed: int
    loss: float
    bleu: float


def train(exchange: str, seed: int, steps: int, folder: Path) -> Result:
    run = RunFolder(folder / f"{exchange}-{seed}".replace(" ", "-"))
    settings = [
        *EXCHANGES[exchange],
        f"seed={seed}",
        "train.epochs=",
        f"train.steps={steps}",
        f"evaluate.every={steps}",
        f"checkpoint.every={steps}",
        f"schedule.warmup_steps={min(800, steps // 4)}",
        "data.test=",
    ]
    workers = 3 if exchange == "parameter_server" else 2
    command = [sys.executable, "-m", "echelon", "train", str(RECIPE), "--run", str(run.path)]
    command += ["--workers", str(workers), *(word for each in settings for word in ("--set", each))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    valid = [record for record in read_records(run.worker_records(0)) if record["kind"] == "valid"][-1]
    return Result(exchange, seed, valid["loss"], valid["bleu"])


def table(results: list[Result]) -> str:
    """Means over seeds, as Markdown."""
    names = list(dict.fromkeys(result.exchange for result in results))
    lines = ["| exchange | validation loss | to all_reduce | allowed | BLEU |", "|---|---|---|---|---|"]
    exact = statistics.fmean(result.loss for result in results if result.exchange == names[0])
    for name in names:
        mine = [result for result in results if result.exchange == name]
        loss = statistics.fmean(result.loss for result in mine)
        limit = LIMITS.get(name.split()[0])
        bleu = " ".join(f"{result.bleu:.1f}" for result in mine)
        allowed = f"{limit:+.0%}" if limit else ""
        lines.append(f"| {name} | {loss:.4f} | {loss / exact - 1:+.2%} | {allowed} | {bleu} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(EXCHANGES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bench-quality-") as folder:
        for seed in options.seeds:
            for exchange in options.only:
                results.append(train(exchange, seed, options.steps, Path(folder)))
                print(results[-1], flush=True)
                if options.json:
                    write_json(options.json, [asdict(result) for result in results])
    print(f"\n{table(results)}")


if __name__ == "__main__":
    main()
