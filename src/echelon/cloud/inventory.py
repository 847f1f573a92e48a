"""How to reach the hosts of a cluster: an ssh configuration of its own. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from echelon.cloud.journal import HostRecord
from echelon.untrusted import require_host, require_user, ssh_path


def host_name(cluster: str, number: int) -> str:
    return f"{cluster}-{number}"


def render_ssh_config(
    cluster: str, user: str, key: str, known_hosts: Path, hosts: Sequence[HostRecord]
) -> str:
    """NAME-0, NAME-1, ... by their public addresses, with the cluster's key and no other."""
    addresses = {host.number: require_host(host.public_address or host.private_address) for host in hosts}
    blocks = [
        f"Host {host_name(cluster, number)}\n  HostName {addresses[number]}\n" for number in sorted(addresses)
    ]
    common = (
        "Host *\n"
        f"  User {require_user(user)}\n"
        f"  IdentityFile {ssh_path(key)}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {ssh_path(str(known_hosts))}\n"
        f"  HostKeyAlias {cluster}\n"
        "  StrictHostKeyChecking yes\n"
        "  ForwardAgent no\n"
    )
    return "".join([*blocks, common])


def render_known_hosts(cluster: str, host_key: str) -> str:
    """All hosts of a cluster have one key, which was made here before they existed."""
    return f"{cluster} {' '.join(host_key.split()[:2])}\n"
