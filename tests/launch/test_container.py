"""What would be run on each host in a container, word for word; and images sent, to a docker that is only a script."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echelon.errors import HostsError, RemoteError
from echelon.launch.check import check_hosts
from echelon.launch.container import (
    Container,
    DockerHost,
    container_name,
    find_image,
    look_at,
    python_with,
    render_kill,
    render_run,
    render_transfer,
    send_image,
)
from echelon.launch.findings import Needs
from echelon.launch.hosts import parse_hosts
from echelon.launch.ssh import Remote
from echelon.launch.sync import sync_folder
from tests.sshd import Sshd

CONTAINER = Container(
    image="registry.example/echelon:0.1",
    name="echelon-demo-0badcafe-g3",
    folders=(Path("/home/me/runs/demo"), Path("/data/my cache"), Path("/data/my cache")),
    environment={"OMP_NUM_THREADS": "4", "GREETING": "it's $HOME"},
)
COMMAND = ["python3", "-m", "echelon.agent", "--run", "/home/me/runs/demo"]

GOLDEN_CPU = """\
docker run --rm --interactive --init --pull=never --name=echelon-demo-0badcafe-g3 --network=host --ipc=host \
--ulimit=memlock=-1 --ulimit=stack=67108864 --user=1000:100 \
--mount=type=bind,source=/home/me/runs/demo,target=/home/me/runs/demo \
'--mount=type=bind,source=/data/my cache,target=/data/my cache' \
--env=HOME=/tmp --env=SSH_CONNECTION '--env=GREETING=it'"'"'s $HOME' --env=OMP_NUM_THREADS=4 \
--entrypoint=python3 registry.example/echelon:0.1 -m echelon.agent --run /home/me/runs/demo"""


def test_what_is_run_on_a_host_without_gpus() -> None:
    host = DockerHost(1000, 100, 0, frozenset())
    assert shlex.join(render_run(CONTAINER, host, COMMAND)) == GOLDEN_CPU


def test_what_is_run_on_a_host_with_gpus() -> None:
    host = DockerHost(0, 0, 8, frozenset())
    expected = GOLDEN_CPU.replace("--user=1000:100", "--user=0:0 --gpus=all")
    assert shlex.join(render_run(CONTAINER, host, COMMAND)) == expected


def test_what_ends_it_and_what_brings_the_image() -> None:
    assert render_kill(CONTAINER.name) == ["docker", "kill", "echelon-demo-0badcafe-g3"]
    assert render_transfer("my image", Remote("me@b", Path("/x"))) == (
        "docker save 'my image' | ssh -F /x me@b docker load"
    )


def test_names_tell_runs_and_generations_apart_and_docker_takes_them() -> None:
    names = {container_name(Path(path), host) for path in ("/a/demo", "/b/demo") for host in (1, 2)}
    assert len(names) == 4
    assert container_name(Path("/runs/Größe 1"), 1).startswith("echelon-Gr--e-1-")


def test_folders_that_docker_cannot_mount_are_refused() -> None:
    container = Container("x", "x", (Path("/a,b"),))
    with pytest.raises(HostsError, match="cannot mount"):
        render_run(container, DockerHost(0, 0, 0, frozenset()), ["true"])


FAKE_DOCKER = """\
#!/bin/sh
case "$1" in
version)
    echo docker=28.0 ;;
image)  # image inspect --format=... IMAGE
    [ -f "$FAKE_DOCKER/$4" ] || { echo "Error response from daemon: No such image: $4" >&2; exit 1; }
    echo "sha256:$(cat "$FAKE_DOCKER/$4")" ;;
save)
    echo "$2 $(cat "$FAKE_DOCKER/$2")" ;;
load)
    [ ! -f "$FAKE_DOCKER/full" ] || { echo "no space left on device" >&2; exit 1; }
    read -r image content
    printf %s "$content" > "$FAKE_DOCKER/$image" ;;
run)
    echo "$*" > "$FAKE_DOCKER/run"
    until [ "$1" = trainer ]; do shift; done
    shift
    exec PYTHON "$@" ;;
