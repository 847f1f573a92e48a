"""The layout of a lab: every name, address and path, decided before anything is made.

FOLDER/
  ssh_config        for `ssh -F FOLDER/ssh_config host1`; the hosts' keys are in known_hosts
  user_key          logs in on every host
  shared/           the same folder on every host and here
  disk/             on each host its own disk; empty here
  disks/HOST/       what HOST has on its disk
  machines/HOST/    what HOST has in /etc: sshd_config, keys, hosts, profile; and its first program, boot.sh
  logs/HOST.log     what its sshd says
  stage/            where a host gathers its mounts while it boots; empty here
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from echelon.errors import UserError
from echelon.lab.rate import parse_rate

MAX_HOSTS = 100
LEAST_CPUS = 0.05
"""The kernel gives no less than a millisecond in each period of cgroup.py."""
_SWITCH_NUMBER = 254


@dataclass(frozen=True)
class LabSpec:
    """The options of a lab."""

    name: str = "lab"
    folder: Path | None = None
    """Where its files go; None: a folder here that has the lab's name."""
    hosts: int = 4
    rate: str = "1gbit"
    """Line rate of each host, in each direction."""
    cpus: float | None = None
    """CPUs' worth of time that each host gets; None: an equal share of this machine."""

    def check(self) -> None:
        """UserError if such a lab is impossible."""
        check_name(self.name)
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise UserError(f"--hosts {self.hosts} is not allowed: use 1 to {MAX_HOSTS}")
        if self.cpus is not None and not LEAST_CPUS <= self.cpus <= 1000:
            raise UserError(f"--cpus {self.cpus:g} is not allowed: use {LEAST_CPUS:g} to 1000")
        parse_rate(self.rate)
        if not re.fullmatch(r"/[\w./+=@-]*", str(self.where)):
            raise UserError(
                f"--folder {str(self.where)!r} has characters that ssh_config and shells read as their own"
            )

    @property
    def where(self) -> Path:
        return (self.folder or Path(self.name)).resolve()


@dataclass(frozen=True)
class HostLayout:
    """One machine of a lab."""

    name: str
    address: str
    mac: str
    namespace: str
    """Its network namespace; its cgroup has the same name."""
    rate: str
    disk: Path
    machine: Path
    log: Path

    @property
    def key(self) -> Path:
        """The key by which it shows who it is."""
        return self.machine / "ssh_host_ed25519_key"


@dataclass(frozen=True)
class LabPlan:
    """A lab as it is written down before it is made, so that it can be removed whatever happens meanwhile."""

    name: str
    folder: Path
    cpus: float
    subnet: int
    """Third number of the addresses; no two labs have the same."""
    rates: dict[str, str]
    """Line rate by host; its keys are the hosts."""
    made_folders: list[Path] = field(default_factory=list)
    """Folders that were not there before, outermost first; removed with the lab if they are empty then."""

    @property
    def hosts(self) -> list[HostLayout]:
        return [self.host(name) for name in self.rates]

    def host(self, name: str) -> HostLayout:
        """The host of that name; UserError if there is none."""
        if name not in self.rates:
            raise UserError(f"the lab {self.name!r} has no host {name!r}; it has {', '.join(self.rates)}")
        number = int(name.removeprefix("host"))
        return HostLayout(
            name=name,
            address=self._address(number),
            mac=self._mac(number),
            namespace=f"echelon-{self.name}-{name}",
            rate=self.rates[name],
            disk=self.folder / "disks" / name,
            machine=self.folder / "machines" / name,
            log=self.folder / "logs" / f"{name}.log",
        )

    def _address(self, number: int) -> str:
        return f"10.77.{self.subnet}.{number}"

    def _mac(self, number: int) -> str:
        # The same after each boot: the others remember it.
        return f"02:00:0a:4d:{self.subnet:02x}:{number:02x}"

    @property
    def switch(self) -> str:
        """The network namespace with the bridge that all hosts hang on."""
        return f"echelon-{self.name}-switch"

    @property
    def switch_address(self) -> str:
        """Where connections from the outer machine come from."""
        return self._address(_SWITCH_NUMBER)

    @property
    def switch_mac(self) -> str:
        return self._mac(_SWITCH_NUMBER)

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def stage(self) -> Path:
        return self.folder / "stage"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def user_key(self) -> Path:
        return self.folder / "user_key"

    @property
    def own_files(self) -> list[Path]:
        """Everything in the folder that the lab may remove: all but what is shared."""
        folders = [self.disk, self.stage, *(self.folder / name for name in ("disks", "machines", "logs"))]
        key = [self.user_key, self.user_key.with_suffix(".pub")]
        return [*folders, *key, self.ssh_config, self.known_hosts]


def check_name(name: str) -> None:
    """UserError if a lab cannot have that name."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,19}", name):
        raise UserError(
            f"--name {name!r} is not allowed: use up to 20 lower-case letters and digits, a letter first"
        )


def host_names(count: int) -> list[str]:
    """host1, host2, ..."""
    return [f"host{number}" for number in range(1, count + 1)]
