"""The files that TLS is made of."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from fastbk.errors import ConfigError
from fastbk.private_files import is_open_to_others
from fastbk.tls.stores import as_file, certificates_pem, format_of, identity_pem

PEM_BYTES_MAX = 16 << 20
Stamp = tuple[tuple[int, int, int], ...]
"""Of each file: inode, size and time of its last change in ns; (0, 0, 0): it is not to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of files, PEM or PKCS12; "": there is none.

    Attributes:
        ca_file: certificates of the authorities whose signatures are accepted.
        certificate_file: our own certificate, and those between it and the authority; in PKCS12 the key, too.
        key_file: its private key, which others than its owner and group must not be able to read.
        key_password_file: the password of key or store, if it has one; a line break at the end is not part of it.
        ca_password_file: the same of `ca_file`, which only a PKCS12 store has.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password_file: str = ""
    ca_password_file: str = ""

    def all_files(self) -> list[str]:
        """Return the paths that are given."""
        paths = (
            self.ca_file,
            self.certificate_file,
            self.key_file,
            self.key_password_file,
            self.ca_password_file,
        )
        return [path for path in paths if path]

    def check(self, where: str) -> None:
        """Raise ConfigError, beginning with `where`, if a file is missing, or others may read what is secret."""
        for path in self.all_files():
            if not os.access(path, os.R_OK):
                raise ConfigError(f"{where}: {path} is missing, or not to be read by this user")
        has_key = bool(self.key_file) or (
            bool(self.certificate_file) and format_of(self.certificate_file) == "PKCS12"
        )
        if bool(self.certificate_file) != has_key:
            raise ConfigError(f"{where}: certificate and key go together: give both, or none")
        key_file = self.key_file or self.certificate_file
        for path in filter(None, (key_file, self.key_password_file, self.ca_password_file)):
            if is_open_to_others(path):
                raise ConfigError(
                    f"{where}: others can read {path}. If it is the right file, run `chmod o= {path}`"
                )

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give a context what there is. Raises OSError, ValueError, ConfigError."""
        if self.ca_file and format_of(self.ca_file) == "PKCS12":
            context.load_verify_locations(
                cadata=pem_of(self.ca_file, self.ca_password_file).decode()
            )
        elif self.ca_file:
            context.load_verify_locations(self.ca_file)
        if not self.certificate_file:
            return
        password = _password(self.key_password_file)
        if format_of(self.certificate_file) == "PKCS12":
            with as_file(identity_pem(self.certificate_file, password)) as path:
                context.load_cert_chain(path)
        else:
            # Without a password b"": OpenSSL would else ask the terminal.
            context.load_cert_chain(self.certificate_file, self.key_file, password)

    def stamp(self) -> Stamp:
        """Return what changes when one of them does."""
        return stamp_of(self.all_files())


def pem_of(path: str, password_file: str) -> bytes:
    """Return the certificates of a file of either format. Raises OSError, ConfigError."""
    if format_of(path) == "PKCS12":
        return certificates_pem(path, _password(password_file))
    with open(path, "rb") as file:
        return file.read(PEM_BYTES_MAX)


def _password(path: str) -> bytes:
    if not path:
        return b""
    with open(path, "rb") as file:
        return file.read(4096).rstrip(b"\r\n")


def stamp_of(paths: Iterable[str]) -> Stamp:
    """Return what changes when one of these files does."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
