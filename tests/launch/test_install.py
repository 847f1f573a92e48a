"""Echelon put on hosts: the wheel that is sent, and real installations over a real ssh server."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
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
    versions = Versions(echelon.__version__, source_digest(), "0.0.1", "3.11.0")
    monkeypatch.setattr(installing, "own_versions", lambda: versions)
    with Remote("alpha", bare_sshd.config) as remote, pytest.raises(RemoteError) as caught:
        install(remote, InstallOptions(str(environment)))
    assert "installing torch failed:" in str(caught.value)
    assert "torch==0.0.1" in str(caught.value)
