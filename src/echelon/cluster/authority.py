"""A run's own certificate authority, for --tls: it signs one certificate for each host, and is forgotten.

Only the launcher needs the `cryptography` package; hosts use Python's ssl. Certificates go to the hosts as the run's
secret does, over SSH on standard input, and are in no file.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from echelon.agent.tls import Credentials, host_identity
from echelon.extras import require_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, Name

_DAY = timedelta(days=1)
"""How far the hosts' clocks may be behind."""
_LIFE = 3650 * _DAY
"""Longer than any run. A key is of no use after the run's end: its agents alone accept the authority."""


def make_credentials(hosts: int) -> list[Credentials]:
    """Return the credentials of each host of a run; UserError without the `tls` extra."""
    require_extra("cryptography", "tls")
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key, *keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(hosts + 1)]
    authority = _to_pem(_sign("authority.echelon", authority_key, authority_key, is_authority=True))
    signed = [_sign(host_identity(number), key, authority_key) for number, key in enumerate(keys)]
    return [
        Credentials(authority, _to_pem(certificate), _key_to_pem(key))
        for certificate, key in zip(signed, keys, strict=True)
    ]


def _sign(
    identity: str,
    key: EllipticCurvePrivateKey,
    authority_key: EllipticCurvePrivateKey,
    *,
    is_authority: bool = False,
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    now = datetime.now(UTC)
    authority = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(identity))
        .issuer_name(_name("authority.echelon"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(identity)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False
        )
        .sign(authority_key, SHA256())
    )


def _name(identity: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, identity)])


def _to_pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_to_pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
