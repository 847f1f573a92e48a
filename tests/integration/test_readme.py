"""The commands of README and guide run as they stand; only the demo is cut short (test_demo.py runs it whole)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.recipe.loading import load_recipe
from tests.conftest import write_toy_corpus

ROOT = Path(__file__).parents[2]
SHORT = "--set train.steps=20 --set evaluate.every=10 --set evaluate.sentences=20"


PAGES = (ROOT / "README.md", ROOT / "docs" / "guide.md")


def blocks(language: str) -> list[str]:
    pages = "".join(page.read_text() for page in PAGES)
    return re.findall(rf"```{language}\n(.*?)```", pages, flags=re.DOTALL)


def commands() -> list[str]:
    """Every command line of both pages in order, without its comment."""
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.slow
def test_every_command_of_readme_and_guide_runs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ECHELON_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    ran = []
    for command in commands():
        if command.startswith("source "):
            continue  # puts the environment's programs on the PATH, as above
        if "--hosts" in command or command.startswith("echelon lab "):
            continue  # tests/lab/test_tutorial.py runs these, where there can be a lab
        if command.startswith("make "):
            assert command.split()[1] in (ROOT / "Makefile").read_text(), command
            if command != "make demo":
                continue  # the tests themselves
            command = f"echelon demo {SHORT}"  # noqa: PLW2901 - what `make demo` runs, shortened
        if command == "echelon train recipes/digits.toml":
            command += " --set train.epochs= --set train.steps=20"  # noqa: PLW2901 - test_images.py learns them
        ran.append(command)
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    assert len(ran) >= 6, ran


def test_the_example_recipe_of_the_guide_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(text)
    assert load_recipe(tmp_path / "mine.toml").name == "mine"
    write_toy_corpus(tmp_path, "train", 200, 1)
    write_toy_corpus(tmp_path, "valid", 20, 2)
    write_toy_corpus(tmp_path, "test", 20, 3)
    for name in ("train.en", "train.de"):
        subprocess.run(["gzip", str(tmp_path / name)], check=True)
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-m", "echelon", "prepare", str(tmp_path / "mine.toml")], check=True)


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_makefiles_demo_is_the_echelon_demo() -> None:
    assert "\t$(BIN)/echelon demo\n" in (ROOT / "Makefile").read_text()
