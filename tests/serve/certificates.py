"""Certificates for tests, signed by themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from echelon.serve.certificate import TlsFiles


def make_certificate(folder: Path, name: str = "server", password: bytes | None = None) -> TlsFiles:
    """A certificate for 127.0.0.1 and its key, in NAME.pem and NAME.key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / f"{name}.pem", folder / f"{name}.key")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    files.key.touch(0o600)
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    )
    return files
