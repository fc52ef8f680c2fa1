"""Records of a metadata store for what is built on ledgers: small values at paths, changed by compare-and-set.

A path is names with slashes between them, such as `streams/1f/1f07/chain`; a record may have others below it. What is
empty is no record. Versions are numbers of at most 64 bits (INV-M14) that mean nothing but "the same as when I read
it".

Decision 67.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.observe.library_log import LibraryLog
from fastbk.printable_text import printable

if TYPE_CHECKING:
    from fastbk.meta.api import Watch

T = TypeVar("T")

BAD_RECORD_REMEDY = (
    "`fastbk metadata bad-records` lists all that cannot be read, and removes one that you name"
)
VALUE_BYTES_MAX = 900_000
"""What ZooKeeper takes in one node by default, with room for the request around it."""
READ_AT_ONCE = 500
READ_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of the records that a list of any length holds at once (INV-M18): one more than this has at most
VALUE_BYTES_MAX.
"""
REASON_CHARACTERS_MAX = 500
"""Maximum length of the reason why a record is bad: errors of decoders repeat what they found."""
PATH_CHARACTERS_MAX = 1000
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.%@:+=~-]{1,255}")


BAD_RECORD_AGAIN_S = 3600.0
"""A bad record that is met again and again is logged once in this time."""
BAD_RECORDS_KNOWN_MAX = 1000
_log = LibraryLog("fastbk.meta")


class VersionedRecord(msgspec.Struct, frozen=True):
    """A record as it was read, and the version that a change of it has to name."""

    value: bytes
    version: int


class Change(msgspec.Struct, frozen=True):
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

    def read_some(self, paths: Sequence[str], bytes_max: int) -> list[VersionedRecord | None]:
        """Return the first ones of several records, at least one: no more than have `bytes_max` bytes together."""

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


def count_within(sizes: Iterable[int], bytes_max: int) -> int:
    """Return how many of the first records have no more than `bytes_max` bytes together; 1 at least."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= bytes_max, accumulate(sizes))))


def each_record(records: RecordStore, paths: Sequence[str]) -> Iterator[VersionedRecord | None]:
    """Yield any number of records, in the order of their paths; few of them are in memory at a time (INV-M18)."""
    at = 0
    while at < len(paths):
        some = records.read_some(paths[at : at + READ_AT_ONCE], READ_BYTES_MAX)
        at += len(some)
        some.reverse()
        while some:
            yield some.pop()


class BadRecord(msgspec.Struct, frozen=True):
    """One that nobody can read, or that says what cannot be: in a list of many, it is named and passed over.

    It is there all the same: nothing may be deleted, or called lost, since what it says is not known (INV-M17).

    Attributes:
        path: where it is, or what it is of: `ledger 7`.
        version: that a change of it has to name, where the store's drivers can change it; else 0.
    """

    path: str
    reason: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    def error(self, ledger_id: int | None = None) -> StorageError:
        """Return what a call raises that needs this very record."""
        return StorageError(f"{self}. {BAD_RECORD_REMEDY}", ledger_id=ledger_id)


class _NamedRecords:
    """The bad records that this process has logged of late, the newest of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named_s: OrderedDict[str, float] = OrderedDict()

    def is_due(self, path: str) -> bool:
        now_s = time.monotonic()
        with self._lock:
            named_s = self._named_s.get(path)
            if named_s is not None and now_s - named_s < BAD_RECORD_AGAIN_S:
                return False
            self._named_s[path] = now_s
            self._named_s.move_to_end(path)
            if len(self._named_s) > BAD_RECORDS_KNOWN_MAX:
                self._named_s.popitem(last=False)
            return True


_named = _NamedRecords()


_collected: ContextVar[list[BadRecord] | None] = ContextVar("collected", default=None)


@contextmanager
def collected_bad_records() -> Iterator[list[BadRecord]]:
    """Give a list that gets the bad records that this thread meets in the block; they are not logged."""
    found: list[BadRecord] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def bad_record(path: str, reason: object, version: int = 0) -> BadRecord:
    """Return a bad record, and log it unless this process has done so of late: whoever passes it over says nothing."""
    bad = BadRecord(printable(path), printable(_short(reason)), version)
    collected = _collected.get()
    if collected is not None:
        collected.append(bad)
    elif _named.is_due(bad.path):
        _log.error(
            "metadata.bad_record", path=bad.path, reason=bad.reason, remedy=BAD_RECORD_REMEDY
        )
    return bad


def decoded(path: str, decode: Callable[[], T]) -> T | BadRecord:
    """Return what `decode` makes of the record at `path`, or what is wrong with it."""
    try:
        return decode()
    except (StorageError, ConfigError) as error:
        return BadRecord(path, _short(error))


def _short(reason: object) -> str:
    text = str(reason)
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[:REASON_CHARACTERS_MAX]}..."


def check_path(path: str) -> str:
    """Return `path` if it is one; raise ConfigError otherwise."""
    if len(path) > PATH_CHARACTERS_MAX or not all(
        _NAME.fullmatch(name) for name in path.split("/")
    ):
        raise ConfigError(
            f"{path!r} is no path of a record: names of 1 to 255 of A-Z a-z 0-9 _.%@:+=~- with slashes between them"
        )
    return path


def record_names(path: str, names: Iterable[str]) -> list[str]:
    """Return those of the names below `path` that a record can have, sorted; another one is named (INV-M17)."""
    found = []
    for name in sorted(names):
        if _NAME.fullmatch(name):
            found.append(name)
        else:
            bad_record(f"{path}/{name}", "no record has such a name")
    return found


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
