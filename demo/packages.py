"""What the streams' demo writes: this machine's package records, and the checksums of their files, as dpkg has them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastbk.errors import StorageError

DPKG = "/var/lib/dpkg"
"""DPKG=folder: another one of the same shape, for tests."""


@dataclass(frozen=True, slots=True)
class Item:
    """A record of the source: the package it belongs to, and its text."""

    key: bytes
    payload: bytes


def packages() -> list[Item]:
    """Return the records of all packages. Raises StorageError where there are none."""
    path = Path(os.environ.get("DPKG", DPKG), "status")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}; the demo reads what dpkg has installed"
        ) from error
    found = []
    for record in text.split(b"\n\n"):
        name = record.lstrip().partition(b"\n")[0]
        if name.startswith(b"Package: "):
            found.append(Item(name.removeprefix(b"Package: "), record.strip() + b"\n"))
    if not found:
        raise StorageError(f"{path} has no packages")
    return found


def checksums() -> Iterator[Item]:
    """Yield a line for each file of each package, packages by name: always the same while nothing is installed."""
    folder = Path(os.environ.get("DPKG", DPKG), "info")
    for path in sorted(folder.glob("*.md5sums")):
        key = path.stem.encode()
        for line in path.read_bytes().splitlines():
            yield Item(key, line)


class ChainedDigest:
    """SHA-256 over all records so far, made anew with each: 32 bytes say all, so that it can go on elsewhere."""

    def __init__(self, text: str = "") -> None:
        self._value = bytes.fromhex(text)
        self.records = 0

    def add(self, key: bytes | None, payload: bytes | memoryview) -> None:
        """Add a record."""
        one = hashlib.sha256(self._value)
        one.update(b"%d " % len(key or b""))
        one.update(key or b"")
        one.update(payload)
        self._value = one.digest()
        self.records += 1

    def __str__(self) -> str:
        return self._value.hex()


def digest_of(items: Iterator[Item] | list[Item]) -> ChainedDigest:
    """Return the digest of these."""
    digest = ChainedDigest()
    for item in items:
        digest.add(item.key, item.payload)
    return digest
