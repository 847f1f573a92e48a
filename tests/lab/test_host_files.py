"""Whole texts of what is written for a host."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from echelon.lab import dial, host_files
from tests.lab.sample_plan import sample_plan

ENVIRONMENT = {"PATH": "/venv/bin:/usr/bin", "PYTHONPATH": '/a "tree"'}

BOOT = """\
set -eu
mount -n -t tmpfs -o mode=755 tmpfs /tmp/lab/stage
mkdir -p /tmp/lab/stage/sshd /tmp/lab/stage/lab/shared /tmp/lab/stage/lab/disk
mkdir -m 1777 /tmp/lab/stage/lock
chmod 700 /tmp/lab/stage/lab
mount -n --bind /tmp/lab/shared /tmp/lab/stage/lab/shared
mount -n --bind /tmp/lab/disks/host1 /tmp/lab/stage/lab/disk
mount -n --bind /tmp/lab/machines/host1 /etc/ssh
mount -n --bind /etc/ssh/hosts /etc/hosts
mount -n --bind /etc/ssh/profile /etc/profile
mkdir /tmp/lab/stage/lab/visible0
mount -n --rbind '/tmp/my venv' /tmp/lab/stage/lab/visible0
mount -n --move /tmp/lab/stage /run
mount -n -t tmpfs -o mode=1777 tmpfs /tmp
mount -n -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p '/tmp/my venv'
mount -n --rbind /run/lab/visible0 '/tmp/my venv'
mkdir -p /tmp/lab
mount -n -t tmpfs -o mode=755 tmpfs /tmp/lab
mkdir /tmp/lab/shared /tmp/lab/disk
mount -n -o remount,ro /tmp/lab
mount -n --bind /run/lab/disk /tmp/lab/disk
mount -n --bind /run/lab/shared /tmp/lab/shared
install -m 600 /dev/null /run/lab/shadow
sed 's/^root:[^:]*/root:*/' /etc/shadow > /run/lab/shadow
mount -n --bind /run/lab/shadow /etc/shadow
home=$(getent passwd root | cut -d: -f6)
if [ -d "$home/.ssh" ]; then mount -n -t tmpfs -o mode=700 tmpfs "$home/.ssh"; fi
for file in .bashrc .profile .bash_profile .bash_login; do
    if [ -e "$home/$file" ]; then mount -n --bind /dev/null "$home/$file"; fi
done
echo host1 > /proc/sys/kernel/hostname
controllers=$(cut -d: -f2 /proc/self/cgroup | grep -w cpu || :)
if [ -n "$controllers" ]; then
    mount -n -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu &&
    mount -n -t cgroup -o "ro,$controllers" cgroup /sys/fs/cgroup/cpu || :
else
    mount -n -t cgroup2 -o ro cgroup2 /sys/fs/cgroup || :
fi
exec /usr/sbin/sshd -D -e
"""

SSH_CONFIG = f"""\
# The lab 'lab'; made by `echelon lab up`.
Host host1
    HostName 10.77.3.1
Host host2
    HostName 10.77.3.2
Host host1 host2
    User root
    IdentityFile /lab/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile /lab/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    ProxyCommand nsenter --net=/run/netns/echelon-lab-switch {sys.executable} -IS {dial.__file__} %h %p
    ProxyUseFdpass yes
"""


def test_what_a_host_does_first() -> None:
    plan = sample_plan(folder=Path("/tmp/lab"))
    visible = [Path("/opt/python"), Path("/tmp/my venv"), Path("/tmp")]
    assert host_files.render_boot(plan, plan.host("host1"), "/usr/sbin/sshd", visible) == BOOT


def test_a_host_is_started_in_its_cgroup_and_namespaces() -> None:
    command = host_files.start_command(
        sample_plan().host("host1"), Path("/cpu/echelon-lab-host1/cgroup.procs")
    )
    assert shlex.join(command) == (
        """setsid --fork sh -c 'echo $$ > "$0" && exec "$@"' /cpu/echelon-lab-host1/cgroup.procs """
        "ip netns exec echelon-lab-host1 unshare --pid --fork --kill-child --mount-proc --uts --ipc "
        "sh /lab/machines/host1/boot.sh"
    )


def test_the_shared_folder_is_taken_away_and_given_back_in_the_hosts_own_mounts() -> None:
    plan = sample_plan()
    away = host_files.in_mounts_of(7, host_files.unmount_shared(plan))
    assert shlex.join(away) == "nsenter --target=7 --mount --pid umount -n --lazy /lab/shared"
    back = host_files.in_mounts_of(7, host_files.mount_shared(plan))
    assert shlex.join(back) == "nsenter --target=7 --mount --pid mount -n --bind /run/lab/shared /lab/shared"


def test_logging_in_needs_the_key_and_programs_are_found() -> None:
    assert host_files.render_sshd_config(ENVIRONMENT) == (
        "AddressFamily inet\n"
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "AuthorizedKeysFile /etc/ssh/authorized_keys\n"
        "PermitRootLogin prohibit-password\n"
        "AllowUsers root\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "PrintMotd no\n"
        "PidFile none\n"
        "MaxStartups 1000\n"
        "MaxSessions 1000\n"
        "X11Forwarding no\n"
        "AcceptEnv LANG LC_*\n"
        "Subsystem sftp internal-sftp\n"
        'SetEnv "PATH=/venv/bin:/usr/bin" "PYTHONPATH=/a \\"tree\\""\n'
    )
    assert "SetEnv" not in host_files.render_sshd_config({})


def test_a_login_shell_keeps_the_environment() -> None:
    assert host_files.render_profile(ENVIRONMENT) == (
        "export PATH=/venv/bin:/usr/bin\nexport PYTHONPATH='/a \"tree\"'\nPS1='\\h:\\w\\$ '\n"
    )


def test_hosts_know_each_other_by_name() -> None:
    plan = sample_plan()
    assert host_files.render_hosts(plan) == (
        "127.0.0.1 localhost\n::1 localhost\n10.77.3.1 host1\n10.77.3.2 host2\n"
    )
    assert host_files.render_known_hosts(plan, {"host1": "ssh-ed25519 A", "host2": "ssh-ed25519 B"}) == (
        "host1,10.77.3.1 ssh-ed25519 A\nhost2,10.77.3.2 ssh-ed25519 B\n"
    )
    assert host_files.render_inner_ssh_config() == (
        "Host *\n    User root\n    IdentityFile /etc/ssh/user_key\n    IdentitiesOnly yes\n"
        "    StrictHostKeyChecking yes\n"
    )


def test_openssh_on_the_outer_machine_connects_from_the_switch() -> None:
    assert host_files.render_ssh_config(sample_plan()) == SSH_CONFIG
