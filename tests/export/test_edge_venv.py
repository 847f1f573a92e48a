"""The edge bundle where it is meant to run: a virtual environment without torch and without Echelon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echelon import Translator
from echelon.export.export import export_run
from echelon.export.export_folder import ExportOptions
from echelon.runfolder import RunFolder
from tests.small_run import sentences


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["ctranslate2", "onnx"])
def test_the_edge_bundle_needs_no_torch(run: RunFolder, tmp_path: Path, format_: Any) -> None:
    export_run(run, ExportOptions(format_, tmp_path / "out", edge=True))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = Path(__file__).parents[2] / "constraints.txt"
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    requirements = str(tmp_path / "out" / "requirements.txt")
    subprocess.run([*install, "-r", requirements], check=True, timeout=280)
    for module in ("torch", "echelon"):
        tried = subprocess.run([python, "-I", "-c", f"import {module}"], capture_output=True, check=False)
        assert tried.returncode == 1
    lines = [*sentences(9), ""]
    result = subprocess.run(
        [python, "-I", tmp_path / "out" / "translate.py"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    expected = [found.text for found in Translator.load(run.path).translate(lines)]
    assert result.stdout.split("\n") == [*expected, ""]
