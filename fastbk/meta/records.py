"""Records of a metadata store for what is built on ledgers: small values at paths, changed by compare-and-set.

A path is names with slashes between them, such as `streams/1f/1f07/chain`; a record may have others below it. What is
empty is no record. Versions are numbers of at most 64 bits (INV-M14) that mean nothing but "the same as when I read
it".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.api import Watch

T = TypeVar("T")

VALUE_BYTES_MAX = 900_000
"""What ZooKeeper takes in one node by default, with room for the request around it."""
PATH_CHARACTERS_MAX = 1000
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.%@:+=~-]{1,255}")


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """A record as it was read, and the version that a change of it has to name."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One of several changes that happen together or not at all.

    `version` None: the record must be new. `value` None: the record goes; it must have none below it.
    """

    path: str
    value: bytes | None
    version: int | None = None

    def check(self) -> None:
        """Raise ConfigError for what can never be stored."""
        check_path(self.path)
        if self.value is None and self.version is None:
            raise ConfigError(f"{self.path}: a deletion has to name the version")
        if self.value is not None and not 1 <= len(self.value) <= VALUE_BYTES_MAX:
            raise ConfigError(
                f"{self.path}: a record has 1 to {VALUE_BYTES_MAX} bytes, not {len(self.value)}"
            )


class RecordStore(Protocol):
    """The records of one metadata store; for errors and threads see `fastbk.meta.api`."""

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records, in their order; None for those that are not there."""

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it or nothing; return the new versions (0 for deletions). MetadataConflict, ConfigError.

        Records on the way to a new one need not be there.
        """

    def children(self, path: str) -> list[str]:
        """Return the names of what lies directly below, sorted; also of what is no record but has some below it.

        With "" as path: the first names of all paths.
        """

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths, in their order."""

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back after the record came, changed or went, from now on; changes may be told as one."""

    def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back after names came or went directly below, from now on; changes may be told as one."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One that nobody can read, or that says what cannot be: in a list of many, it is named and passed over."""

    path: str
    reason: str


def decoded(path: str, decode: Callable[[], T]) -> T | BadRecord:
    """Return what `decode` makes of the record at `path`, or what is wrong with it."""
    try:
        return decode()
    except (StorageError, ConfigError) as error:
        return BadRecord(path, str(error))


def check_path(path: str) -> str:
    """Return `path` if it is one; raise ConfigError otherwise."""
    if len(path) > PATH_CHARACTERS_MAX or not all(
        _NAME.fullmatch(name) for name in path.split("/")
    ):
        raise ConfigError(
            f"{path!r} is no path of a record: names of 1 to 255 of A-Z a-z 0-9 _.%@:+=~- with slashes between them"
        )
    return path


def check_folder(path: str) -> str:
    """Return `path` if it may have records below it: a record's path, or "" for the top. Raises ConfigError."""
    return path and check_path(path)


def conflict(path: str) -> MetadataConflict:
    """Return what `change` raises for a record that is not as the change says."""
    return MetadataConflict(f"record {path} was changed by somebody else: read it again")


def has_some_below(path: str) -> MetadataConflict:
    """Return what `change` raises for the deletion of a record that has others below it."""
    return MetadataConflict(f"record {path} has others below it: delete those first")


def record_subject(path: str) -> str:
    """Return what a watcher calls the record at `path`."""
    return f"={check_path(path)}"


def children_subject(path: str) -> str:
    """Return what a watcher calls the names below `path`."""
    return f"/{check_path(path)}"
