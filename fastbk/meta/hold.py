"""A hold on metadata: nothing is deleted by its word until an operator confirms that it is the truth.

A bookie places one when it finds that metadata was rolled back (`fastbk.meta.rollback_mark`). An
operator places one by `fastbk metadata hold`, which works before the first bookie starts. It is one
record of the metadata store, so that every driver has it. Every bookie stores its id in its
directories. A hold that another restore has removed is placed again.

INV-M4: while metadata is on hold, no ledger is deleted from it, no bookie deletes a ledger or a copy or ends a ledger's
limbo, and no cursor changes.
INV-M5: a hold ends only when an operator confirms that very hold. Its id stays in the record, so that bookies which
store it know that it has ended.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from fastbk.errors import MetadataConflict, MetadataOnHold
from fastbk.meta.records import Change, bad_record
from fastbk.units import format_utc_ms

if TYPE_CHECKING:
    from fastbk.meta.records import RecordStore, VersionedRecord

HOLD_PATH = "cluster/hold"
UNREADABLE_ID = "unreadable"
"""Of the hold that a record stands for which nobody can read: `fastbk metadata confirm` ends it, too."""
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


def decode(value: bytes | None) -> HoldRecord:
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
    hold = decode(value).hold
    if hold is not None:
        raise MetadataOnHold(f"metadata is on hold since {when(hold)}: {hold}. {NEXT_STEP}")


def check_not_held(store: HasRecords) -> None:
    """Raise MetadataOnHold while metadata is on hold: what it does not list may still be there (INV-M4)."""
    (found,) = store.records.read([HOLD_PATH])
    raise_if_held(None if found is None else found.value)


def read_record(store: HasRecords) -> HoldRecord:
    """Return what the record says. Raises MetadataUnavailable."""
    (found,) = store.records.read([HOLD_PATH])
    return decode(None if found is None else found.value)


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
            added = tuple(one for one in hold.reasons if one not in there.reasons)
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
        record = decode(None if found is None else found.value)
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
    record = decode(None if found is None else found.value)
    is_bad = record.hold is not None and record.hold.hold_id == UNREADABLE_ID
    return HoldRecord() if is_bad else record


def _try_change(store: HasRecords, record: HoldRecord, found: VersionedRecord | None) -> bool:
    version = None if found is None else found.version
    try:
        store.records.change([Change(HOLD_PATH, msgspec.json.encode(record), version)])
    except MetadataConflict:
        return False
    return True
