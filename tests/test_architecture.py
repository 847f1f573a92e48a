"""docs/architecture.md is true: packages in the map, files in drawings that fit a screen, names in walks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "echelon"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_LINES, MOST_COLUMNS = 40, 125


def drawing(heading: str) -> str:
    """The first block of code below a heading."""
    return PAGE.split(f"\n## {heading}", 1)[1].split("```")[1].strip("\n")


def test_the_map_has_every_package() -> None:
    tree = PAGE.split("```")[1]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {name for name in packages if not re.search(rf"^  {name}/ ", tree, re.MULTILINE)} == set()


def test_each_drawing_fits_a_screen_and_names_files_that_exist() -> None:
    for heading in ("Control", "Data"):
        lines = drawing(heading).splitlines()
        assert len(lines) <= MOST_LINES
        assert max(map(len, lines)) <= MOST_COLUMNS
        named = re.findall(r"[\w/]+\.py", "\n".join(lines))
        assert named
        assert [name for name in named if not list(SOURCE.rglob(name))] == []


def test_the_walks_name_what_is_in_these_files() -> None:
    walks = PAGE.split("\n## Three walks", 1)[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`:((?:[\s,]+`\w+`)+)", walks)
    assert len(named) > 20
    missing = [
        f"{file}: {name}"
        for file, names in named
        for name in re.findall(r"\w+", names)
        if not re.search(rf"^\s*(async )?(def|class) {name}\b", (SOURCE / file).read_text(), re.MULTILINE)
    ]
    assert missing == []
