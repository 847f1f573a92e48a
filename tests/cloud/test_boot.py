"""Machines as they really start: the rendered user data under a real cloud-init and a real systemd."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.cloud.inventory import render_known_hosts
from echelon.cloud.ssh_keys import make_key
from echelon.cloud.userdata import END_UNIT, Birth, render_user_data
from echelon.commands import rented_hosts
from echelon.launch.wheel import read_project
from tests.cloud.boot import ADDRESS, Machine, boot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # on a busy machine, making the image takes minutes

FILE_SERVER = """\
#!/bin/sh
# Stands in for the kernel's NFS client: the server is not known at first, and its files are this machine's memory.
echo x >> /run/attempts
[ "$(wc -l < /run/attempts)" -gt 2 ] || { echo "mount.nfs4: Failed to resolve server $1" >&2; exit 32; }
exec mount -i -t tmpfs "$1" "$2"
"""


def birth(folder: Path, lives_s: float) -> Birth:
    public = make_key(folder / "host_key", "wmt")
    return Birth(
        user="debian",
        host_key=(folder / "host_key").read_text(),
        host_key_public=public,
        deadline=time.time() + lives_s,
        mount="/shared",
        file_server="192.0.2.1",
        is_spot=True,
        saving_s=10,
        force_s=3,
    )


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def ssh_config(folder: Path) -> Path:
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(render_known_hosts("wmt", (folder / "host_key.pub").read_text()))
    config = folder / "ssh_config"
    config.write_text(
        f"User debian\nIdentityFile {folder / 'key'}\nIdentitiesOnly yes\nUserKnownHostsFile {known_hosts}\n"
        "HostKeyAlias wmt\nStrictHostKeyChecking yes\n"
    )
    return config


def stub_wheels(folder: Path) -> None:
    """An index in a folder: a package without contents for everything that Echelon needs."""
    for requirement in read_project(Path(__file__).parents[2])["project"]["dependencies"]:
        name = re.split(r"[\s<>=!~;\[]", requirement)[0]
        version = importlib.metadata.version(name).partition("+")[0]
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name.replace('-', '_')}/__init__.py", f'__version__ = "{version}"\n')
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
            tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{stem}.dist-info/WHEEL", tag)
            wheel.writestr(f"{stem}.dist-info/RECORD", "")


INSTALL = """\
import sys
from pathlib import Path
from echelon.launch.install import InstallOptions, install
from echelon.launch.ssh import Remote
with Remote(sys.argv[1], Path(sys.argv[2])) as remote:
    print(install(remote, InstallOptions()).python)
"""


def install_echelon(machine: Machine, config: Path) -> None:
    done = machine.run(sys.executable, "-c", INSTALL, ADDRESS, config)
    assert done.returncode == 0, done.stdout + done.stderr
    python = done.stdout.split()[-1]
    show = machine.log_in(config, python, "-c", "'import echelon; print(echelon.__version__)'")
    assert show.stdout.strip() == importlib.metadata.version("echelon-train"), show.stderr


def test_a_machine_boots_lets_us_in_mounts_the_files_and_takes_echelon(tmp_path: Path) -> None:
    user_data = render_user_data(birth(tmp_path, 3600))
    public = make_key(tmp_path / "key", "test")  # AWS hands it to cloud-init beside the user data
    user_data += f"ssh_authorized_keys:\n- {public}\n"
    server = program(tmp_path / "mount.nfs4", FILE_SERVER)
    (tmp_path / "wheels").mkdir()
    stub_wheels(tmp_path / "wheels")
    binds = [(server, "/sbin/mount.nfs4"), (tmp_path / "wheels", "/srv/wheels")]
    with boot(user_data, tmp_path, binds) as machine:
        config = ssh_config(tmp_path)
        booted = machine.log_in(config, "cloud-init status --wait --long && systemctl list-jobs")
        assert "status: done" in booted.stdout, booted.stdout + machine.journal()
        assert "No jobs running" in booted.stdout, booted.stdout + machine.journal()
        for unit in (END_UNIT, "echelon-watch.service"):
            assert machine.log_in(config, "systemctl", "is-active", unit).stdout == "active\n"
        assert machine.log_in(config, *rented_hosts._ENDS).returncode == 0
        shared = machine.log_in(config, "mountpoint /shared && stat -c %U /shared && touch /shared/mine")
        assert shared.stdout == "/shared is a mountpoint\ndebian\n", shared.stderr
        version = "{}.{}".format(*sys.version_info)
        if machine.log_in(config, "command", "-v", f"python{version}").returncode == 0:
            install_echelon(machine, config)


def test_a_machine_powers_itself_off_although_nobody_logs_in_and_its_setup_hangs(tmp_path: Path) -> None:
    told = birth(tmp_path, 40)
    hanging = program(tmp_path / "apt-get", "#!/bin/sh\nexec sleep infinity\n")
    with boot(render_user_data(told), tmp_path, [(hanging, "/usr/bin/apt-get")]) as machine:
        machine.wait_until_off(240)
    assert time.time() >= int(told.deadline) - told.saving_s, "systemd is told whole seconds"


def test_a_machine_that_boots_after_its_deadline_powers_itself_off(tmp_path: Path) -> None:
    with boot(render_user_data(birth(tmp_path, -60)), tmp_path) as machine:
        machine.wait_until_off(240)


def test_a_service_that_does_not_stop_cannot_keep_the_machine_on(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.conf"
    stubborn.write_text("[Service]\nExecStop=/bin/sleep infinity\nTimeoutStopSec=infinity\n")
    told = replace(birth(tmp_path, 3600), mount="")
    user_data = render_user_data(told) + f"ssh_authorized_keys:\n- {make_key(tmp_path / 'key', 'test')}\n"
    with boot(
        user_data, tmp_path, [(stubborn, "/etc/systemd/system/systemd-logind.service.d/stubborn.conf")]
    ) as machine:
        config = ssh_config(tmp_path)
        booted = machine.log_in(
            config, "cloud-init status --wait; sudo systemctl start systemd-logind.service"
        )
        assert "status: done" in booted.stdout, booted.stdout + machine.journal()
        # The deadline comes when the service runs: on a busy machine, one that is set before could come earlier.
        unit, deadline = f"/etc/systemd/system/{END_UNIT}", f"DEADLINE={int(told.deadline)}"
        machine.log_in(
            config,
            f"grep -q {deadline} {unit} && sudo sed -i s/{deadline}/DEADLINE=1/ {unit}"
            f" && sudo systemctl daemon-reload && sudo systemctl restart --no-block {END_UNIT}",
        )
        machine.wait_until_off(240)
        assert "Stopping systemd-logind.service" in machine.journal()
        assert "Stopped systemd-logind.service" not in machine.journal(), "it never let go"
