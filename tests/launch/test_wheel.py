"""The wheel that is sent to hosts: built from a checkout, and again from what pip installed of it."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import echelon
from echelon.errors import UserError
from echelon.launch import wheel as packing
from echelon.launch.package import FOLDER, list_files, source_digest
from echelon.launch.wheel import Wheel, _record_hash, build_wheel, pack_wheel, rebuild_wheel

STEM = f"echelon_train-{echelon.__version__}"
CHECKOUT = Path(__file__).parents[2]


def unzip(wheel: Wheel) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built() -> Wheel:
    return pack_wheel()


@pytest.fixture
def installed(built: Wheel, tmp_path: Path) -> importlib.metadata.Distribution:
    """What pip makes of the wheel, in a folder of its own."""
    file = tmp_path / built.name
    file.write_bytes(built.content)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-index"]
    subprocess.run([*pip, "--target", site, file], check=True)
    return importlib.metadata.PathDistribution(site / f"{STEM}.dist-info")


def test_the_wheel_holds_every_file_of_the_package(built: Wheel) -> None:
    files = unzip(built)
    assert built.name == f"{STEM}-py3-none-any.whl"
    package = {name: data for name, data in files.items() if name.startswith("echelon/")}
    assert package == {f"echelon/{name}": (FOLDER / name).read_bytes() for name in list_files()}
    metadata = files[f"{STEM}.dist-info/METADATA"].decode()
    assert "Requires-Dist: torch" in metadata
    assert "Provides-Extra: serve" in metadata
    assert f"{STEM}.dist-info/licenses/LICENSE" in files


def test_the_same_code_gives_the_same_wheel_and_leaves_the_checkout_alone(built: Wheel) -> None:
    before = sorted(CHECKOUT.iterdir()), sorted((CHECKOUT / "src").iterdir())
    assert pack_wheel() == built
    assert (sorted(CHECKOUT.iterdir()), sorted((CHECKOUT / "src").iterdir())) == before


def test_an_installed_package_gives_the_wheel_it_was_installed_from(
    built: Wheel, installed: importlib.metadata.Distribution
) -> None:
    rebuilt = rebuild_wheel(installed)
    assert rebuilt == rebuild_wheel(installed)
    assert rebuilt.name == built.name
    record = f"{STEM}.dist-info/RECORD"
    files, expected = unzip(rebuilt), unzip(built)
    assert sorted(files.pop(record).splitlines()) == sorted(expected.pop(record).splitlines())
    assert files == expected


def test_a_changed_file_of_an_installed_package_goes_along(
    installed: importlib.metadata.Distribution, tmp_path: Path
) -> None:
    (tmp_path / "site" / "echelon" / "errors.py").write_text("changed")
    files = unzip(rebuild_wheel(installed))
    assert files["echelon/errors.py"] == b"changed"
    rows = csv.reader(files[f"{STEM}.dist-info/RECORD"].decode().splitlines())
    listed = {name: (sha256, size) for name, sha256, size in rows}
    assert listed["echelon/errors.py"] == (f"sha256={_record_hash(b'changed')}", "7")
    other = tmp_path / "other"
    other.mkdir()
    with zipfile.ZipFile(io.BytesIO(rebuild_wheel(installed).content)) as archive:
        archive.extractall(other)
    assert source_digest(other / "echelon") == source_digest(tmp_path / "site" / "echelon") != source_digest()


def test_files_added_to_or_missing_from_an_installed_package_are_an_error(
    installed: importlib.metadata.Distribution, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "echelon"
    (package / "own.py").touch()
    with pytest.raises(UserError, match=r"echelon/own\.py: added since pip installed echelon-train"):
        rebuild_wheel(installed)
    (package / "own.py").unlink()
    (package / "serve" / "page" / "index.html").unlink()
    with pytest.raises(UserError, match=r"echelon/serve/page/index\.html: missing since pip installed"):
        rebuild_wheel(installed)


@pytest.mark.parametrize(
    ("requires", "problem"),
    [
        ("echelon-nothing>=1", "which is not installed: pip install 'echelon-nothing>=1'"),
        ("setuptools>=9000", r"and [\d.]+ is installed: pip install 'setuptools>=9000'"),
    ],
)
def test_a_build_backend_that_is_missing_or_too_old_is_told(
    tmp_path: Path, requires: str, problem: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["{requires}"]\nbuild-backend = "x"\n'
    )
    with pytest.raises(UserError, match=problem):
        build_wheel(tmp_path)


def test_what_the_build_backend_says_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "src" / "echelon").mkdir(parents=True)
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\nname = "?"\n'
    )
    with pytest.raises(UserError, match=r"no wheel could be built:\n[\s\S]*must contain \['version"):
        build_wheel(tmp_path)


def test_a_package_that_is_neither_checkout_nor_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "FOLDER", tmp_path / "echelon")
    with pytest.raises(UserError, match="neither a checkout nor what pip installed as echelon-train"):
        pack_wheel()
