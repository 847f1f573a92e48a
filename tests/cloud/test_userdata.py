"""What machines are told at birth: complete, and the scripts in it do what they are for."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from echelon.agent.agent import LEAVE_FILE
from echelon.cloud.userdata import END_SCRIPT, END_UNIT, LEAVING, WATCH_SCRIPT, Birth, render_user_data

BIRTH = Birth(
    user="ubuntu",
    host_key="-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n",
    host_key_public="ssh-ed25519 AAAA host",
    deadline=1_800_000_000,
    mount="/shared",
    file_server="fs-1.efs.us-east-1.amazonaws.com",
    is_spot=True,
)


def parsed(birth: Birth = BIRTH) -> dict[str, Any]:
    text = render_user_data(birth)
    assert text.startswith("#cloud-config\n")
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def test_the_machine_gets_its_host_key_and_no_password() -> None:
    document = parsed()
    assert document["ssh_keys"] == {
        "ed25519_private": BIRTH.host_key,
        "ed25519_public": BIRTH.host_key_public,
    }
    assert document["ssh_pwauth"] is False


def test_what_ends_the_machine_is_started_first_and_waits_for_no_target() -> None:
    """cloud-init runs bootcmd before sysinit.target; tests/cloud/test_boot.py boots a machine with it."""
    (first,) = parsed()["bootcmd"]
    words = shlex.split(first)
    texts = {words[at + 4]: words[at + 2] for at, word in enumerate(words) if word == "printf"}
    unit = texts[f"/etc/systemd/system/{END_UNIT}"]
    assert "DefaultDependencies=no" in unit
    assert "DEADLINE=1800000000 SAVING_S=300" in unit
    assert texts["/usr/local/sbin/echelon-end"] == END_SCRIPT
    assert words[-4:] == ["systemctl", "start", "--no-block", END_UNIT]


def test_docker_is_installed_by_itself_and_only_if_it_is_missing() -> None:
    document = parsed(replace(BIRTH, needs_docker=True))
    assert "docker.io" not in document["packages"], "a conflict there would take the others down with it"
    assert any(line.startswith("command -v docker > /dev/null ||") for line in document["runcmd"])


def test_a_hostile_user_or_folder_stays_one_word() -> None:
    birth = replace(BIRTH, user="x; touch /owned", mount="/a; touch /owned", needs_docker=True)
    lines = parsed(birth)["runcmd"]
    for quoted in ("'x; touch /owned'", "'x; touch /owned':", "'/a; touch /owned'"):
        lines = [line.replace(quoted, "") for line in lines]
    assert not [line for line in lines if "/owned" in line]


def test_the_machine_gets_a_compiler_for_the_kernels() -> None:
    assert "g++" in parsed()["packages"]


def test_cloud_inits_own_schema_takes_it() -> None:
    schema = Path("/usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json")
    if not schema.exists():
        pytest.skip("cloud-init is not here: apt install cloud-init")
    jsonschema.Draft4Validator(json.loads(schema.read_text())).validate(parsed())


def test_shared_files_go_into_fstab() -> None:
    assert parsed()["mounts"][0][:3] == ["fs-1.efs.us-east-1.amazonaws.com:/", "/shared", "nfs4"]
    assert "mounts" not in parsed(Birth("ubuntu", "k\nk\n", "p", 0.0))


def test_only_spare_machines_watch_for_their_notice() -> None:
    assert any("echelon-watch" in command for command in parsed()["runcmd"])
    assert not any("echelon-watch" in command for command in parsed(Birth("u", "k\nk\n", "p", 0.0))["runcmd"])
    assert LEAVING == LEAVE_FILE, "the file that the agent looks for"


class Metadata(BaseHTTPRequestHandler):
    """The metadata service of a machine: version 2 only, with a notice from the third question on."""

    questions = 0

    def do_PUT(self) -> None:
        self._answer(200, b"secret" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else b"")

    def do_GET(self) -> None:
        type(self).questions += 1
        if self.headers.get("X-aws-ec2-metadata-token") != "secret":
            self._answer(401, b"")
        elif self.path != "/latest/meta-data/spot/instance-action" or self.questions < 3:
            self._answer(404, b"")
        else:
            self._answer(200, b'{"action": "terminate", "time": "2027-01-01T00:02:00Z"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.mark.skipif(shutil.which("curl") is None, reason="rented machines ask with curl")
def test_the_watcher_asks_with_a_token_and_leaves_a_file(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        environment = {
            "METADATA": f"http://127.0.0.1:{server.server_port}",
            "FOLDER": str(tmp_path),
            "PERIOD": "0.1",
            "PATH": "/usr/bin:/bin",
        }
        subprocess.run(["sh", "-c", WATCH_SCRIPT], env=environment, check=True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert '"terminate"' in (tmp_path / "leaving").read_text()
    assert Metadata.questions == 3


AGENT = "trap 'touch saved; exit' TERM; touch running; while :; do sleep 0.1; done"
STAGE = """\
PATH=$PWD:$PATH
sh -c "$AGENT" 'python -m echelon.agent start' &
while ! [ -e running ]; do sleep 0.05; done
sh ./echelon-end
"""


def test_at_its_end_a_machine_has_the_run_save_and_switches_itself_off(tmp_path: Path) -> None:
    """In a process namespace: the script ends agents, and there may be others on this machine."""
    (tmp_path / "echelon-end").write_text(END_SCRIPT)
    (tmp_path / "stage").write_text(STAGE)  # whose command line must not look like an agent's
    (tmp_path / "systemctl").write_text('#!/bin/sh\n[ -e saved ] && echo "$@" >> off\n')
    (tmp_path / "systemctl").chmod(0o755)
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("process namespaces need root here")
    deadline = int(time.time()) + 600
    times = {"DEADLINE": str(deadline), "SAVING_S": "599", "FORCE_S": "0"}
    environment = {"AGENT": AGENT, "PATH": "/usr/bin:/bin", **times}
    subprocess.run([*apart, "sh", "./stage"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "off").read_text() == "poweroff\npoweroff --force --force\n"
    assert time.time() < deadline, "an agent that has saved is not waited for"
