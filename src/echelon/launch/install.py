"""`--install`: the same Echelon, torch and Python on each host as here, in an environment of its own there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import RemoteError, UserError
from echelon.launch import bootstrap
from echelon.launch.dialogue import Dialogue
from echelon.launch.machine import own_versions
from echelon.launch.pins import find_unlocked, pin_versions
from echelon.launch.ssh import Remote, on_all
from echelon.launch.wheel import Wheel, pack_wheel

ENVIRONMENT = "~/.echelon/env"
TellHost = Callable[[str, str], None]
"""Called with the host and a line of its progress."""

_FIND_BASE_PYTHON = """
version=$1
shift
for python; do
    found=$(command -v "$python") || continue
    if [ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" = "$version" ]; then
        echo "echelon-python:$found"
        exit 0
    fi
done
exit 3
"""


@dataclass(frozen=True)
class InstallOptions:
    """Where and how to install."""

    environment: str = ENVIRONMENT
    base_python: str | None = None
    """The Python to make the environment with; None looks for one of the version here."""
    uses_system_packages: bool = False
    """Packages of the system's Python, e.g. a torch built for that machine, are used if they have the version."""
    checks_hashes: bool = False
    """Install only the package index's own files, by their hashes; not for hosts whose pip has an index, or builds
    of torch, of its own. Has no effect if the versions here are others than those whose hashes are known."""


@dataclass(frozen=True)
class Installed:
    """An environment with Echelon on a host."""

    python: str
    was_there: bool
    """Whether it was complete already."""


def install_hosts(
    remotes: Sequence[Remote], options: InstallOptions, tell: TellHost = lambda host, line: None
) -> dict[str, Installed | RemoteError]:
    """Install on all hosts at once; for each what was done, or what went wrong."""
    wheel = pack_wheel()
    return on_all(remotes, lambda remote: install(remote, options, tell, wheel=wheel))


def install(
    remote: Remote,
    options: InstallOptions,
    tell: TellHost = lambda host, line: None,
    *,
    wheel: Wheel | None = None,
) -> Installed:
    """Make a host's environment the same as here; does nothing if it is. RemoteError with what pip said."""
    wheel = wheel or pack_wheel()
    python = find_base_python(remote, options.base_python)
    source = Path(bootstrap.__file__).read_text(encoding="utf-8")
    order = json.dumps(render_order(options, wheel))
    with Dialogue(remote, [python, "-u", "-c", source, order], lambda line: tell(remote.host, line)) as other:
        other.write(wheel.content)
        answer = other.answer("installing")
    return Installed(answer["python"], answer["was_there"])


def render_order(options: InstallOptions, wheel: Wheel) -> dict[str, Any]:
    """What launch/bootstrap.py is to do."""
    versions = own_versions()
    if versions.torch is None:
        raise UserError("torch is not installed here, so hosts cannot get the same one")
    torch = versions.torch.partition("+")[0]
    return {
        "environment": options.environment,
        "venv_options": ["--system-site-packages"] if options.uses_system_packages else [],
        "torch": f"torch=={torch}",
        "constraints": pin_versions(),
        "wheel_name": wheel.name,
        "wheel_bytes": len(wheel.content),
        "wheel_sha256": wheel.sha256,
        "checks_hashes": options.checks_hashes and not find_unlocked(),
        "versions": {"echelon": versions.echelon, "source": versions.source, "torch": torch},
    }


def find_base_python(remote: Remote, named: str | None = None) -> str:
    """The host's Python of our version, with which to make the environment."""
    version = "{}.{}".format(*sys.version_info)
    places = [named] if named else [f"python{version}", "python3", f"{sys.base_prefix}/bin/python3"]
    completed = remote.run(["sh", "-c", _FIND_BASE_PYTHON, "sh", version, *places], timeout_s=60)
    lines = completed.stdout.decode(errors="replace").splitlines()
    found = [line.removeprefix("echelon-python:") for line in lines if line.startswith("echelon-python:")]
    if completed.status == 0 and found:
        return found[0]
    raise RemoteError(
        remote.host,
        "failed",
        f"there is no Python {version} ({', '.join(places)})",
        f"install it there, as in `apt install python{version} python{version}-venv`",
    )
