"""A machine that boots a real systemd and a real cloud-init from rendered user data: Debian in a container.

The image is made once by debootstrap and kept in the user's cache folder. Each machine boots it with an overlay in
memory, in a network namespace of its own, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ADDRESS = "10.77.0.2"
_PACKAGES = (
    "ca-certificates",
    "cloud-init",
    "curl",
    "dbus",
    "iproute2",
    "nfs-common",
    "openssh-server",
    "procps",
    "python3",
    "python3-cffi-backend",  # debootstrap does not resolve the virtual packages that cloud-init's own needs name
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
)
_FILES = {
    "etc/cloud/cloud.cfg.d/90-test.cfg": "datasource_list: [NoCloud]\nnetwork: {config: disabled}\nlocale: false\n",
    "etc/systemd/journald.conf.d/kept.conf": "[Journal]\nStorage=persistent\nSyncIntervalSec=1s\n",
    "etc/apt/sources.list": "",  # nothing is fetched: the packages that machines ask for are in the image
    "etc/machine-id": "",
    "etc/pip.conf": "[global]\nno-index = true\nfind-links = /srv/wheels\n",
}
_START = f"""\
ip link set lo up
ip address add {ADDRESS}/32 dev lo
exec systemd-nspawn "$@"
"""
_WANTED_BY = "apt-get install debootstrap systemd-container"


def find_image() -> Path:
    """The image, made if it is not there; skips the test if it cannot be made here."""
    if os.geteuid() != 0:
        pytest.skip("booting a machine needs root")
    missing = [name for name in ("debootstrap", "systemd-nspawn") if _which(name) is None]
    if missing:
        pytest.skip(f"booting a machine needs {' and '.join(missing)}: {_WANTED_BY}")
    recipe = hashlib.sha256(repr((_suite(), _PACKAGES, _FILES)).encode()).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echelon-tests"
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / f"boot-{_suite()}-{recipe}"
    with _locked(folder / "boot.lock"):
        if not image.exists():
            _make_image(image)
    return image


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _suite() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    names = [line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")]
    return names[0] if names else "stable"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_image(image: Path) -> None:
    with tempfile.TemporaryDirectory(dir=image.parent) as scratch:
        root = Path(scratch) / "root"
        command = [
            *("unshare", "--mount"),  # the /proc that it mounts goes with it, however it ends
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(_PACKAGES)}",
            _suite(),
            str(root),
        ]
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        made = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
        if made.returncode:
            pytest.skip(f"debootstrap could not make an image: {made.stdout.strip().splitlines()[-1:]}")
        for name, text in _FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "srv" / "wheels").mkdir()
        shutil.rmtree(root / "var" / "cache" / "apt" / "archives")
        root.rename(image)


class Machine:
    """A machine that has been switched on."""

    def __init__(self, process: subprocess.Popen[bytes], journal: Path) -> None:
        self._process = process
        self._journal = journal

    def run(self, *command: str | Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """A command of the laptop's, which is in the machine's network."""
        inside = ["nsenter", "--net", "--target", str(self._process.pid), *map(str, command)]
        return subprocess.run(inside, capture_output=True, text=True, check=False, timeout=timeout_s)

    def log_in(self, config: Path, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command there over ssh, as soon as somebody answers."""
        deadline = time.monotonic() + 120
        while True:
            done = self.run("ssh", "-F", config, "-oBatchMode=yes", "-oConnectTimeout=5", ADDRESS, *command)
            if done.returncode != 255:
                return done
            assert self._process.poll() is None, f"the machine is off\n{self.journal()}"
            assert time.monotonic() < deadline, f"{done.stderr}\n{self.journal()}"
            time.sleep(0.5)

    def wait_until_off(self, limit_s: float) -> None:
        """Return when the machine has switched itself off."""
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still on after {limit_s:.0f} seconds\n{self.journal()}") from None
        assert status == 0, self.journal()

    def journal(self) -> str:
        """The last that its units have said."""
        command = ["journalctl", "--directory", str(self._journal), "--no-pager", "--quiet", "--lines=80"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def boot(user_data: str, folder: Path, binds: Sequence[tuple[Path, str]] = ()) -> Iterator[Machine]:
    """Switch a machine on; `binds` are files and folders of ours that it sees at another path."""
    image, seed, journal = find_image(), folder / "seed", folder / "journal"
    seed.mkdir()
    journal.mkdir()
    (seed / "user-data").write_text(user_data)
    (seed / "meta-data").write_text("instance-id: i-boot\nlocal-hostname: machine\n")
    options = [
        *("--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe", "--machine=echelon-boot"),
        *("--volatile=overlay", f"--directory={image}"),
        f"--bind={journal}:/var/log/journal",
        *(f"--bind-ro={ours}:{theirs}" for ours, theirs in [(seed, "/var/lib/cloud/seed/nocloud"), *binds]),
    ]
    # One at a time: without a systemd here, all of them share one control group.
    with _locked(image.parent / "boot-running.lock"), open(folder / "nspawn.log", "wb") as output:
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec", _START, "boot", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield Machine(process, journal)
        finally:
            _switch_off(process)


def _switch_off(process: subprocess.Popen[bytes]) -> None:
    for _ in range(2):  # the first asks the machine to shut down, the second does not ask
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    process.kill()
    process.wait()
    left = [
        each for name in ("payload", "supervisor") for each in Path("/sys/fs/cgroup").glob(f"*/{name}/**/")
    ]
    for group in sorted(left, reverse=True):
        with contextlib.suppress(OSError):  # not ours, if somebody is in it
            group.rmdir()
