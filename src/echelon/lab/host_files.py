"""The files that make a process tree a machine: its first program, its /etc, and how to log in. Pure text."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from echelon.lab import dial
from echelon.lab.layout import HostLayout, LabPlan

_PRIVATE = {Path("/run"): "mode=755", Path("/tmp"): "mode=1777", Path("/dev/shm"): "mode=1777"}
_DOTFILES = (".bashrc", ".profile", ".bash_profile", ".bash_login")
# Programs look at their control group for the CPU time they have; `ip netns exec` leaves them a /sys without any.
# Where it cannot be mounted they see all the machine's cores, and start too many threads.
_SHOW_CPU_SHARE = (
    "controllers=$(cut -d: -f2 /proc/self/cgroup | grep -w cpu || :)",
    'if [ -n "$controllers" ]; then',
    "    mount -n -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu &&",
    '    mount -n -t cgroup -o "ro,$controllers" cgroup /sys/fs/cgroup/cpu || :',
    "else",
    "    mount -n -t cgroup2 -o ro cgroup2 /sys/fs/cgroup || :",
    "fi",
)


def start_command(host: HostLayout, cgroup_procs: Path) -> list[str]:
    """Switch a host on: its first process leads a process tree of its own, and is in its cgroup from the start.

    A cgroup that was removed meanwhile keeps it from starting at all.
    """
    namespaces = "unshare --pid --fork --kill-child --mount-proc --uts --ipc"
    return [
        *("setsid", "--fork", "sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup_procs)),
        *("ip", "netns", "exec", host.namespace),
        *namespaces.split(),
        *("sh", str(host.machine / "boot.sh")),
    ]


def render_boot(plan: LabPlan, host: HostLayout, sshd: str, visible: Sequence[Path] = ()) -> str:
    """What the first process of a host does before it becomes sshd.

    `visible` are folders that programs need; those in a private place, such as /tmp, are mounted there.
    """
    hidden = [path for path in visible if _is_private(path)]
    lines = ["set -eu", *_gather(plan, host, hidden), *_arrange(plan, hidden), *_settle(host)]
    return "\n".join([*lines, f"exec {sshd} -D -e", ""])


def _gather(plan: LabPlan, host: HostLayout, hidden: Sequence[Path]) -> list[str]:
    """The host's /run, made aside, with all that the mounts to come would cover."""
    stage = plan.stage
    commands = [
        f"mount -n -t tmpfs -o mode=755 tmpfs {stage}",
        f"mkdir -p {stage}/sshd {stage}/lab/shared {stage}/lab/disk",
        f"mkdir -m 1777 {stage}/lock",
        f"chmod 700 {stage}/lab",
        f"mount -n --bind {plan.shared} {stage}/lab/shared",
        f"mount -n --bind {host.disk} {stage}/lab/disk",
        f"mount -n --bind {host.machine} /etc/ssh",
        "mount -n --bind /etc/ssh/hosts /etc/hosts",
        "mount -n --bind /etc/ssh/profile /etc/profile",
    ]
    for number, path in enumerate(hidden):
        place = f"{stage}/lab/visible{number}"
        commands += [f"mkdir {place}", f"mount -n --rbind {shlex.quote(str(path))} {place}"]
    return commands


def _arrange(plan: LabPlan, hidden: Sequence[Path]) -> list[str]:
    """Private places come up empty. So does the lab's folder, read-only, except for the shared folder and the host's
    disk; `cut` leaves nothing but that."""
    commands = [f"mount -n --move {plan.stage} /run"]
    for path, mode in _PRIVATE.items():
        commands += [f"mount -n -t tmpfs -o {mode} tmpfs {path}"] if path != Path("/run") else []
    for number, path in enumerate(hidden):
        place = shlex.quote(str(path))
        commands += [f"mkdir -p {place}", f"mount -n --rbind /run/lab/visible{number} {place}"]
    return [
        *commands,
        f"mkdir -p {plan.folder}",
        f"mount -n -t tmpfs -o mode=755 tmpfs {plan.folder}",
        f"mkdir {plan.shared} {plan.disk}",
        f"mount -n -o remount,ro {plan.folder}",
        f"mount -n --bind /run/lab/disk {plan.disk}",
        shlex.join(mount_shared(plan)),
    ]


