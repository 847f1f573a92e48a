"""TLS: what clients get, and what is said about files that cannot be used."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echelon.errors import UserError
from echelon.serve.certificate import TlsFiles, tls_files
from echelon.serve.guard import Refusal, refuse
from echelon.serve.http_server import Entrance, HttpServer, ListenOptions
from echelon.serve.limits import Limits
from tests.serve.certificates import make_certificate


async def find_nothing(scope: Any, _receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await refuse(send, Refusal(404, f"{scope['scheme']}: nothing is here", {}))


@contextlib.contextmanager
def serving(files: TlsFiles, limits: Limits | None = None) -> Iterator[Entrance]:
    entrance = Entrance(ListenOptions(port=0, tls=files, limits=limits or Limits()))
    server = HttpServer(find_nothing, entrance, finish_s=1)
    thread = threading.Thread(target=server.run_here)
    thread.start()
    try:
        yield entrance
    finally:
        server.should_exit = True
        thread.join()


def ask(
    entrance: Entrance, trusted: Path, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[str, bytes]:
    """The version and the answer that a client gets who trusts one certificate."""
    context = ssl.create_default_context(cafile=trusted)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = newest
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", entrance.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: secure.recv(65536), b""))
        return secure.version() or "", answer


def test_a_certificate_is_replaced_while_the_server_serves(tmp_path: Path) -> None:
    """If the new files are no pair, the old ones stay in use."""
    files, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    with serving(files) as entrance:
        assert entrance.address_of("::1") == f"https://[::1]:{entrance.port}/"
        version, answer = ask(entrance, files.certificate)
        assert version == "TLSv1.3"
        assert b"https: nothing is here" in answer
        assert entrance.tls is not None
        with pytest.raises(UserError, match="is not the key of"):
            replace(files, key=other.key).reload(entrance.tls)
        old = tmp_path / "old.pem"
        old.write_bytes(files.certificate.read_bytes())
        assert ask(entrance, old)
        for target, source in ((files.certificate, other.certificate), (files.key, other.key)):
            target.write_bytes(source.read_bytes())
        files.reload(entrance.tls)
        assert ask(entrance, other.certificate)
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(entrance, old)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    with serving(files) as entrance:
        assert ask(entrance, files.certificate, ssl.TLSVersion.TLSv1_2)[0] == "TLSv1.2"
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            ask(entrance, files.certificate, ssl.TLSVersion.TLSv1_1)


def test_a_handshake_that_does_not_come_is_not_waited_for_long(tmp_path: Path) -> None:
    """asyncio itself would wait a minute, and a client's connections are as many as a server has."""
    with (
        serving(make_certificate(tmp_path), Limits(receive_s=0.5)) as entrance,
        socket.create_connection(("127.0.0.1", entrance.port), timeout=40) as silent,
    ):
        assert silent.recv(100) == b""


def test_files_that_cannot_be_used_are_said_to_be(tmp_path: Path) -> None:
    files, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    locked = make_certificate(tmp_path, "locked", password=b"hunter2")
    public = make_certificate(tmp_path, "public")
    public.key.chmod(0o644)
    broken = make_certificate(tmp_path, "broken")
    broken.certificate.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    gone = tmp_path / "gone"
    for wrong, says in {
        replace(files, certificate=gone): f"--tls-cert {gone}: cannot be read: No such file or directory",
        replace(files, key=gone): f"{gone}: cannot be read: No such file or directory",
        replace(files, certificate=files.key): "has no certificate in PEM form",
        replace(files, key=tmp_path): "cannot be read|every user",
        TlsFiles(
            files.certificate, other.key
        ): f"--tls-key {other.key}: is not the key of {files.certificate}",
        locked: f"--tls-key {locked.key}: has a password",
        public: f"chmod o-rwx {public.key}",
        broken: f"{broken.certificate} and {broken.key}: cannot be used: OpenSSL says ",
    }.items():
        with pytest.raises(UserError, match=says):
            wrong.open_context()
    files.certificate.chmod(0o600)
    swapped = TlsFiles(files.key, files.certificate)
    with pytest.raises(UserError, match="no certificate"):
        swapped.open_context()
    with pytest.raises(UserError, match="no private key"):
        replace(files, key=files.certificate).open_context()


def test_certificate_and_key_are_given_together(tmp_path: Path) -> None:
    assert tls_files(None, None) is None
    with pytest.raises(UserError, match="both are needed"):
        tls_files(tmp_path, None)
