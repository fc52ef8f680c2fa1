"""The PEM files that TLS is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from fastbk.errors import ConfigError
from fastbk.private_files import is_open_to_others

Stamp = tuple[tuple[int, int, int], ...]
"""Of each file: inode, size and time of its last change in ns; (0, 0, 0): it is not to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files; "": there is none.

    Attributes:
        ca_file: certificates of the authorities whose signatures are accepted.
        certificate_file: our own certificate, and those between it and the authority.
        key_file: its private key, which others than its owner and group must not be able to read.
        key_password_file: the key's password, if it has one; a line break at the end is not part of it.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password_file: str = ""

    def check(self, where: str) -> None:
        """Raise ConfigError, beginning with `where`, if a file is missing, or others may read what is secret."""
        if bool(self.certificate_file) != bool(self.key_file):
            raise ConfigError(f"{where}: certificate and key go together: give both, or none")
        for path in (self.ca_file, self.certificate_file, self.key_file, self.key_password_file):
            if path and not os.access(path, os.R_OK):
                raise ConfigError(f"{where}: {path} is missing, or not to be read by this user")
        for path in (self.key_file, self.key_password_file):
            if path and is_open_to_others(path):
                raise ConfigError(f"{where}: others can read {path}: run `chmod o= {path}`")

    def password(self) -> bytes:
        """Return the key's password. Raises OSError. Without a file b"": OpenSSL would else ask the terminal."""
        if not self.key_password_file:
            return b""
        with open(self.key_password_file, "rb") as file:
            return file.read(4096).rstrip(b"\r\n")

    def stamp(self) -> Stamp:
        """Return what changes when one of them does."""
        paths = (self.ca_file, self.certificate_file, self.key_file, self.key_password_file)
        return stamp_of(filter(None, paths))


def stamp_of(paths: Iterable[str]) -> Stamp:
    """Return what changes when one of these files does."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
