"""Commands on hosts, over a real ssh server on this machine and without ssh on localhost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from echelon.errors import HostsError, RemoteError
from echelon.launch import ssh
from echelon.launch.ssh import Completed, Remote, explain_failure, find_config, render_remote
from tests.sshd import Sshd
from tests.waiting import NEVER_S, wait_until

AWKWARD = ["", " ", "a b", "'", '"', "$HOME", "`id`", "*", "\\", "a\nb", "!x", "ü", "-n", ";exit 9", "#"]


@pytest.fixture(scope="module", params=["localhost", "alpha"])
def remote(request: pytest.FixtureRequest, sshd: Sshd) -> Iterator[Remote]:
    """This machine twice: without ssh, and through it."""
    with Remote(request.param, sshd.config) as remote:
        yield remote


@pytest.fixture
def alpha(sshd: Sshd) -> Iterator[Remote]:
    with Remote("alpha", sshd.config) as remote:
        yield remote


def test_arguments_arrive_as_they_were_given(remote: Remote) -> None:
    show = "import sys; sys.stdout.buffer.write(repr(sys.argv[1:]).encode())"
    completed = remote.run([sys.executable, "-c", show, *AWKWARD], timeout_s=NEVER_S)
    assert completed.stdout.decode() == repr(AWKWARD)


def test_input_output_and_status_come_through(remote: Remote) -> None:
    data = bytes(range(256)) * 1000
    assert remote.run(["cat"], stdin=data, timeout_s=NEVER_S) == Completed(0, data, b"")
    assert remote.run(["sh", "-c", "echo no >&2; exit 3"], timeout_s=NEVER_S) == Completed(3, b"", b"no\n")
    assert remote.run(["cat"], timeout_s=NEVER_S).stdout == b""


def test_commands_run_in_the_home_folder(remote: Remote) -> None:
    assert remote.run(["pwd"], timeout_s=NEVER_S).stdout.decode().strip() == os.path.expanduser("~")


def test_a_signal_and_a_status_of_255_are_the_commands_own(remote: Remote) -> None:
    assert remote.run(["sh", "-c", "kill -9 $$"], timeout_s=NEVER_S).status == 128 + signal.SIGKILL
    assert remote.run(["sh", "-c", "exit 255"], timeout_s=NEVER_S).status == (255 if remote.is_local else 254)


def test_a_missing_command_is_told(remote: Remote) -> None:
    with pytest.raises(RemoteError, match="no-such-command") as caught:
        remote.run(["no-such-command"], timeout_s=NEVER_S)
    assert caught.value.reason == "command not found"


def test_a_command_that_takes_too_long_is_left(remote: Remote) -> None:
    with pytest.raises(RemoteError, match=r"sleep did not end within 0\.3 seconds") as caught:
        remote.run(["sleep", "3"], timeout_s=0.3)
    assert caught.value.reason == "timed out"


def test_a_started_command_talks_while_it_runs(remote: Remote) -> None:
    with remote.start(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
    assert process.returncode == 0


def test_ctrl_c_does_not_reach_what_was_started(remote: Remote) -> None:
    with remote.start(["cat"], stdin=subprocess.PIPE) as process:
        assert isinstance(process, subprocess.Popen)
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()


def connections(sshd: Sshd) -> set[int]:
    """The server's processes, one a client."""
    return {child.pid for child in psutil.Process(sshd.pid).children() if child.status() != "zombie"}


def test_all_commands_share_one_connection_which_close_ends(sshd: Sshd) -> None:
    before = connections(sshd)
    with Remote("alpha", sshd.config) as remote, ThreadPoolExecutor() as threads:
        list(threads.map(lambda _: remote.run(["true"], timeout_s=NEVER_S), range(6)))
        (ours,) = connections(sshd) - before
        folder = remote._folder
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    wait_until(lambda: ours not in connections(sshd))


def test_a_lost_connection_is_made_anew(sshd: Sshd, alpha: Remote) -> None:
    alpha.run(["true"], timeout_s=NEVER_S)
    for child in psutil.Process(sshd.pid).children(recursive=True):
        child.kill()
    wait_until(lambda: not alpha._socket.exists())
    assert alpha.run(["echo", "back"], timeout_s=NEVER_S).stdout == b"back\n"


def test_a_host_that_is_forgotten_leaves_no_folder(sshd: Sshd) -> None:
    remote = Remote("alpha", sshd.config)
    folder = remote._socket.parent
    assert folder.exists()
    del remote
    assert not folder.exists()


@pytest.mark.slow
def test_a_connection_lost_on_the_way_is_an_error(sshd: Sshd, alpha: Remote) -> None:
    command = ["sh", "-c", "echo here; sleep 60"]
    with alpha.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        for child in psutil.Process(sshd.pid).children():
            child.kill()
        assert process.wait() == 255
        assert isinstance(process, subprocess.Popen)
        assert process.stderr is not None
        error = explain_failure("alpha", alpha.by_hand, 255, process.stderr.read().decode())
    assert error is not None
    assert error.reason == "connection lost"


