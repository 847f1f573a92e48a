"""Who writes a run's recipe.toml."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "echelon"


def test_a_runs_recipe_has_one_writer() -> None:
    writes = re.compile(
        r"dump_recipe\(|(write_\w+|copy\w*|move|open)\(\s*\w*run\.recipe\b|run\.recipe\.(write|open|replace)"
    )
    writers = {
        str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if writes.search(file.read_text())
    }
    assert writers == {"recipe/toml.py", "resolve/run_recipe.py", "commands/task_check.py"}, (
        "recipe/toml.py renders it, and writes nothing; commands/task_check.py hands it to a process"
    )
