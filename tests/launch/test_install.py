"""Echelon put on hosts: the wheel that is sent, and real installations over a real ssh server."""

from __future__ import annotations

import csv
import io
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
from echelon.launch.machine import source_digest
from echelon.launch.ssh import Remote
from echelon.launch.wheel import Wheel, _record_hash, find_requirements, pack_wheel, pin_versions
from tests.sshd import Sshd

HERE = Remote("localhost")


def test_the_wheel_holds_the_running_package_and_its_recipes(tmp_path: Path) -> None:
    wheel = pack_wheel()
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        archive.extractall(tmp_path)
    assert wheel.name == f"echelon-{echelon.__version__}-py3-none-any.whl"
    assert source_digest(tmp_path / "echelon") == source_digest()
    stem = f"echelon-{echelon.__version__}"
    assert (tmp_path / f"{stem}.data/data/share/echelon/recipes/demo.toml").is_file()
    assert "Requires-Dist: torch==2.13.0" in (tmp_path / f"{stem}.dist-info/METADATA").read_text()
    record = (tmp_path / f"{stem}.dist-info/RECORD").read_text()
    for name, sha256, size in csv.reader(record.splitlines()):
        if not name.endswith("RECORD"):
            data = (tmp_path / name).read_bytes()
            assert (sha256, int(size)) == (f"sha256={_record_hash(data)}", len(data))


def test_the_same_code_gives_the_same_wheel() -> None:
    assert pack_wheel() == pack_wheel()


def test_versions_are_pinned_without_the_build_they_have_here() -> None:
    pins = pin_versions().splitlines()
    assert "torch==2.13.0" in pins
    assert not any("+" in pin for pin in pins)
    assert not any(pin.lower().startswith("echelon==") for pin in pins)


def test_an_order_asks_for_exactly_the_torch_that_echelon_needs() -> None:
    order = render_order(InstallOptions("~/env", uses_system_packages=True), Wheel("x.whl", b"12"))
    assert order["torch"] in find_requirements()
    assert order["venv_options"] == ["--system-site-packages"]
    assert order["wheel_bytes"] == 2
    assert order["versions"]["source"] == source_digest()


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
        (package / "errors.py").write_text("changed")
        assert install(remote, options) == Installed(str(python), False)
    assert source_digest(package) == source_digest()


@pytest.mark.slow
def test_what_pip_says_is_in_the_error(
    bare_sshd: Sshd, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing, "find_requirements", lambda: ["torch==0.0.1"])
    with Remote("alpha", bare_sshd.config) as remote, pytest.raises(RemoteError) as caught:
        install(remote, InstallOptions(str(environment)))
    assert "installing torch failed:" in str(caught.value)
    assert "torch==0.0.1" in str(caught.value)
