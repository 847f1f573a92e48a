"""The certificate of a server, which may be replaced while it serves."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import UserError
from echelon.runfolder import read_private


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the certificate with those that lead from it to its authority, and its key."""

    certificate: Path
    key: Path

    def open_context(self) -> ssl.SSLContext:
        """The TLS context (1.2 or newer); UserError if the files cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        return context

    def reload(self, context: ssl.SSLContext) -> None:
        """Reload the files for new connections; UserError, and nothing changes, if they cannot be used."""
        self.open_context()
        self._load(context)

    def _load(self, context: ssl.SSLContext) -> None:
        self._check_kinds()
        try:
            context.load_cert_chain(self.certificate, self.key, self._refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise UserError(f"--tls-key {self.key}: is not the key of {self.certificate}") from None
            reason = f"OpenSSL says {error.reason or error}"
            raise UserError(f"{self.certificate} and {self.key}: cannot be used: {reason}") from None

    def _check_kinds(self) -> None:
        try:
            certificate = self.certificate.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise UserError(f"--tls-cert {self.certificate}: cannot be read: {error.strerror}") from None
        if "-----BEGIN CERTIFICATE-----" not in certificate:
            raise UserError(f"--tls-cert {self.certificate}: has no certificate in PEM form")
        if "PRIVATE KEY-----" not in read_private(self.key):
            raise UserError(f"--tls-key {self.key}: has no private key in PEM form")

    def _refuse_password(self) -> str:
        raise UserError(
            f"--tls-key {self.key}: has a password, which could not be entered after a restart; store it without one, "
            "readable by the server's user alone"
        )


def tls_files(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """What `--tls-cert` and `--tls-key` name; None without them."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UserError("--tls-cert and --tls-key: both are needed")
    return TlsFiles(certificate, key)
