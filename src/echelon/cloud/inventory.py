"""How to reach the hosts of a cluster: an ssh configuration of its own. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from echelon.cloud.journal import HostRecord


def host_name(cluster: str, number: int) -> str:
    return f"{cluster}-{number}"


def render_ssh_config(
    cluster: str, user: str, key: str, known_hosts: Path, hosts: Sequence[HostRecord]
) -> str:
    """NAME-0, NAME-1, ... by their public addresses, with the cluster's key and no other."""
    blocks = [
        f"Host {host_name(cluster, host.number)}\n  HostName {host.public_address or host.private_address}\n"
        for host in sorted(hosts, key=lambda host: host.number)
    ]
    common = (
        "Host *\n"
        f"  User {user}\n"
        f'  IdentityFile "{key}"\n'
        "  IdentitiesOnly yes\n"
        f'  UserKnownHostsFile "{known_hosts}"\n'
        f"  HostKeyAlias {cluster}\n"
        "  StrictHostKeyChecking yes\n"
        "  ForwardAgent no\n"
    )
    return "".join([*blocks, common])


def render_known_hosts(cluster: str, host_key: str) -> str:
    """All hosts of a cluster have one key, which was made here before they existed."""
    return f"{cluster} {' '.join(host_key.split()[:2])}\n"
