"""What ships, installed where there is no checkout: it trains with its kernels, finds its recipes, serves its page."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import pytest

from echelon.launch.package import list_files, source_digest
from echelon.launch.wheel import Wheel, pack_wheel
from tests.serve.served import serve

ROOT = Path(__file__).parents[2]
SHORT = (
    "train.workers=1",
    "train.steps=2",
    "evaluate.every=2",
    "evaluate.sentences=4",
    "model.encoder_layers=1",
)
_PACK = """
import sys
from pathlib import Path
from echelon.launch.wheel import pack_wheel
wheel = pack_wheel()
Path(sys.argv[1], wheel.name).write_bytes(wheel.content)
"""


class Installation:
    """An environment with a wheel of Echelon, and with the packages of the one here but not its Echelon."""

    def __init__(self, folder: Path, wheel: Wheel) -> None:
        self.folder = folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder], check=True)
        file = folder / wheel.name
        file.write_bytes(wheel.content)
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder), "install", "--quiet", "--no-index"]
        subprocess.run([*pip, "--no-deps", str(file)], check=True)
        (self.site,) = self.folder.glob("lib/python*/site-packages")
        # The .pth files in there, and with them an editable installation of a checkout, are not read.
        self.site.joinpath("here.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        removed = ("PYTHONPATH", "PYTHONHOME")
        self.environ = {name: value for name, value in os.environ.items() if name not in removed} | {
            "ECHELON_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        self.python = str(self.folder / "bin" / "python")

    def run(self, *command: str, cwd: Path) -> str:
        """Run a program of the environment; all that it says."""
        program = str(self.folder / "bin" / command[0])
        result = subprocess.run(
            [program, *command[1:]],
            cwd=cwd,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installed"), pack_wheel())


@pytest.mark.slow
def test_the_installed_package_is_the_checkouts_to_the_byte_and_packs_itself(
    installation: Installation, tmp_path: Path
) -> None:
    where = installation.run("python", "-c", "import echelon; print(echelon.__file__)", cwd=tmp_path).strip()
    assert where == str(installation.site / "echelon" / "__init__.py")
    assert list_files(installation.site / "echelon") == list_files(ROOT / "src" / "echelon")
    assert source_digest(installation.site / "echelon") == source_digest(ROOT / "src" / "echelon")
    installation.run("python", "-c", _PACK, str(tmp_path), cwd=tmp_path)
    (again,) = tmp_path.glob("echelon_train-*.whl")
    copy = Installation(tmp_path, Wheel(again.name, again.read_bytes()))
    assert source_digest(copy.site / "echelon") == source_digest(ROOT / "src" / "echelon")
    assert "echelon" in copy.run("echelon", "--help", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the kernels")
def test_the_installed_package_trains_with_its_kernels_and_serves_its_page(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [word for setting in SHORT for word in ("--set", setting)]
    said = installation.run("echelon", "demo", "--run", "runs/demo", *overrides, cwd=tmp_path)
    assert "own kernels, compiled for this CPU" in said
    with serve(
        tmp_path / "runs" / "demo", python=installation.python, environ=installation.environ
    ) as server:
        for name in ("", "page.js", "style.css", "icon.svg"):
            with urllib.request.urlopen(urljoin(server.address, name), timeout=60) as answer:
                content = answer.read()
            served = installation.site / "echelon" / "serve" / "page" / (name or "index.html")
            assert content == served.read_bytes()
        assert server.stop() == 0