esac
"""
"""Images are files in a folder; a container is a process like any other."""


class Dockers:
    """A store of images here and one there."""

    def __init__(self, folder: Path) -> None:
        self.here, self.there, self.bin = folder / "here", folder / "there", folder / "bin"
        for place in (self.here, self.there, self.bin):
            place.mkdir()
        (self.bin / "docker").write_text(FAKE_DOCKER.replace("PYTHON", sys.executable))
        (self.bin / "docker").chmod(0o755)


@pytest.fixture(scope="module")
def dockers(tmp_path_factory: pytest.TempPathFactory) -> Dockers:
    return Dockers(tmp_path_factory.mktemp("dockers"))


@pytest.fixture(scope="module")
def there(dockers: Dockers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    source = str(Path(__file__).parents[2] / "src")
    variables = {
        "PATH": f"{dockers.bin}:/usr/bin:/bin",
        "FAKE_DOCKER": str(dockers.there),
        "PYTHONPATH": source,
    }
    server = Sshd(tmp_path_factory.mktemp("sshd"), variables)
    with Remote("alpha", server.config) as remote:
        yield remote
    server.stop()


@pytest.fixture(autouse=True)
def docker_here(dockers: Dockers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A docker on this machine; neither it nor the other one has any images yet."""
    for file in (*dockers.here.iterdir(), *dockers.there.iterdir()):
        file.unlink()
    monkeypatch.setenv("PATH", f"{dockers.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(dockers.here))


def test_an_image_is_sent_once(dockers: Dockers, there: Remote) -> None:
    (dockers.here / "once").write_text("1111")
    assert find_image(there, "once") is None
    assert send_image(there, "once") is True
    assert find_image(there, "once") == "sha256:1111"
    assert send_image(there, "once") is False
    (dockers.here / "once").write_text("2222")
    assert send_image(there, "once") is True
    assert find_image(there, "once") == "sha256:2222"


def test_an_image_that_cannot_be_sent_is_told(dockers: Dockers, there: Remote) -> None:
    with pytest.raises(HostsError, match="no such image here; `docker build`"):
        send_image(there, "unknown")
    (dockers.here / "large").write_text("3333")
    (dockers.there / "full").touch()
    with pytest.raises(
        RemoteError, match="large could not be sent: no space left on device; try `docker save large"
    ):
        send_image(there, "large")
    (dockers.there / "full").unlink()


def test_a_host_tells_what_a_container_on_it_can_have(there: Remote, tmp_path: Path) -> None:
    host = look_at(there, [tmp_path, tmp_path / "missing"])
    assert host == DockerHost(os.getuid(), os.getgid(), 0, frozenset([tmp_path]))


def test_a_host_without_docker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent:/usr/bin:/bin")
    with pytest.raises(RemoteError, match="docker: not found; install it on that host"):
        look_at(Remote("localhost"))


def test_hosts_are_checked_from_within_the_container(dockers: Dockers, there: Remote, tmp_path: Path) -> None:
    needs = Needs(run_folder=tmp_path / "run", container="trainer", measures_link=False)
    (report,) = check_hosts(parse_hosts("alpha"), {"alpha": there}, needs)
    assert report.is_fit, report.findings
    assert report.facts is not None
    assert report.facts.shares_run_folder
    ran = (dockers.there / "run").read_text()
    assert "--network=host" in ran
    assert f" --mount=type=bind,source={tmp_path}/run,target={tmp_path}/run " in ran
    assert ran.endswith(" --entrypoint=python3 trainer -m echelon.launch.probe\n")


def test_a_folder_is_copied_to_where_there_was_none(dockers: Dockers, there: Remote, tmp_path: Path) -> None:
    source, target = tmp_path / "here", tmp_path / "cache" / "there"
    source.mkdir()
    (source / "data").write_text("data")
    sync_folder(there, source, target, python=python_with(there, "trainer", target.parent))
    assert (target / "data").read_text() == "data"
    mount = f"--mount=type=bind,source={target.parent},target={target.parent}"
    assert f" {mount} " in (dockers.there / "run").read_text()
