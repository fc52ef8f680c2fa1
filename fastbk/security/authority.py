"""A certificate authority for trials and tests: `fastbk dev --tls`. Not for production: its key lies in a file.

    authority = Authority.make(Path("ca"))
    authority.issue(Path("bookie"), names=["localhost", "127.0.0.1"])

writes `ca/ca.crt` and `ca/ca.key`, then `bookie/tls.crt` and `bookie/tls.key`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fastbk.safe_files import make_directory, write_text

VALID_FOR = timedelta(days=30)
CERTIFICATE_NAME, KEY_NAME = "ca.crt", "ca.key"
_RENEWED_BEFORE = timedelta(days=7)
_CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Issued:
    """Where a certificate and its key lie."""

    certificate_file: Path
    key_file: Path


class Authority:
    """Signs certificates.

    Attributes:
        ca_file: its own certificate: what others verify by.
    """

    def __init__(
        self, ca_file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self.ca_file = ca_file
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, directory: Path, name: str = "fastbk trial authority") -> Authority:
        """Make one whose files lie in `directory`. Raises OSError."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = _builder(subject, subject, key.public_key(), VALID_FOR)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        # Without it a file of two authorities of one name is of no use.
        own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(own_id, critical=False)
        certificate = builder.sign(key, hashes.SHA256())
        _write(directory / CERTIFICATE_NAME, directory / KEY_NAME, certificate, key)
        return cls(directory / CERTIFICATE_NAME, certificate, key)

    @classmethod
    def load(cls, directory: Path) -> Authority | None:
        """Return the one that was made there; None: there is none, or it ends within a week. Raises OSError."""
        try:
            certificate = x509.load_pem_x509_certificate(
                (directory / CERTIFICATE_NAME).read_bytes()
            )
            key = serialization.load_pem_private_key((directory / KEY_NAME).read_bytes(), None)
        except (FileNotFoundError, ValueError):
            return None
        is_ending = certificate.not_valid_after_utc - datetime.now(UTC) < _RENEWED_BEFORE
        if is_ending or not isinstance(key, ec.EllipticCurvePrivateKey):
            return None
        return cls(directory / CERTIFICATE_NAME, certificate, key)

    def issue(
        self,
        directory: Path,
        names: Sequence[str] = (),
        *,
        common_name: str = "fastbk",
        roles: str = "",
        valid_for: timedelta = VALID_FOR,
    ) -> Issued:
        """Sign a certificate for a server that is reached by `names` (hosts and addresses), or for a client.

        `roles` becomes its organizational unit, `0:reader,writer`; a negative `valid_for` has ended already.
        Raises OSError.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            _name(common_name, roles), self._certificate.subject, key.public_key(), valid_for
        )
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        both = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        builder = builder.add_extension(both, critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        issued = Issued(directory / "tls.crt", directory / "tls.key")
        _write(issued.certificate_file, issued.key_file, certificate, key)
        return issued


def _name(common_name: str, roles: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if roles:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, roles))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER - abs(min(valid_for, timedelta())))
        .not_valid_after(now + valid_for)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(
    certificate_file: Path,
    key_file: Path,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
) -> None:
    make_directory(certificate_file.parent)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_text(key_file, pem.decode())
    write_text(certificate_file, certificate.public_bytes(serialization.Encoding.PEM).decode())
