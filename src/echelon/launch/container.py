"""`--container IMAGE`: the same commands, each host's in a container; and how the image gets there without a registry.

A container has the host's network, its GPUs, the user's own number, and the folders it needs at the same paths, so that
nothing else in Echelon has to know about it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from echelon.errors import HostsError, RemoteError
from echelon.launch.ssh import Remote, explain_failure
from echelon.untrusted import require_image

PYTHON = "python3"
"""A container's Python, unless --python names another."""
_ASK_S = 60.0
_LOOK = """
echo "uid=$(id -u)"
echo "gid=$(id -g)"
echo "gpus=$(ls /proc/driver/nvidia/gpus 2> /dev/null | wc -l)"
for folder; do
    [ -d "$folder" ] && echo "folder=$folder"
done
docker version --format 'docker={{.Server.Version}}'
"""


@dataclass(frozen=True)
class Container:
    """What runs on every host."""

    image: str
    name: str
    """Unique on a host; `docker kill NAME` ends everything in it."""
    folders: tuple[Path, ...] = ()
    """Mounted at the same paths: the run folder, the data, the cache."""
    read_only: tuple[Path, ...] = ()
    """Mounted at the same paths as well, but not to be written to."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_image(self.image)


@dataclass(frozen=True)
class DockerHost:
    """A host as containers see it."""

    uid: int
    gid: int
    gpus: int
    folders: frozenset[Path]
    """The folders asked about that exist."""


def check_image(image: str) -> None:
    """HostsError if docker would not read this as an image: a name that begins with a dash is an option."""
    try:
        require_image(image)
    except ValueError as error:
        raise HostsError(f"--container: {error}") from None


def container_name(run: Path, host: int) -> str:
    """The container of a run on host number `host`: no other run's, wherever its folder is."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", run.name)[:40]
    digest = hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:8]
    return f"echelon-{name}-{digest}-{host}"


def render_run(
    container: Container, host: DockerHost, command: Sequence[str], *, in_background: bool = False
) -> list[str]:
    """The command that runs `command` in a container on a host; its input and output are the container's."""
    for folder in (*container.folders, *container.read_only):
        if re.search('[,"\n]', str(folder)):
            raise HostsError(
                f"{folder}: docker cannot mount a folder with a comma or a quote in its name; rename it"
            )
    mounts = [f"type=bind,source={folder},target={folder}" for folder in dict.fromkeys(container.folders)]
    mounts += [f"type=bind,source={folder},target={folder},readonly" for folder in container.read_only]
    return [
        *(
            "docker",
            "run",
            "--rm",
            "--detach" if in_background else "--interactive",
            "--init",
            "--pull=never",
        ),
        f"--name={container.name}",
        "--network=host",  # workers meet at the host's own addresses
        "--ipc=host",  # workers share memory, and a container has only 64 MB
        *("--ulimit=memlock=-1", "--ulimit=stack=67108864"),  # as NCCL asks for
        f"--user={host.uid}:{host.gid}",  # so that files in the run folder are the user's
        *(["--gpus=all"] if host.gpus else []),
        *(f"--mount={mount}" for mount in mounts),
        "--env=HOME=/tmp",  # the user need not exist in the image
        "--env=SSH_CONNECTION",
        *(f"--env={name}={value}" for name, value in sorted(container.environment.items())),
        f"--entrypoint={command[0]}",
        container.image,
        *command[1:],
    ]


def python_with(remote: Remote, image: str, folder: Path) -> list[str]:
    """What runs Python on a host in a container of its own, for one command on a folder, which is made."""
    remote.run(["mkdir", "-p", str(folder)], timeout_s=_ASK_S)
    container = Container(image, f"echelon-once-{secrets.token_hex(4)}", (folder,))
    return render_run(container, look_at(remote), [PYTHON])


def render_kill(name: str) -> list[str]:
    """The command that ends a container, and everything in it, at once."""
    return ["docker", "kill", name]


def render_transfer(image: str, remote: Remote) -> str:
    """What `send_image` does, as a user would type it."""
    return f"docker save {shlex.quote(image)} | {remote.by_hand} docker load"


def look_at(remote: Remote, folders: Sequence[Path] = ()) -> DockerHost:
    """What a container on this host can have; RemoteError if docker cannot be used there."""
    completed = remote.run(["sh", "-c", _LOOK, "sh", *map(str, folders)], timeout_s=_ASK_S)
    said = completed.stderr.decode(errors="replace").strip()
    pairs = [line.partition("=") for line in completed.stdout.decode(errors="replace").splitlines()]
    values = {key: value for key, _, value in pairs}
    if not values.get("docker"):
        raise _docker_error(remote.host, said)
    return DockerHost(
        uid=int(values["uid"]),
        gid=int(values["gid"]),
        gpus=int(values["gpus"]),
        folders=frozenset(Path(value) for key, _, value in pairs if key == "folder"),
    )


def find_image(remote: Remote, image: str) -> str | None:
    """The image's id on a host; None if it is not there."""
    check_image(image)
    completed = remote.run(["docker", "image", "inspect", "--format={{.Id}}", image], timeout_s=_ASK_S)
    if completed.status == 0:
        return completed.stdout.decode().strip()
    said = completed.stderr.decode(errors="replace").strip()
    if "No such image" in said:
        return None
    raise _docker_error(remote.host, said)


def _piped(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def send_image(remote: Remote, image: str) -> bool:
    """Put the image that is here on a host, if it is not there; whether it had to be sent."""
    here = find_image(Remote("localhost"), image)
    if here is None:
        raise HostsError(f"{image}: there is no such image here; `docker build` or `docker pull` it first")
    if find_image(remote, image) == here:
        return False
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE, stderr=errors) as save,
        _piped(save) as image_bytes,
        remote.start(["docker", "load"], stdin=image_bytes, stderr=errors) as load,
    ):
        image_bytes.close()  # so that `docker save` notices when the other end goes
        load.wait()
        save.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if load.returncode or save.returncode or find_image(remote, image) != here:
        raise explain_failure(remote.host, remote.by_hand, load.returncode, said) or RemoteError(
            remote.host,
            "failed",
            f"{image} could not be sent: {said}",
            f"try `{render_transfer(image, remote)}`",
        )
    return True


def _docker_error(host: str, said: str) -> RemoteError:
    if "permission denied" in said.lower():
        return RemoteError(
            host, "permission", "the user may not use docker there", "`sudo usermod -aG docker USER`"
        )
    last = said.splitlines()[-1] if said else "docker does not answer"
    return RemoteError(
        host, "failed", f"docker cannot be used there: {last}", "install and start docker there"
    )
