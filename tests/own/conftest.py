"""What tests of a user's own parts share: where Python finds them, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "own-parts"
Verb = Callable[..., Any]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Python finds the examples and the modules in `tmp_path`; what is prepared goes where it is not in the way."""
    kept = {name: value for name, value in os.environ.items() if name != "ECHELON_OWN_CODE"}
    places = os.pathsep.join([str(tmp_path), str(EXAMPLES)])
    return {**kept, "PYTHONPATH": places, "ECHELON_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def run_verb(environment: dict[str, str]) -> Verb:
    """Run a verb; its JSON. `finds_code=False` hides the examples from Python."""

    def run(*words: object, finds_code: bool = True, status: int = 0) -> Any:
        command = [sys.executable, "-m", "echelon", *map(str, words), "--json"]
        found = environment if finds_code else {**environment, "PYTHONPATH": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=found, check=False)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    return run
