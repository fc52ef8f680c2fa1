"""Where a record is, and where a reader may begin."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from fastbk.errors import ConfigError, WrongType
from fastbk.option_checks import checked_integer
from fastbk.printable_text import printable

_LAYOUT = struct.Struct(">bqqq")
VERSION = 1
_NUMBER = re.compile("[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NUMBER_MAX = (1 << 62) - 1
"""Maximum of all that a record of a stream counts. Twice as much still fits 64 bits, so that sums of two do."""
TIME_US_MAX = 253_402_300_799_999_999
"""The last microsecond of the year 9999, the last that dates can be written of."""
AHEAD_US_MAX = 24 * 3600 * 1_000_000
"""How far a time in a change of a record may lie ahead of a gateway's clock."""
CARRIED_US_MAX = 60_000_000
"""How far ahead of its own clock a writer carries on the time of the record before its segment (INV-S22)."""
Number = Annotated[int, msgspec.Meta(ge=-1, le=NUMBER_MAX)]
"""A number in a record of metadata; -1: none. What a client may write is bounded where it is decoded (INV-S14)."""
Count = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
TimeUs = Annotated[int, msgspec.Meta(ge=-1, le=TIME_US_MAX)]
"""Microseconds since 1970, in UTC."""
TXID_MAX = 1 << 62
Txid = Annotated[int, msgspec.Meta(ge=-1, le=TXID_MAX)]
"""Id of a transaction, which the user chooses."""


class DLSN(NamedTuple):
    """A record's position: segment of the stream (from 1), entry of the segment, record of the entry (both from 0).

    Positions of one stream are ordered as its records are. They hold no ledger ids, so they stay what they are where a
    stream is copied segment by segment.
    """

    segment: Count
    entry: Count
    slot: Count

    def __str__(self) -> str:
        return f"{self.segment}.{self.entry}.{self.slot}"

    @classmethod
    def parse(cls, text: str) -> DLSN:
        """Return what `str` wrote: three numbers with dots between them, such as 3.120.0. Raises ConfigError."""
        parts = text.split(".", 3)
        if len(parts) == 3 and all(_NUMBER.fullmatch(part) for part in parts):
            numbers = [int(part) for part in parts]
            if max(numbers) <= NUMBER_MAX:
                return cls(*numbers)
        raise ConfigError(
            f"{printable(text, 80)!r} is no position: write segment.entry.slot, such as 3.120.0"
        )

    def to_bytes(self) -> bytes:
        """Return 25 bytes that sort as positions do: a version, then three numbers of 8 bytes, big-endian."""
        return _LAYOUT.pack(VERSION, *self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> DLSN:
        """Return what `to_bytes` wrote. Raises ConfigError."""
        if len(raw) != _LAYOUT.size or raw[0] != VERSION:
            raise ConfigError(f"{raw.hex()} is no position of version {VERSION}")
        return cls(*_LAYOUT.unpack(raw)[1:])


FIRST = DLSN(1, 0, 0)
"""The position of a stream's first record."""


@dataclass(frozen=True, slots=True)
class AtTxid:
    """Begin at the first record whose transaction id is not less. Raises ConfigError for what is no such number."""

    txid: int

    def __post_init__(self) -> None:
        checked_integer("txid", self.txid, -1, TXID_MAX)


@dataclass(frozen=True, slots=True)
class AtTime:
    """Begin at the first record that was appended at this time or later, by its writer's clock.

    Raises ConfigError for what is no time with a zone.
    """

    time: datetime

    def __post_init__(self) -> None:
        to_us(self.time)


@dataclass(frozen=True, slots=True)
class AtSeq:
    """Begin at the record of this sequence number; records of a stream are numbered from 0 without holes.

    Raises ConfigError for what is no such number.
    """

    seq: int

    def __post_init__(self) -> None:
        checked_integer("seq", self.seq, 0, NUMBER_MAX)


Start: TypeAlias = DLSN | AtTxid | AtTime | AtSeq | Literal["earliest", "latest"]
"""Where to begin: "latest" is behind the last record that is visible now."""


def check_start(start: object, name: str = "start") -> None:
    """Raise ConfigError for what is no position to begin or end at."""
    if isinstance(start, AtTxid | AtTime | AtSeq) or start in ("earliest", "latest"):
        return
    if not isinstance(start, DLSN):
        raise WrongType(
            f"{name}={start!r} is no position: a DLSN, AtTxid, AtTime, AtSeq, earliest or latest"
        )
    check_dlsn(start)


def check_dlsn(dlsn: DLSN) -> None:
    """Raise ConfigError for a position that no record can have."""
    for field, value in zip(dlsn._fields, dlsn, strict=True):
        checked_integer(f"DLSN.{field}", value, 0, NUMBER_MAX)


def to_us(time: datetime) -> int:
    """Return microseconds since 1970 in UTC. Raises ConfigError for a time without a zone."""
    if not isinstance(time, datetime):
        raise WrongType(f"time={time!r}: must be a datetime with a zone, such as datetime.now(UTC)")
    if time.tzinfo is None:
        raise ConfigError(f"{time} has no time zone: write datetime.now(UTC), or another zone")
    return (time - _EPOCH) // timedelta(microseconds=1)


def to_time(us: int) -> datetime:
    """Return the time of so many microseconds since 1970, in UTC; the first or last that there is for one beyond."""
    return _EPOCH + timedelta(microseconds=min(max(us, 0), TIME_US_MAX))
