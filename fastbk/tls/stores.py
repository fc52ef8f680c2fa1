"""PKCS12 stores, read as the PEM that OpenSSL's contexts take. Java's own format (JKS) is refused with the cure."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_JKS = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE = b"\x30"
STORE_BYTES_MAX = 4 << 20


def format_of(path: str) -> Literal["PEM", "PKCS12"]:
    """Return what a file is, by how it begins. Raises OSError, ConfigError for a store of Java's own format."""
    with open(path, "rb") as file:
        head = file.read(4)
    if head == _JKS:
        raise ConfigError(
            f"{path} is a JKS store, which only Java reads; convert it: keytool -importkeystore -srckeystore {path}"
            f" -destkeystore {Path(path).with_suffix('.p12')} -deststoretype PKCS12"
        )
    return "PKCS12" if head.startswith(_DER_SEQUENCE) else "PEM"


def identity_pem(path: str, password: bytes) -> bytes:
    """Return key and certificates of a store. Raises OSError, ConfigError."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    store = _loaded(path, password)
    if store.key is None or store.cert is None:
        raise ConfigError(f"{path} has no key with a certificate in it")
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [store.cert, *store.additional_certs]
    return key + b"".join(one.certificate.public_bytes(Encoding.PEM) for one in chain)


def certificates_pem(path: str, password: bytes) -> bytes:
    """Return all certificates of a store, such as one of authorities. Raises OSError, ConfigError."""
    from cryptography.hazmat.primitives.serialization import Encoding

    store = _loaded(path, password)
    found = [one for one in (store.cert, *store.additional_certs) if one is not None]
    if not found:
        raise ConfigError(f"{path} has no certificate in it")
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in found)


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Give OpenSSL, which wants a path, one to memory: a key must not come onto a disk. Raises OSError."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _loaded(path: str, password: bytes) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    with open(path, "rb") as file:
        content = file.read(STORE_BYTES_MAX)
    try:
        return load_pkcs12(content, password or None)
    except ValueError as error:
        raise ConfigError(f"{path}: no PKCS12 store, or another password: {error}") from error
