"""What a rented machine is told when it first starts, for cloud-init: a pure function.

It gets its host key, mounts the shared files, notices when it is about to be taken away, and ends by itself when its
time is over, whether or not anybody is still watching.
"""

from __future__ import annotations

import datetime
import shlex
import sys
from dataclasses import dataclass
from typing import Any

from echelon.launch.yaml import to_yaml

LEAVING = "/run/echelon/leaving"
"""A host on which this file exists is about to go: its workers save, and the others go on without it."""
SAVING_S = 300
"""How long before its end a machine tells the run to save and leave."""
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

END_SCRIPT = f"""\
#!/bin/sh
# The time that was paid for is over: have the run save, wait for it, and end this machine.
pkill -TERM -f 'echelon[.]agent start'
waited=0
while pgrep -f 'echelon[.]agent start' > /dev/null && [ $waited -lt {SAVING_S - 60} ]; do
    sleep 1
    waited=$((waited + 1))
done
systemctl poweroff
"""


@dataclass(frozen=True)
class Birth:
    """What a machine needs to know."""

    user: str
    host_key: str
    """The private half."""
    host_key_public: str
    deadline: float
    """Seconds since 1970."""
    mount: str = ""
    """Where shared files go; empty where there are none."""
    file_server: str = ""
    is_spot: bool = False
    needs_docker: bool = False


def render_user_data(birth: Birth) -> str:
    """The cloud-config."""
    document: dict[str, Any] = {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": birth.host_key, "ed25519_public": birth.host_key_public},
        "ssh_pwauth": False,
        # Before anything that can hang: whatever becomes of the rest, the machine ends in time.
        "bootcmd": [f"systemd-run --on-calendar='{_moment(birth.deadline)}' systemctl poweroff"],
        "package_update": True,
        # g++ compiles the kernels, on the machine where they run.
        "packages": ["g++", "nfs-common", "python3-venv", *(["docker.io"] if birth.needs_docker else [])],
        "write_files": [
            _program("/usr/local/sbin/echelon-end", END_SCRIPT),
            _file("/etc/systemd/system/echelon-end.service", _unit("echelon-end", "oneshot")),
            _file("/etc/systemd/system/echelon-end.timer", _timer(birth.deadline - SAVING_S)),
        ],
        "runcmd": [
            "systemctl enable --now echelon-end.timer",
            _install_python(),
            f"mkdir -p {LEAVING.rsplit('/', 1)[0]}",
        ],
    }
    if birth.needs_docker:
        document["runcmd"].append(f"usermod -aG docker {shlex.quote(birth.user)}")
    if birth.mount:
        # nofail and our own loop: the file server's name may take minutes to be known.
        document["mounts"] = [[f"{birth.file_server}:/", birth.mount, "nfs4", _NFS_OPTIONS, "0", "0"]]
        document["runcmd"].append(_mount(birth))
    if birth.is_spot:
        document["write_files"] += [
            _program("/usr/local/sbin/echelon-watch", WATCH_SCRIPT),
            _file("/etc/systemd/system/echelon-watch.service", _unit("echelon-watch", "exec", wanted=True)),
        ]
        document["runcmd"].append("systemctl enable --now echelon-watch.service")
    return "#cloud-config\n" + to_yaml([document])


def _program(path: str, text: str) -> dict[str, str]:
    return {"path": path, "permissions": "0755", "content": text}


def _file(path: str, text: str) -> dict[str, str]:
    return {"path": path, "permissions": "0644", "content": text}


def _unit(program: str, kind: str, *, wanted: bool = False) -> str:
    install = "[Install]\nWantedBy=multi-user.target\n" if wanted else ""
    return f"[Unit]\nDescription={program}\n[Service]\nType={kind}\nExecStart=/usr/local/sbin/{program}\n{install}"


def _moment(when: float) -> str:
    """As systemd writes it."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _timer(when: float) -> str:
    # Persistent: a machine that was off at the moment ends when it is on again.
    return (
        "[Unit]\nDescription=The end of this rented machine\n"
        f"[Timer]\nOnCalendar={_moment(when)}\nPersistent=true\nAccuracySec=1s\n[Install]\nWantedBy=timers.target\n"
    )


def _mount(birth: Birth) -> str:
    mount, owner = shlex.quote(birth.mount), shlex.quote(f"{birth.user}:")
    attempt = f"mountpoint -q {mount} || mount {mount}"
    return (
        f"mkdir -p {mount}; for i in $(seq 60); do {attempt} && break; sleep 5; done; "
        f"mountpoint -q {mount} && chown {owner} {mount}"
    )


def _install_python() -> str:
    """The Python that Echelon runs with here, where the image does not have it."""
    version = "{}.{}".format(*sys.version_info)
    install = f"apt-get install -y python{version} python{version}-venv"
    return f"command -v python{version} || {{ add-apt-repository -y ppa:deadsnakes/ppa; {install}; }}"
