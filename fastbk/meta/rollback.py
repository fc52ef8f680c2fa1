"""A rollback of metadata: the mark by which bookies notice it, and the hold that keeps them from deleting by its word.

Metadata is rolled back when its data (ZooKeeper's, or the sqlite file) is restored from an older copy. Every bookie
publishes a mark, what metadata has published of its own age, in one record of the metadata store first, and stores the
same in its directories afterwards.

INV-M2: a bookie stores of metadata (an age, a ledger id, its own starts) only what metadata has published before. So
metadata that knows less than a bookie stores was rolled back, and nothing else explains the difference.
INV-M3: no ledger id at or below the mark's `floor` is drawn. A bookie that finds a rollback sets it above every id that
it has stored, and by `RESERVE_IDS` more for ids that were drawn between its last look and the rollback.

Ids that somebody chose without metadata do not count (`is_counted`): the highest id is what the store's counter has
given out, and what its listings contained near it. Else one ledger with a high id would leave no room for the floor.

A hold on metadata ends only when an operator confirms that metadata is the truth. A bookie places one when it finds
that metadata was rolled back. An operator places one by `fastbk metadata hold`, which works before the first bookie
starts. It is one record of the metadata store, so that every driver has it. Every bookie stores its id in its
directories. A hold that another restore has removed is placed again.

INV-M4: while metadata is on hold, no ledger is deleted from it, no bookie deletes a ledger or a copy or ends a ledger's
limbo, and no cursor changes.
INV-M5: a hold ends only when an operator confirms that very hold. Its id stays in the record, so that bookies which
store it know that it has ended.

Decision 84.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from fastbk.errors import MetadataConflict, MetadataOnHold, StorageError
from fastbk.meta.records import Change, bad_record
from fastbk.units import format_utc_ms

if TYPE_CHECKING:
    from fastbk.meta.records import RecordStore, VersionedRecord
    from fastbk.model.ids import LedgerId

MARK_PATH = "cluster/mark"
OWN_MARKS = "cluster/gc"
"""Below this path each bookie has its `OwnMark`."""
RESERVE_IDS = 1000
"""More than metadata gives out between two looks of a bookie, of which there is one every few seconds."""
COUNTED_ID_END = 2**48
"""Ids from here on were chosen, unless the counter is there: a counter moves by 2^32 at most after each rollback."""
CHOSEN_DISTANCE = 2**32
"""So far above the counter an id was chosen, by somebody who may want the counter to end."""
MOVED_ID_END = 2**62
"""No counter is moved beyond: above it there is no room for others."""


class RolledBack(Exception):
    """Metadata knows less than it once did; the text says how that is known."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`age` rises once in a while. `highest_id`: of the ledgers that were ever listed or drawn. `floor`: see INV-M3."""

    age: int = 0
    highest_id: int = -1
    floor: int = -1

    def joined(self, other: Mark) -> Mark:
        """Return the greater of each."""
        return Mark(
            age=max(self.age, other.age),
            highest_id=max(self.highest_id, other.highest_id),
            floor=max(self.floor, other.floor),
        )


def is_counted(ledger_id: int, drawn_id: int) -> bool:
    """Return whether an id may be a counter's that has given out `drawn_id` as its highest one."""
    return ledger_id <= max(drawn_id, -1) + CHOSEN_DISTANCE


class OwnMark:
    """A record that one process alone writes, each time with another random value (INV-G7).

    As long as the last value is still read, metadata is not older than when that was written: a copy from before cannot
    have it. Whether metadata had gone back before the write is for others to show.
    """

    def __init__(self, store: HasRecords, name: str) -> None:
        """`name`: whose it is."""
        self._store = store
        self._path = f"{OWN_MARKS}/{name}"
        self._value = b""

    def write(self) -> bool:
        """Write another value; return whether the former one was there until then: metadata did not go back meanwhile.

        Raises MetadataUnavailable, MetadataConflict: then none is there.
        """
        former, self._value = self._value, b""
        value = os.urandom(16).hex().encode()
        (found,) = self._store.records.read([self._path])
        version = None if found is None else found.version
        self._store.records.change([Change(self._path, value, version)])
        self._value = value
        return bool(former) and found is not None and found.value == former

    def is_there(self) -> bool:
        """Return whether the value that was written last is still read. Raises MetadataUnavailable."""
        if not self._value:
            return False
        (found,) = self._store.records.read([self._path])
        return found is not None and found.value == self._value