def reason_of(remote: Remote) -> str:
    with pytest.raises(RemoteError) as caught, remote:
        remote.run(["true"], timeout_s=NEVER_S)
    assert str(caught.value).startswith(f"{remote.host}: ")
    return f"{caught.value.reason}: {caught.value.remedy}"


def with_options(sshd: Sshd, tmp_path: Path, *options: str) -> Path:
    config = tmp_path / "config"
    config.write_text("\n".join(options) + "\n" + sshd.config.read_text())
    return config


def test_an_unknown_host_name_is_told(sshd: Sshd) -> None:
    assert reason_of(Remote("no-such-host.invalid", sshd.config)).startswith("unknown host: check the name")


def test_a_refused_connection_is_told(sshd: Sshd, tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound but not listening, so that nobody else can take the port
        unused.bind(("127.0.0.1", 0))
        config = with_options(sshd, tmp_path, f"Port {unused.getsockname()[1]}")
        assert reason_of(Remote("alpha", config)).startswith("refused: start sshd there")


def test_a_host_that_does_not_answer_is_told(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ssh._OPTIONS, "ConnectTimeout", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = with_options(sshd, tmp_path, f"Port {silent.getsockname()[1]}")
        assert reason_of(Remote("alpha", config)).startswith("timed out: check that it is up")


def test_a_key_that_is_not_accepted_is_told(sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(sshd.config.read_text().replace("user_key", "other_key"))
    assert reason_of(Remote("alpha", config)).startswith(
        "permission: a key without a password prompt is needed"
    )


def test_an_unknown_host_key_stops_everything_and_the_way_on_is_told(sshd: Sshd, tmp_path: Path) -> None:
    config = with_options(sshd, tmp_path, f"UserKnownHostsFile {tmp_path}/none")
    assert reason_of(Remote("alpha", config)) == (
        f"host key: run `ssh -F {config} alpha` once by hand and compare the fingerprint"
    )


def test_a_changed_host_key_stops_everything_and_the_way_on_is_told(sshd: Sshd) -> None:
    sshd.know_host_key("other_key")
    try:
        remedy = reason_of(Remote("alpha", sshd.config))
    finally:
        sshd.know_host_key("host_key")
    assert f'ssh-keygen -f "{sshd.known_hosts}" -R "[127.0.0.1]:{sshd.port}"' in remedy


def test_a_bad_configuration_is_told(sshd: Sshd, tmp_path: Path) -> None:
    assert reason_of(Remote("alpha", with_options(sshd, tmp_path, "NoSuchOption yes"))) == "ssh: correct it"


def test_without_an_ssh_client_the_error_says_so(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert reason_of(Remote("alpha", sshd.config)) == "ssh: install the OpenSSH client"


def test_the_users_forwardings_and_commands_do_not_get_in_the_way(sshd: Sshd, tmp_path: Path) -> None:
    options = (
        f"LocalForward 127.0.0.1:{sshd.port} 127.0.0.1:1",
        "ExitOnForwardFailure yes",
        "RemoteCommand false",
        "RequestTTY yes",
    )
    with Remote("alpha", with_options(sshd, tmp_path, *options)) as remote:
        assert remote.run(["echo", "fine"], timeout_s=NEVER_S) == Completed(0, b"fine\n", b"")


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh"])
def test_the_users_shell_may_be_any_that_quotes_as_sh_does(shell: str) -> None:
    try:
        result = subprocess.run(
            [shell, "-c", render_remote(["printf", "%s|", *AWKWARD])], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip(f"no {shell} here")
    assert result.stdout.decode() == "".join(f"{word}|" for word in AWKWARD)


def test_the_configuration_comes_from_the_option_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ssh.CONFIG_VARIABLE, raising=False)
    config, other = tmp_path / "config", tmp_path / "other"
    config.write_text("")
    other.write_text("")
    assert find_config(None) is None
    monkeypatch.setenv(ssh.CONFIG_VARIABLE, str(config))
    assert find_config(None) == config
    assert find_config(other) == other
    with pytest.raises(HostsError, match="no such ssh configuration"):
        find_config(tmp_path / "missing")


def test_a_long_folder_for_temporary_files_does_not_break_the_socket(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with Remote("alpha", sshd.config) as remote:
        assert remote.run(["true"], timeout_s=NEVER_S).status == 0
        assert remote._socket.exists()


WAITS = """
import os
import threading
from echelon.launch.ssh import side_by_side

def wait(item):
    os.write(1, b"waiting\\n")  # print() writes the line's end by itself, and another thread may come between
    threading.Event().wait()

side_by_side(range(3), wait)
"""


def test_one_ctrl_c_ends_waiting_for_all_hosts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert stderr.rstrip().endswith(b"KeyboardInterrupt")
