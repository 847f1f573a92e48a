"""Echelon put on hosts: the wheel that is sent, and real installations over a real ssh server."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import echelon
from echelon.errors import RemoteError
from echelon.launch import bootstrap
from echelon.launch import install as installing
from echelon.launch.install import (
    Installed,
    InstallOptions,
    find_base_python,
    install,
    install_hosts,
    render_order,
)
from echelon.launch.machine import Versions
from echelon.launch.package import source_digest
from echelon.launch.pins import find_unlocked
from echelon.launch.ssh import Remote
from echelon.launch.wheel import Wheel
from tests.sshd import Sshd

HERE = Remote("localhost")


def test_an_order_asks_for_exactly_the_torch_that_runs_here() -> None:
    order = render_order(InstallOptions("~/env", uses_system_packages=True), Wheel("x.whl", b"12"))
    assert order["torch"] == f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
    assert order["venv_options"] == ["--system-site-packages"]
    assert order["wheel_bytes"] == 2
    assert order["versions"]["source"] == source_digest()


def test_hashes_are_checked_only_if_those_of_all_versions_here_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options, wheel = InstallOptions(checks_hashes=True), Wheel("x.whl", b"12")
    monkeypatch.setattr(installing, "find_unlocked", list)
    assert render_order(options, wheel)["checks_hashes"]
    assert render_order(options, wheel)["wheel_sha256"] == hashlib.sha256(b"12").hexdigest()
    assert not render_order(InstallOptions(), wheel)["checks_hashes"]
    monkeypatch.setattr(installing, "find_unlocked", lambda: ["numpy 3.0 instead of 2.0"])
    assert not render_order(options, wheel)["checks_hashes"]


def test_a_host_without_the_right_python_is_told_what_to_install() -> None:
    version = "{}.{}".format(*sys.version_info)
    with pytest.raises(RemoteError, match=rf"no Python {version} \(/bin/false\); install it there"):
        find_base_python(HERE, "/bin/false")
    assert find_base_python(HERE)


def test_an_environment_whose_making_was_interrupted_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    commands = list[list[str]]()
    monkeypatch.setattr(bootstrap, "_step", lambda _, command: commands.append(command))
    order = render_order(InstallOptions(str(folder)), Wheel("x.whl", b""))
    with pytest.raises(bootstrap.StepError, match="after installing, the versions are None"):
        bootstrap.install(order, b"")
    assert commands[0] == [sys.executable, "-m", "venv", "--clear", str(folder)]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment that finds the packages of the one here, so that pip has nothing to fetch."""
    folder = tmp_path / "home" / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    here = next(place for place in sys.path if place.endswith("site-packages"))
    (site / "here.pth").write_text(here + "\n")
    return folder


@pytest.fixture
def bare_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server whose commands do not find the package that is being tested."""
    server = Sshd(tmp_path_factory.mktemp("sshd"), {"LANG": "C"})
    yield server
    server.stop()


@pytest.mark.slow
def test_an_environment_is_installed_once_and_mended_when_it_differs(
    bare_sshd: Sshd, environment: Path
) -> None:
    python = environment / "bin" / "python"
    told = list[str]()
    options = InstallOptions(str(environment))
    with Remote("alpha", bare_sshd.config) as remote:
        assert install(remote, options, lambda host, line: told.append(line)) == Installed(str(python), False)
        assert [line for line in told if line.endswith("...")] == [
            "installing torch ...",
            "installing what Echelon needs ...",
            "installing Echelon ...",
        ]
        assert remote.run([str(environment / "bin" / "echelon"), "--help"], timeout_s=60).status == 0
        told.clear()
        assert install_hosts([remote], options, lambda host, line: told.append(line)) == {
            "alpha": Installed(str(python), True)
        }
        assert told == []
        (package,) = environment.glob("lib/python*/site-packages/echelon")
        (package / "models" / "kernels" / "rows.cpp").write_text("changed")
        assert install(remote, options) == Installed(str(python), False)
    assert source_digest(package) == source_digest()


@pytest.mark.slow
def test_what_pip_says_is_in_the_error(
    bare_sshd: Sshd, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Versions(echelon.__version__, source_digest(), "0.0.1", "3.11.0")
    monkeypatch.setattr(installing, "own_versions", lambda: versions)
    with Remote("alpha", bare_sshd.config) as remote, pytest.raises(RemoteError) as caught:
        install(remote, InstallOptions(str(environment)))
    assert "installing torch failed:" in str(caught.value)
    assert "torch==0.0.1" in str(caught.value)


def tiny_wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A wheel of version 1 that needs nothing, with these files."""
    about = f"{name}-1.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


@pytest.mark.slow
def test_a_file_with_another_hash_than_the_lock_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    needed = tiny_wheel(index, "needed", {"needed.py": "x = 1"})
    sound = needed.read_bytes()
    lock = f"needed==1 --hash=sha256:{hashlib.sha256(sound).hexdigest()}\n"
    package = tiny_wheel(tmp_path, "echelon_train", {bootstrap.LOCK: lock})
    wheel = Wheel(package.name, package.read_bytes())

    def fill(**changed: str) -> None:
        order = {"checks_hashes": True, "wheel_name": wheel.name, "wheel_sha256": wheel.sha256} | changed
        folder = tmp_path / "filling"
        folder.mkdir(exist_ok=True)
        bootstrap._fill(environment / "bin" / "python", order, folder, wheel.content)

    with pytest.raises(bootstrap.StepError, match="DO NOT MATCH THE HASHES"):
        fill(wheel_sha256="0" * 64)
    tiny_wheel(index, "needed", {"needed.py": "x = 2"})
    with pytest.raises(bootstrap.StepError, match="DO NOT MATCH THE HASHES"):
        fill()
    assert not list(environment.glob("lib/python*/site-packages/needed.py"))
    needed.write_bytes(sound)
    fill()
    (installed,) = environment.glob("lib/python*/site-packages/needed.py")
    assert installed.read_text() == "x = 1"


@pytest.mark.slow
def test_an_environment_with_the_locked_versions_passes_the_check_of_hashes(
    bare_sshd: Sshd, environment: Path
) -> None:
    if unlocked := find_unlocked():
        pytest.skip(f"here is {unlocked[0]}; `make setup` installs the locked versions")
    told = list[str]()
    options = InstallOptions(str(environment), checks_hashes=True)
    with Remote("alpha", bare_sshd.config) as remote:
        assert not install(remote, options, lambda host, line: told.append(line)).was_there
    assert [line for line in told if line.endswith("...")] == [
        "installing what Echelon needs, checking hashes ...",
        "installing Echelon ...",
    ]