class MarkedStore(Protocol):
    """A metadata store, as far as marks need it."""

    @property
    def records(self) -> RecordStore:
        """Its records."""

    def highest_drawn_id(self) -> LedgerId:
        """Return the highest id that the counter has given out."""


def decode_mark(value: bytes | None) -> Mark:
    """Return what the record says; nothing is known where there is none. Raises StorageError."""
    if value is None:
        return Mark()
    try:
        return msgspec.json.decode(value, type=Mark)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"the record {MARK_PATH} in metadata is damaged: {error}. Bookies write it anew, and put metadata on hold"
        ) from error


def read_mark(store: MarkedStore) -> Mark:
    """Return the mark. Raises MetadataUnavailable.

    Of one that nobody can read nothing is known: bookies that have stored more find that metadata went back, put it on
    hold, and write the mark anew (INV-M2, INV-M17).
    """
    (found,) = store.records.read([MARK_PATH])
    return _value(found)


def raise_mark(
    store: MarkedStore, least: Mark, *, known: Mark | None = None, older: Mark | None = None
) -> Mark:
    """Have each number of the mark be at least this; return the mark that metadata has then.

    Args:
        known: what metadata has published before; if it knows less now, nothing is changed, and RolledBack raised.
        older: the age rises by one if the mark still has this age.

    Raises RolledBack, MetadataUnavailable, MetadataConflict, StorageError.
    """
    for _ in range(TRIES_MAX):
        (found,) = store.records.read([MARK_PATH])
        there = _value(found)
        if known is not None and (why := evidence(known, there)):
            raise RolledBack(why)
        wanted = there.joined(least)
        if older is not None and there.age == older.age:
            wanted = msgspec.structs.replace(wanted, age=wanted.age + 1)
        if wanted == there and found is not None:
            return there
        version = None if found is None else found.version
        try:
            store.records.change([Change(MARK_PATH, msgspec.json.encode(wanted), version)])
        except MetadataConflict:
            continue
        return wanted
    raise MetadataConflict(f"record {MARK_PATH}: others change it again and again: try again")


def evidence(stored: Mark, published: Mark) -> str:
    """Return how a stored mark proves that metadata was rolled back (INV-M2); empty if it does not."""
    if stored.highest_id > published.highest_id:
        return f"metadata once had ledger {stored.highest_id} and knows of {published.highest_id} at most now"
    if stored.age > published.age:
        return f"metadata once had the age {stored.age} and has {published.age} now"
    return ""


def _value(found: VersionedRecord | None) -> Mark:
    try:
        return decode_mark(None if found is None else found.value)
    except StorageError as error:
        bad_record(MARK_PATH, error)
        return Mark()


HOLD_PATH = "cluster/hold"
UNREADABLE_ID = "unreadable"
"""Id of the hold that an unreadable record stands for: `fastbk metadata confirm` ends it, too."""
CONFIRMED_MAX = 64
"""Ids of ended holds that the record keeps, the newest."""
REASONS_MAX = 20
TRIES_MAX = 20
NEXT_STEP = (
    "If the metadata is the newest that there is, start all bookies, then run `fastbk metadata confirm`. Otherwise"
    " restore the newer metadata first"
)


