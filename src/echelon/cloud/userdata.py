"""The cloud-config that a rented machine boots with: a pure function.

The machine gets its host key, mounts the shared files, notices when AWS wants it back, and powers itself off when its
time is over, whether or not anybody is still watching and whatever became of the rest.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Any

from echelon.launch.yaml import to_yaml

LEAVING = "/run/echelon/leaving"
"""If this file exists, the host is about to go: its workers save, and the others continue without it."""
SAVING_S = 300
"""How long before its end a machine tells the run to save and leave."""
END_UNIT = "echelon-end.service"
FORCE_S = 120
"""How long an orderly power-off may take before it is forced."""
_NFS_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev,nofail"

WATCH_SCRIPT = """\
#!/bin/sh
# Asks the machine's own metadata service whether this spare machine is wanted back, two minutes ahead.
metadata=${METADATA:-http://169.254.169.254} folder=${FOLDER:-/run/echelon}
mkdir -p "$folder"
while :; do
    token=$(curl -sf -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token")
    if curl -sf -m 2 -o "$folder/notice" -H "X-aws-ec2-metadata-token: $token" \\
        "$metadata/latest/meta-data/spot/instance-action"; then
        mv "$folder/notice" "$folder/leaving"
        exit 0
    fi
    sleep "${PERIOD:-5}"
done
"""

END_SCRIPT = """\
#!/bin/sh
# Wait for the end of the time that was paid for, have the run save, and power this machine off. It asks the clock
# again and again: a timer that was set before the clock was right, or after its moment, would never fire.
deadline=${DEADLINE:?} saving=${SAVING_S:?}
wait_until() { while [ "$(date +%s)" -lt "$1" ] && "${2:-true}"; do sleep 1; done; }
agent_runs() { pgrep -f 'echelon[.]agent start' > /dev/null; }
wait_until $((deadline - saving))
pkill -TERM -f 'echelon[.]agent start'
wait_until $((deadline - saving / 5)) agent_runs
systemctl poweroff
# A service or a file server that does not let go must not keep the machine, and its bill, running.
sleep "${FORCE_S:?}"
exec systemctl poweroff --force --force
"""


@dataclass(frozen=True)
class Birth:
    """The parameters of a machine's cloud-config."""

    user: str
    host_key: str
    """The private half."""
    host_key_public: str
    deadline: float
    """Seconds since 1970."""
    mount: str = ""
    """Where shared files go; empty if there are none."""
    file_server: str = ""
    is_spot: bool = False
    needs_docker: bool = False
    saving_s: int = SAVING_S
    force_s: int = FORCE_S


def render_user_data(birth: Birth) -> str:
    """The cloud-config."""
    document: dict[str, Any] = {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": birth.host_key, "ed25519_public": birth.host_key_public},
        "ssh_pwauth": False,
        # The first thing that cloud-init does, at every boot: whatever becomes of the rest, the machine ends in time.
        "bootcmd": [_arm_end(birth)],
        "package_update": True,
        # g++ compiles the kernels, on the machine where they run.
        "packages": ["g++", "nfs-common", "python3-venv"],
        "write_files": [],
        "runcmd": [_install_python(), f"mkdir -p {LEAVING.rsplit('/', 1)[0]}"],
    }
    if birth.needs_docker:
        document["runcmd"].append(_install_docker(birth.user))
    if birth.mount:
        # nofail and our own loop: the file server may take minutes to answer.
        document["mounts"] = [[f"{birth.file_server}:/", birth.mount, "nfs4", _NFS_OPTIONS, "0", "0"]]
        document["runcmd"].append(_mount(birth))
    if birth.is_spot:
        document["write_files"] += [
            _program("/usr/local/sbin/echelon-watch", WATCH_SCRIPT),
            _file("/etc/systemd/system/echelon-watch.service", _WATCH_UNIT),
        ]
        document["runcmd"].append("systemctl enable --now echelon-watch.service")
    return "#cloud-config\n" + to_yaml([document])


def _arm_end(birth: Birth) -> str:
    """Shell commands that start the countdown.

    cloud-init runs them before sysinit.target, which every unit waits for unless it has DefaultDependencies=no. A unit
    that waits for it here would wait for cloud-init, which waits for the unit, and the machine would never boot.
    Without DefaultDependencies the unit also outlives the start of the shutdown, which it may have to force.
    """
    unit = f"/etc/systemd/system/{END_UNIT}"
    program = "/usr/local/sbin/echelon-end"
    return "\n".join(
        [
            f"mkdir -p {program.rpartition('/')[0]}",
            f"printf %s {shlex.quote(END_SCRIPT)} > {program}",
            f"chmod 755 {program}",
            f"printf %s {shlex.quote(_render_end_unit(birth, program))} > {unit}",
            "systemctl daemon-reload",
            f"systemctl enable {END_UNIT}",
            f"systemctl start --no-block {END_UNIT}",
        ]
    )


def _render_end_unit(birth: Birth, program: str) -> str:
    return (
        "[Unit]\nDescription=The end of this rented machine\nDefaultDependencies=no\n"
        "[Service]\nType=exec\n"
        f"Environment=DEADLINE={int(birth.deadline)} SAVING_S={birth.saving_s} FORCE_S={birth.force_s}\n"
        f"ExecStart={program}\nRestart=always\nOOMScoreAdjust=-1000\n"
        "[Install]\nWantedBy=sysinit.target\n"
    )


def _program(path: str, text: str) -> dict[str, str]:
    return {"path": path, "permissions": "0755", "content": text}


def _file(path: str, text: str) -> dict[str, str]:
    return {"path": path, "permissions": "0644", "content": text}


_WATCH_UNIT = """\
[Unit]
Description=Whether AWS wants this spare machine back
[Service]
Type=exec
ExecStart=/usr/local/sbin/echelon-watch
[Install]
WantedBy=multi-user.target
"""


def _mount(birth: Birth) -> str:
    place, user = shlex.quote(birth.mount), shlex.quote(birth.user)
    attempt = f"mountpoint -q {place} || mount {place}"
    return (
        f"mkdir -p {place}; for i in $(seq 60); do {attempt} && break; sleep 5; done; "
        f"mountpoint -q {place} && chown {user}: {place}"
    )


def _install_docker(user: str) -> str:
    """Docker, unless the image has one: docker.io conflicts with the docker-ce of AWS's Deep Learning images."""
    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y docker.io"
    return f"command -v docker > /dev/null || {install}; usermod -aG docker {shlex.quote(user)}"


def _install_python() -> str:
    """The Python that Echelon runs with here, unless the image has it."""
    version = "{}.{}".format(*sys.version_info)
    install = f"apt-get install -y python{version} python{version}-venv"
    return f"command -v python{version} || {{ add-apt-repository -y ppa:deadsnakes/ppa; {install}; }}"
