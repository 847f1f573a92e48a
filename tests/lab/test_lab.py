"""Hosts as a user and their programs meet them: names, folders, logging in, what is private and what is shared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import echelon
from echelon.errors import LabError, UserError
from echelon.lab.lab import Lab
from echelon.lab.layout import LabSpec
from tests.lab.on_hosts import disk_of, python
from tests.waiting import wait_until


def ssh(lab: Lab, *words: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = ["ssh", "-F", str(config or lab.ssh_config), *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


NAMESPACES = [f"/proc/self/ns/{kind}" for kind in ("net", "pid", "mnt", "uts", "ipc")]


def test_each_host_is_a_machine_of_its_own(lab: Lab) -> None:
    seen = [[os.readlink(path) for path in NAMESPACES]]
    for number, host in enumerate(lab.hosts, 1):
        look = f"hostname; readlink {' '.join(NAMESPACES)}; ip -brief -4 addr; ps -eo pid,args"
        name, *namespaces, loopback, card, _, first = lab.run(host, ["sh", "-c", look]).stdout.splitlines()[
            :10
        ]
        assert name == host
        seen.append(namespaces)
        assert loopback.split() == ["lo", "UNKNOWN", "127.0.0.1/8"]
        assert card.split()[0].startswith("eth0@")
        assert card.split()[2].endswith(f".{number}/24")
        assert first.split()[:2] == ["1", "sshd:"]
    for same_kind in zip(*seen, strict=True):
        assert len(set(same_kind)) == len(seen)


def test_programs_on_a_host_see_its_share_of_the_cpus(lab: Lab) -> None:
    look = "from echelon.launch.cores import cpu_quota, read_text; print(cpu_quota(read_text))"
    assert python(lab, "host1", look) == "0.5"


def test_hosts_log_in_on_each_other_and_on_themselves(lab: Lab) -> None:
    way = "hostname; ssh host2 'hostname; ssh host3 hostname'; ssh localhost hostname"
    assert lab.run("host1", ["sh", "-c", way]).stdout.split() == ["host1", "host2", "host3", "host1"]


def test_a_host_that_is_not_who_it_says_is_refused(lab: Lab, tmp_path: Path) -> None:
    known = (lab.disk.parent / "known_hosts").read_text()
    keys = [line.split(" ", 1)[1] for line in known.splitlines()]
    wrong = known.replace(keys[0], keys[1])
    (tmp_path / "known_hosts").write_text(wrong)
    result = ssh(lab, "-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "host1", "true")
    assert result.returncode == 255
    assert "Host key verification failed" in result.stderr
    (tmp_path / "known_hosts").write_text("")
    assert ssh(lab, "-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "host1", "true").returncode == 255


def test_only_the_labs_key_opens_a_host(lab: Lab, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    config = tmp_path / "ssh_config"
    config.write_text(
        lab.ssh_config.read_text().replace(str(lab.disk.parent / "user_key"), str(tmp_path / "other"))
    )
    result = ssh(lab, "host1", "true", config=config)
    assert result.returncode == 255
    assert "Permission denied (publickey)" in result.stderr


def test_other_tools_work_with_the_ssh_config(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    config = str(lab.ssh_config)
    subprocess.run(["scp", "-q", "-F", config, tmp_path / "file", f"host1:{lab.disk}/copied"], check=True)
    assert (disk_of(lab, "host1") / "copied").read_bytes() == (tmp_path / "file").read_bytes()
    result = subprocess.run(
        ["sftp", "-q", "-F", config, "-b", "-", "host1"],
        input=b"ls /etc/ssh\n",
        check=True,
        capture_output=True,
    )
    assert b"sshd_config" in result.stdout
    if shutil.which("rsync"):
        target = f"host1:{lab.disk}/synchronised"
        subprocess.run(["rsync", "-e", f"ssh -F {config}", tmp_path / "file", target], check=True)
        assert (disk_of(lab, "host1") / "synchronised").read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.slow
def test_forty_logins_at_once_are_not_too_many(lab: Lab) -> None:
    command = ["ssh", "-F", str(lab.ssh_config), "host1", "true"]
    logins = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(40)]
    assert [login.wait() for login in logins] == [0] * 40


def test_every_shell_finds_this_python_and_this_echelon(lab: Lab) -> None:
    program = "python3 -c 'import echelon, sys; print(sys.prefix, echelon.__file__)'"
    shells = f'{program}; bash -c "{program}"; bash -lc "{program}"; bash -ic "{program}"'
    found = lab.run("host1", ["sh", "-c", shells]).stdout
    assert found == f"{sys.prefix} {echelon.__file__}\n" * 4


def test_the_shared_folder_is_one_and_disks_are_many(lab: Lab) -> None:
    for host in lab.hosts:
        lab.run(host, ["sh", "-c", f"echo {host} > {lab.shared}/{host}; echo {host} > {lab.disk}/name"])
    assert lab.run("host2", ["ls", str(lab.shared)]).stdout.split() == lab.hosts
    assert [(lab.shared / host).read_text() for host in lab.hosts] == [f"{host}\n" for host in lab.hosts]
    for host in lab.hosts:
        assert lab.run(host, ["cat", f"{lab.disk}/name"]).stdout == f"{host}\n"
        assert (disk_of(lab, host) / "name").read_text() == f"{host}\n"
    assert list(lab.disk.iterdir()) == []


def test_a_host_sees_nothing_else_of_the_lab_and_nothing_in_private_places(lab: Lab) -> None:
    assert lab.run("host1", ["ls", str(lab.disk.parent)]).stdout.split() == ["disk", "shared"]
    assert lab.run("host1", ["touch", f"{lab.disk.parent}/mine"], check=False).returncode != 0
    places = [f"{place}/{lab.name}" for place in ("/tmp", "/run", "/dev/shm")]
    lab.run("host1", ["touch", *places])
    assert lab.run("host2", ["ls", *places], check=False).stdout == ""
    assert [place for place in places if Path(place).exists()] == []


def test_orphans_leave_no_zombies(lab: Lab) -> None:
    lab.run("host1", ["sh", "-c", "for i in 1 2 3 4 5; do setsid sleep 0.05 & done"])
    wait_until(lambda: "sleep" not in lab.run("host1", ["ps", "-eo", "comm,state"]).stdout)


def test_a_failing_command_is_told_with_what_it_said(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"host1: `cat /missing` failed with status 1:\n.*No such file"):
        lab.run("host1", ["cat", "/missing"])
    assert lab.run("host1", ["sh", "-c", "exit 7"], check=False).returncode == 7


def test_standard_input_reaches_the_command(lab: Lab) -> None:
    assert lab.run("host1", ["cat"], stdin="ä\n").stdout == "ä\n"


def test_hosts_of_two_labs_have_the_same_names_and_do_not_meet(
    lab: Lab, make_lab: Callable[..., Lab]
) -> None:
    other = make_lab(hosts=1)
    addresses = {status.address for one in (lab, other) for status in one.status().hosts}
    assert len(addresses) == len(lab.hosts) + 1
    stranger = other.status().hosts[0].address
    program = "import socket, sys\ntry: socket.create_connection((sys.argv[1], 22), 1)\nexcept OSError: print('apart')"
    assert python(lab, "host1", program, stranger) == "apart"


def test_mistakes_are_told(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is up already"):
        Lab.up(LabSpec(lab.name, tmp_path / "again", 1))
    with pytest.raises(UserError, match="has no host 'host9'"):
        lab.cut("host9")
    with pytest.raises(UserError, match="rate 'fast' is not allowed"):
        lab.rate("host1", "fast")
    with pytest.raises(UserError, match="no lab 'nowhere' is up"):
        Lab.find("nowhere")
    with pytest.raises(UserError, match="--name"):
        Lab.find("../nowhere")
    assert Lab.find(lab.name).hosts == lab.hosts
