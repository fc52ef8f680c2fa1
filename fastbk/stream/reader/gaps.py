"""What a reader raises, or hands out, where records are missing (INV-S11)."""

from __future__ import annotations

from fastbk.errors import DataLost, Error, PositionTruncated
from fastbk.stream.chain.chain import Chain
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Gap


def truncated(stream: str, where: DLSN | str, first_available: DLSN) -> PositionTruncated:
    """Return the error of a position, or record, before the trim point."""
    error = PositionTruncated(
        f"{stream}: {where} was truncated; the stream begins at {first_available}: go on there"
    )
    error.first_available = str(first_available)
    return error


def has_no_records_before(trim: DLSN, chain: Chain, position: DLSN) -> bool:
    """Whether the chain says that no record lies from a position before the trim point to that point."""
    row = chain.row(position.segment)
    is_next = trim == DLSN(position.segment + 1, 0, 0)
    return is_next and row is not None and not row.is_open and position.entry > row.last_entry_id


def lost(stream: str, first: DLSN, behind: DLSN, cause: Error | None = None) -> DataLost:
    """Return the error of records that no bookie gives: `first` up to, not with, `behind`."""
    why = f" ({cause})" if cause is not None else ""
    error = DataLost(
        f"{stream}: no bookie gives what lies from {first} to {behind}{why}: seek({behind}) goes on behind it"
    )
    error.first, error.next = str(first), str(behind)
    error.__cause__ = cause
    return error


def error_of(stream: str, gap: Gap) -> PositionTruncated | DataLost:
    """Return the error that says what a gap says."""
    if gap.kind == "trimmed":
        return truncated(stream, gap.first, gap.next)
    return lost(stream, gap.first, gap.next)