def _settle(host: HostLayout) -> list[str]:
    """Commands that set up logins."""
    return [
        # Without PAM, sshd keeps out accounts that are locked, as root's is on some systems; with it, nothing changes.
        "install -m 600 /dev/null /run/lab/shadow",
        "sed 's/^root:[^:]*/root:*/' /etc/shadow > /run/lab/shadow",
        "mount -n --bind /run/lab/shadow /etc/shadow",
        "home=$(getent passwd root | cut -d: -f6)",
        'if [ -d "$home/.ssh" ]; then mount -n -t tmpfs -o mode=700 tmpfs "$home/.ssh"; fi',
        f"for file in {' '.join(_DOTFILES)}; do",
        '    if [ -e "$home/$file" ]; then mount -n --bind /dev/null "$home/$file"; fi',
        "done",
        f"echo {host.name} > /proc/sys/kernel/hostname",
        *_SHOW_CPU_SHARE,
    ]


def mount_shared(plan: LabPlan) -> list[str]:
    """Put the shared folder where a host expects it; run in the host's mount namespace."""
    return ["mount", "-n", "--bind", "/run/lab/shared", str(plan.shared)]


def unmount_shared(plan: LabPlan) -> list[str]:
    """Unmount it, even if programs are using it."""
    return ["umount", "-n", "--lazy", str(plan.shared)]


def in_mounts_of(process: int, command: list[str]) -> list[str]:
    return ["nsenter", f"--target={process}", "--mount", "--pid", *command]


def _is_private(path: Path) -> bool:
    return any(path != private and path.is_relative_to(private) for private in _PRIVATE)


def render_sshd_config(environment: Mapping[str, str]) -> str:
    """Logging in is for root with the lab's key; programs are found as on the outer machine."""
    setenv = " ".join(_quote_setting(f"{name}={value}") for name, value in environment.items())
    return "\n".join(
        [
            "AddressFamily inet",
            "HostKey /etc/ssh/ssh_host_ed25519_key",
            "AuthorizedKeysFile /etc/ssh/authorized_keys",
            "PermitRootLogin prohibit-password",
            "AllowUsers root",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "UseDNS no",
            "PrintMotd no",
            "PidFile none",
            "MaxStartups 1000",
            "MaxSessions 1000",
            "X11Forwarding no",
            "AcceptEnv LANG LC_*",
            "Subsystem sftp internal-sftp",
            *([f"SetEnv {setenv}"] if setenv else []),
            "",
        ]
    )


def _quote_setting(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def render_profile(environment: Mapping[str, str]) -> str:
    """/etc/profile: login shells keep what sshd has set; the system's own would put its PATH in place."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join([*exports, r"PS1='\h:\w\$ '", ""])


def render_hosts(plan: LabPlan) -> str:
    """/etc/hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    return "\n".join([*lines, *(f"{host.address} {host.name}" for host in plan.hosts), ""])


def render_known_hosts(plan: LabPlan, public_keys: Mapping[str, str]) -> str:
    """Every host's public key, by name and address."""
    return "".join(f"{host.name},{host.address} {public_keys[host.name]}\n" for host in plan.hosts)


def render_inner_ssh_config() -> str:
    """/etc/ssh/ssh_config: hosts log in on each other with the lab's key."""
    settings = [
        "User root",
        "IdentityFile /etc/ssh/user_key",
        "IdentitiesOnly yes",
        "StrictHostKeyChecking yes",
    ]
    return "\n    ".join(["Host *", *settings]) + "\n"


def render_ssh_config(plan: LabPlan) -> str:
    """For OpenSSH on the outer machine: connections begin in the switch's namespace, where the hosts' addresses are."""
    namespace = f"--net=/run/netns/{plan.switch}"
    program = ["nsenter", namespace, sys.executable, "-IS", str(Path(dial.__file__).resolve())]
    lines = [f"# The lab {plan.name!r}; made by `echelon lab up`."]
    for host in plan.hosts:
        lines += [f"Host {host.name}", f"    HostName {host.address}"]
    lines += [
        f"Host {' '.join(host.name for host in plan.hosts)}",
        "    User root",
        f"    IdentityFile {plan.user_key}",
        "    IdentitiesOnly yes",
        "    IdentityAgent none",
        f"    UserKnownHostsFile {plan.known_hosts}",
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
        f"    ProxyCommand {shlex.join(program).replace('%', '%%')} %h %p",
        "    ProxyUseFdpass yes",
        "",
    ]
    return "\n".join(lines)
