"""The demo, whole: what a newcomer sees after `make demo`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.data.demo_corpus import generate
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder


@pytest.mark.slow
@pytest.mark.long
def test_the_demo_reaches_70_bleu_and_translates_unseen_sentences(tmp_path: Path) -> None:
    environment = {**os.environ, "ECHELON_CACHE": str(tmp_path / "cache")}
    run = RunFolder(tmp_path / "demo")

    def echelon(*arguments: str, stdin: str | None = None) -> str:
        command = [sys.executable, "-m", "echelon", *arguments]
        return subprocess.run(
            command, env=environment, input=stdin, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    result = json.loads(echelon("demo", "--run", str(run.path), "--json"))
    assert result["test"]["bleu"] >= 70, result
    assert read_records(run.worker_records(0))[0]["workers"] == 2
    print(f"demo: {result['test']['bleu']:.2f} BLEU in {result['seconds']} s")

    pairs = generate().test[:200]
    sources = "".join(f"{pair.source}\n" for pair in pairs)
    translations = echelon("translate", str(run.path), stdin=sources).splitlines()
    right = sum(ours == pair.target for ours, pair in zip(translations, pairs, strict=True))
    print(f"demo: {right} of {len(pairs)} unseen sentences translated exactly as the grammar does")
    assert right >= len(pairs) / 2
