"""The format level of a cluster: one record of the metadata store, which `fastbk cluster finalize` raises.

A new cluster begins at the newest level. One without the record was made by an older version, or by Apache's or
Pulsar's tools, or its metadata was rebuilt: it has the first level.

`fastbk.formats` says what each level means. A process that works for the whole cluster reads the level when it starts
and then every few seconds: a bookie by its `FormatGate`, others by `RecordCalls.check_level`. What a bookie writes in a
newer format, it writes by `FormatGate.version`.

INV-U1: a process writes the newer version of a format only after it has read a level that has it.
INV-U2: the level of a cluster never falls. It rises only while every registered bookie and every worker of AutoRecovery
that reports has it; a bookie that lacks it does not start, and one that runs leaves the cluster.
INV-U5: a janitor, AutoRecovery, gateway or console that lacks the level of the cluster does not start. One that runs
reads the level at least every ten seconds, ends when it lacks it, and a janitor deletes nothing by then.

Decision 126.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.formats import LEVEL_FIRST, LEVEL_MAX, version_at
from fastbk.meta.records import Change, bad_record
from fastbk.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.meta.records import RecordStore

LEVEL_PATH = "cluster/format_level"
REMEDY = "`fastbk cluster finalize` writes it anew once all processes have this version; a backup has it, too"
POLL_INTERVAL_S = 10.0
"""A process has read a new level after so long at most, where metadata answers."""
TRIES_MAX = 20


class HasRecords(Protocol):
    """A metadata store, as far as the level needs it."""

    @property
    def records(self) -> RecordStore:
        """Its records."""


class LevelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says. `finalized_ms`: when it was last raised, in ms since 1970; `software`: by which version."""

    level: int = LEVEL_FIRST
    finalized_ms: int = 0
    software: str = ""


def first_record() -> bytes:
    """Return the record of a cluster that is made now: no process of an older version has been in it."""
    return msgspec.json.encode(
        LevelRecord(
            level=LEVEL_MAX, finalized_ms=int(time.time() * 1000), software=f"fastbk {VERSION}"
        )
    )


def decode(value: bytes | None) -> LevelRecord:
    """Return what the record says; the first level where there is none. Raises StorageError."""
    if value is None:
        return LevelRecord()
    try:
        record = msgspec.json.decode(value, type=LevelRecord)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"the record {LEVEL_PATH} in metadata is damaged: {error}. {REMEDY}"
        ) from error
    if record.level < LEVEL_FIRST:
        raise StorageError(
            f"the record {LEVEL_PATH} in metadata names level {record.level}; levels begin with {LEVEL_FIRST}."
            f" {REMEDY}"
        )
    return record


def read_record(store: HasRecords) -> LevelRecord:
    """Return what the record says. Raises MetadataUnavailable, StorageError."""
    (found,) = store.records.read([LEVEL_PATH])
    return decode(None if found is None else found.value)


def read_or_first(store: HasRecords) -> LevelRecord:
    """Return what the record says, the first level if nobody can read it (INV-M17). Raises MetadataUnavailable.

    For whoever shows the level, or raises it after all processes were found to have the higher one.
    """
    (found,) = store.records.read([LEVEL_PATH])
    return _decode_or_first(None if found is None else found.value)


def _decode_or_first(value: bytes | None) -> LevelRecord:
    try:
        return decode(value)
    except StorageError as error:
        bad_record(LEVEL_PATH, error)
        return LevelRecord()


def raise_level(store: HasRecords, level: int) -> LevelRecord:
    """Raise the level if it is lower (INV-U2); return the record as it is then.

    Whether all processes have the level is the caller's to check (`fastbk.upgrade.roll`).

    Raises MetadataUnavailable, MetadataConflict, StorageError: it cannot be read, and `level` is not the highest.
    """
    for _ in range(TRIES_MAX):
        (found,) = store.records.read([LEVEL_PATH])
        value = None if found is None else found.value
        # What nobody can read may have been any level that this version has, and none falls (INV-U2).
        record = _decode_or_first(value) if level == LEVEL_MAX else decode(value)
        if record.level >= level:
            return record
        raised = LevelRecord(
            level=level,
            finalized_ms=time.time_ns() // 1_000_000,
            software=f"fastbk {VERSION}",
        )
        version = None if found is None else found.version
        try:
            store.records.change([Change(LEVEL_PATH, msgspec.json.encode(raised), version)])
        except MetadataConflict:
            continue
        return raised
    raise MetadataConflict(f"record {LEVEL_PATH}: others change it again and again: try again")


class LevelLacking(ConfigError):
    """This version lacks the format level of the cluster: the process has to end."""


def check_level(store: HasRecords) -> int:
    """Return the cluster's level. Raises LevelLacking, MetadataUnavailable, StorageError."""
    return checked_level(read_record(store))


def checked_level(record: LevelRecord) -> int:
    """Return the level that a record says. Raises LevelLacking."""
    if record.level > LEVEL_MAX:
        by = f" by {record.software}" if record.software else ""
        raise LevelLacking(
            f"the cluster was finalized at format level {record.level}{by}; this is fastbk {VERSION}, which"
            f" has levels up to {LEVEL_MAX}. Start a version that has the level: see `fastbk version --formats` there"
        )
    return record.level


class FormatGate:
    """What one process may write. `poll` blocks and is called by one thread; `level` is read by any.

    Attributes:
        level: that of the cluster, as it was read last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.level = LEVEL_FIRST
        self._clock = clock
        self._polled_s = float("-inf")

    def poll(self, store: HasRecords) -> bool:
        """Read the level if it is time; return whether it rose. Raises what `check_level` does.

        After an error the next call reads again, whatever the time.
        """
        now_s = self._clock()
        if now_s - self._polled_s < POLL_INTERVAL_S:
            return False
        level = check_level(store)
        self._polled_s = now_s
        if level <= self.level:
            return False  # lower: metadata was restored from an older copy
        self.level = level
        return True

    def version(self, name: str) -> int:
        """Return the version of a format that this process writes now (INV-U1)."""
        return version_at(name, self.level)
