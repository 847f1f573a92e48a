"""The ssh configuration of a cluster's hosts, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echelon.cloud.journal import HostRecord
from echelon.untrusted import (
    require_cluster,
    require_host,
    require_jump,
    require_user,
    require_word,
    ssh_path,
)


def host_name(cluster: str, number: int) -> str:
    """A host's name; ValueError if the cluster's name is invalid."""
    return f"{require_cluster(cluster)}-{number}"


@dataclass(frozen=True)
class Login:
    """How to log in to a cluster."""

    cluster: str
    user: str
    key: str
    known_hosts: Path
    proxy_jump: str = ""
    """A bastion, which the user's own ssh configuration knows how to reach."""
    ssm_region: str = ""
    """Where the Session Manager leads to the hosts; empty if it does not."""


def render_ssh_config(login: Login, hosts: Sequence[HostRecord]) -> str:
    """NAME-0, NAME-1, ... by their addresses, with the cluster's key and no other."""
    blocks = [
        f"Host {host_name(login.cluster, host.number)}\n  HostName {_address(login, host)}\n"
        for host in sorted(hosts, key=lambda host: host.number)
    ]
    common = (
        "Host *\n"
        f"  User {require_user(login.user)}\n"
        f"  IdentityFile {ssh_path(login.key)}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {ssh_path(str(login.known_hosts))}\n"
        f"  HostKeyAlias {require_cluster(login.cluster)}\n"
        "  StrictHostKeyChecking yes\n"
        "  ForwardAgent no\n"
        f"{_render_proxy(login)}"
    )
    return "".join([*blocks, common])


def _address(login: Login, host: HostRecord) -> str:
    return require_host(host.id if login.ssm_region else host.public_address or host.private_address)


def _render_proxy(login: Login) -> str:
    """A ProxyCommand rather than ProxyJump: that would use the hosts' key and user for the bastion, too."""
    if login.ssm_region:
        return (
            "  ProxyCommand aws ssm start-session --target %h --document-name AWS-StartSSHSession "
            f"--parameters portNumber=%p --region {require_word(login.ssm_region)}\n"
        )
    if login.proxy_jump:
        host, _, port = require_jump(login.proxy_jump).partition(":")
        return f"  ProxyCommand ssh -o BatchMode=yes -p {port or 22} -W [%h]:%p -- {host}\n"
    return ""


def render_known_hosts(cluster: str, host_key: str) -> str:
    """All hosts of a cluster share one host key, made here before they existed."""
    return f"{require_cluster(cluster)} {' '.join(host_key.split()[:2])}\n"
