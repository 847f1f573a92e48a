"""A firewall round one host's agent and workers: of all machines, only the run's hosts reach the ports they listen on.

Where the agent is root and nftables is there, a child process `nft -i` owns a table of rules for as long as it lives:
the kernel removes the table with its owner, and the owner ends with the agent, however that ends. The table drops what
comes to our listening ports from other addresses, and has no say in anything else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set

import psutil

from echelon.agent.spec import AgentSpec

_LOOK_S = 1.0
"""How often workers' new ports are looked for. They are not known before: gloo takes any free port."""
_PATIENCE_S = 5.0


def render_table(table: str, address: str, members: Sequence[str]) -> list[str]:
    """The commands that make a table for a host: with no ports yet, so that it drops nothing."""
    family = "ip6" if ":" in address else "ip"
    others = ", ".join(sorted(set(members)))
    return [
        f"add table inet {table} {{ flags owner; }}",
        f"add set inet {table} ports {{ type inet_service; }}",
        f"add chain inet {table} input {{ type filter hook input priority filter; policy accept; }}",
        f'add rule inet {table} input iifname "lo" accept',
        f"add rule inet {table} input {family} daddr {address} tcp dport @ports {family} saddr != {{ {others} }} drop",
    ]


def render_change(table: str, before: Set[int], after: Set[int]) -> list[str]:
    """The commands that make the table guard other ports; those in both are guarded all the time."""
    changes = (("add", after - before), ("delete", before - after))
    return [
        f"{verb} element inet {table} ports {{ {', '.join(map(str, sorted(ports)))} }}"
        for verb, ports in changes
        if ports
    ]


def find_listening_ports(process: int) -> set[int]:
    """The TCP ports on which a process and those that it has started listen."""
    found: set[int] = set()
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process)
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has just ended
                sockets = one.net_connections(kind="tcp")
                found |= {each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


@contextlib.contextmanager
def guard(spec: AgentSpec, tell: Callable[[str], None]) -> Iterator[None]:
    """Keep strangers out meanwhile; if that cannot be done, `tell` why."""
    if spec.me.address.startswith("127.") or spec.me.address == "::1":
        yield
        return
    firewall = _Firewall(f"echelon_{os.getpid()}_{secrets.token_hex(3)}")
    problem = firewall.raise_for(spec)
    if problem:
        tell(f"{spec.me.name}: ports are not firewalled to the run's hosts: {problem}")
    try:
        yield
    finally:
        firewall.lower()


class _Firewall:
    """A table and the process that owns it."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._owner: subprocess.Popen[str] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="firewall", daemon=True)
        self._ports: set[int] = set()

    def raise_for(self, spec: AgentSpec) -> str:
        """Make the table; why that cannot be, or an empty text."""
        if os.geteuid():
            return "this needs root"
        nft = shutil.which("nft", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
        if nft is None:
            return "nftables is not installed"
        if _list(nft, "tables").returncode:
            return "nft may not be used here"
        self._owner = subprocess.Popen(
            [nft, "-i"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._say(render_table(self._table, spec.me.address, [host.address for host in spec.hosts]))
        self._change_to({spec.port})
        if not self._is_up(nft):
            return "nft could not make the rules (the agent's log says why)"
        self._thread.start()
        return ""

    def lower(self) -> None:
        """Remove the table."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._owner is not None and self._owner.stdin is not None:
            with contextlib.suppress(OSError):
                self._owner.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._owner.wait(_PATIENCE_S)

    def _keep_up(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            with contextlib.suppress(OSError):
                self._change_to(find_listening_ports(os.getpid()))

    def _change_to(self, ports: set[int]) -> None:
        self._say(render_change(self._table, self._ports, ports))
        self._ports = ports

    def _say(self, commands: Sequence[str]) -> None:
        assert self._owner is not None
        assert self._owner.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._owner.stdin.writelines(f"{command}\n" for command in commands)
            self._owner.stdin.flush()

    def _is_up(self, nft: str) -> bool:
        """Whether the table is there: its owner takes a moment, and prints nothing if it succeeds."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if "drop" in _list(nft, "table", "inet", self._table).stdout:
                return True
            time.sleep(0.02)
        return False


def _list(nft: str, *what: str) -> subprocess.CompletedProcess[str]:
    command = [nft, "list", *what]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