class HasRecords(Protocol):
    """A metadata store, as far as holds need it."""

    @property
    def records(self) -> RecordStore:
        """Its records."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Why metadata is on hold. `since_ms`: in milliseconds since 1970; `reasons`: one for each that found some."""

    hold_id: str
    since_ms: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """The first reason: with many bookies there are as many, which differ in names and numbers only."""
        first, *others = self.reasons or ("no reason is given",)
        return first + (f" (and {len(others)} more)" if others else "")


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says: the hold, None while there is none, and ids of holds that operators have confirmed."""

    hold: Hold | None = None
    confirmed: tuple[str, ...] = ()


def decode_hold(value: bytes | None) -> HoldRecord:
    """Return what the record says; nothing where there is none. One that nobody can read is a hold (INV-M17)."""
    if value is None:
        return HoldRecord()
    try:
        return msgspec.json.decode(value, type=HoldRecord)
    except (ValueError, RecursionError) as error:
        bad = bad_record(HOLD_PATH, error)
        reason = f"the record {HOLD_PATH} cannot be read: {bad.reason}"
        return HoldRecord(hold=Hold(hold_id=UNREADABLE_ID, since_ms=0, reasons=(reason,)))


def raise_if_held(value: bytes | None) -> None:
    """Raise MetadataOnHold if the record with this value says so (INV-M4)."""
    hold = decode_hold(value).hold
    if hold is not None:
        raise MetadataOnHold(f"metadata is on hold since {when(hold)}: {hold}. {NEXT_STEP}")


def check_not_held(store: HasRecords) -> None:
    """Raise MetadataOnHold while metadata is on hold: what it does not list may still be there (INV-M4)."""
    (found,) = store.records.read([HOLD_PATH])
    raise_if_held(None if found is None else found.value)


def read_record(store: HasRecords) -> HoldRecord:
    """Return what the record says. Raises MetadataUnavailable."""
    (found,) = store.records.read([HOLD_PATH])
    return decode_hold(None if found is None else found.value)


def read_hold(store: HasRecords) -> Hold | None:
    """Return the hold, None if there is none. Raises MetadataUnavailable."""
    return read_record(store).hold


def new_hold(reason: str) -> Hold:
    """Return a hold that begins now."""
    return Hold(
        hold_id=secrets.token_hex(8), since_ms=time.time_ns() // 1_000_000, reasons=(reason,)
    )


def ensure_record(store: HasRecords) -> None:
    """Write the record where there is none: reading one that is there is cheaper."""
    (found,) = store.records.read([HOLD_PATH])
    if found is None:
        _try_change(store, HoldRecord(), None)


def place_hold(store: HasRecords, hold: Hold) -> Hold:
    """Put metadata on hold; return the hold that it has then: one that is there keeps its id and gains the reason.

    Raises MetadataUnavailable, StorageError, MetadataConflict.
    """
    for _ in range(TRIES_MAX):
        (found,) = store.records.read([HOLD_PATH])
        record = _decode_or_new(found)
        there = record.hold
        if there is not None:
            added = tuple(reason for reason in hold.reasons if reason not in there.reasons)
            if not added or len(there.reasons) >= REASONS_MAX:
                return there
            hold = msgspec.structs.replace(there, reasons=there.reasons + added)
        if _try_change(store, msgspec.structs.replace(record, hold=hold), found):
            return hold
    raise MetadataConflict(f"record {HOLD_PATH}: others change it again and again: try again")


def confirm_hold(store: HasRecords, hold_id: str) -> bool:
    """End this hold on an operator's word; return False if metadata has another one, or none (INV-M5)."""
    for _ in range(TRIES_MAX):
        (found,) = store.records.read([HOLD_PATH])
        record = decode_hold(None if found is None else found.value)
        if record.hold is None or record.hold.hold_id != hold_id:
            return False
        confirmed = (*record.confirmed, hold_id)[-CONFIRMED_MAX:]
        if _try_change(store, HoldRecord(confirmed=confirmed), found):
            return True
    raise MetadataConflict(f"record {HOLD_PATH}: others change it again and again: try again")


def when(hold: Hold) -> str:
    """Return since when, in UTC."""
    return format_utc_ms(hold.since_ms)


def _decode_or_new(found: VersionedRecord | None) -> HoldRecord:
    """Return what the record says; one that nobody can read is replaced by a hold."""
    record = decode_hold(None if found is None else found.value)
    is_bad = record.hold is not None and record.hold.hold_id == UNREADABLE_ID
    return HoldRecord() if is_bad else record


def _try_change(store: HasRecords, record: HoldRecord, found: VersionedRecord | None) -> bool:
    version = None if found is None else found.version
    try:
        store.records.change([Change(HOLD_PATH, msgspec.json.encode(record), version)])
    except MetadataConflict:
        return False
    return True
