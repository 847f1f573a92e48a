"""`doctor --task` passes the examples, and finds each way of not keeping to the rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echelon.commands.task_check import find_faults

EXAMPLES = Path(__file__).parents[2] / "docs" / "own-parts"
FAULTS = {
    "draws other random numbers": (
        "def batch(self, examples, random):\n"
        "        import os\n"
        "        words, starts, languages = super().batch(examples, random)\n"
        "        return (words + int.from_bytes(os.urandom(4))) % self.rows, starts, languages",
        "computed twice by one process",
    ),
    "uses hash()": (
        "def batch(self, examples, random):\n"
        "        words, starts, languages = super().batch(examples, random)\n"
        "        return (words + hash(examples[0][0])) % self.rows, starts, languages",
        "in another process",
    ),
    "keeps a buffer": (
        "def build_model(self):\n"
        "        model = super().build_model()\n"
        "        model.register_buffer('seen', torch.zeros(()))\n"
        "        model.register_forward_pre_hook(lambda module, _: module.seen.add_(1) and None)\n"
        "        return model",
        "the buffer seen",
    ),
    "is initialised by something else": (
        "def build_model(self):\n"
        "        model = super().build_model()\n"
        "        with torch.no_grad():\n"
        "            model.decide.bias.fill_(hash('a') % 997)\n"
        "        return model",
        "other weights",
    ),
}


def check(recipe: Path, folder: Path) -> tuple[int, Any]:
    places = os.pathsep.join([str(folder), str(EXAMPLES)])
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "doctor", "--task", str(recipe), "--json"],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("name", ["sentences", "letters", "discs"])
def test_the_examples_keep_to_the_rule(name: str, tmp_path: Path) -> None:
    status, found = check(EXAMPLES / f"{name}.toml", tmp_path)
    assert (status, found["findings"]) == (0, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_task_that_breaks_the_rule_is_found(fault: str, tmp_path: Path) -> None:
    method, words = FAULTS[fault]
    source = f"import torch\nimport sentences\n\n\nclass Faulty(sentences.Languages):\n    {method}\n"
    (tmp_path / "faulty.py").write_text(source)
    recipe = (EXAMPLES / "sentences.toml").read_text().replace("sentences:Languages", "faulty:Faulty")
    (tmp_path / "faulty.toml").write_text(recipe)
    status, found = check(tmp_path / "faulty.toml", tmp_path)
    assert status == 1
    assert any(words in finding for finding in found["findings"]), found


def test_a_task_of_echelons_own_is_refused(tmp_path: Path) -> None:
    status, found = check(Path(__file__).parents[2] / "recipes" / "digits.toml", tmp_path)
    assert status == 2
    assert "checks one of your own" in found["error"]


def test_scores_that_depend_on_the_share_are_found() -> None:
    computed = {"initial": "a", "changed": [], "slots": [[0, 1], [1, 2], [0, 1]], "scores": {"loss": "0x1p0"}}
    other = {**computed, "slots": [[1, 2], [0, 1]], "scores": {"loss": "0x1p1"}}
    assert [finding[:18] for finding in find_faults(computed, other)] == ["the validation set"]
