"""The examples of docs/python.md run, in order, as the cells of a notebook."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat import v4

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"


def cells_of(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def outputs(notebook: Any, kind: str) -> list[str]:
    """What the cells have shown, of a kind of content."""
    shown = [output for cell in notebook.cells for output in cell.outputs]
    return [str(output.data[kind]) for output in shown if kind in output.get("data", {})]


# Jupyter's own packages warn each other of changes to come.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_the_examples_run_in_a_notebook_and_show_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    made: Any = v4  # its functions have no types
    notebook = made.new_notebook(cells=[made.new_code_cell(source) for source in cells_of(PAGE)])
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    pages = outputs(notebook, "text/html")
    assert sum("<progress" in page for page in pages) >= 4  # two while training, two as the value of a cell
    assert "data:image/svg+xml" in pages[-1]
    assert "finished, step 20 of 20" in outputs(notebook, "text/plain")[-2]
    assert (tmp_path / "runs" / "background" / "scores" / "test.json").is_file()
