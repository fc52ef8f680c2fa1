"""What is kept of a pattern's cursor: one record of metadata with its positions in all streams.

A stream that the record does not name is held from its first record on (INV-S20): so one that was created a moment
ago, and that no holder has seen yet, loses nothing. A position is written when something was done, or where the cursor
does not begin at the first record.

Decision 159.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Annotated

import msgspec

from fastbk.errors import ConfigError, QuotaExceeded, StorageError, WrongType
from fastbk.printable_text import printable
from fastbk.stream.cursor.state import (
    EXPIRY_S_MAX,
    HOLDER_CHARACTERS_MAX,
    NONE,
    CheckedData,
    check_kept_data,
    decoded,
    encoded,
)
from fastbk.stream.namespace.tree_records import Id
from fastbk.stream.paths import NAME_BYTES_MAX, check_name
from fastbk.stream.positions import DLSN, FIRST, Count, Number, TimeUs

VERSION = 1
STREAMS_MAX = 4000
"""Streams that one record names. At most 58 bytes each: with all else below, the record stays below 512 KiB."""
RANGES_MAX = 4000
"""Ranges done behind the marks, of all streams together. At most 46 bytes each."""
PATTERN_CHARACTERS_MAX = NAME_BYTES_MAX
_MARK = b"FBKP"
_MAGIC = re.compile(r"[*?\[]")
_S = 1_000_000

_Ends = Annotated[tuple[Count, ...], msgspec.Meta(max_length=RANGES_MAX)]


class StreamPosition(msgspec.Struct, frozen=True, array_like=True):
    """What is done of one stream; see `CursorState`, whose fields these are."""

    mark: DLSN = FIRST
    mark_seq: Number = NONE
    firsts: _Ends = ()
    ends: _Ends = ()
    behinds: Annotated[tuple[DLSN, ...], msgspec.Meta(max_length=RANGES_MAX)] = ()


class PatternRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of metadata of one pattern's cursor. All that acknowledgements make is in it: it has no ledgers."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=PATTERN_CHARACTERS_MAX)]
    """Of the names in its namespace. It is the cursor's for good."""
    serial: Count = 0
    """Rises with each state that is written, over all holders."""
    epoch: Count = 0
    """Of the holder that wrote it; rises with each opening."""
    holder: Annotated[str, msgspec.Meta(max_length=HOLDER_CHARACTERS_MAX)] = ""
    """Drawn at each opening: who holds it."""
    positions: Annotated[dict[Id, StreamPosition], msgspec.Meta(max_length=STREAMS_MAX)] = (
        msgspec.field(default_factory=dict)
    )
    """By the streams' ids. Of a stream that is not there nothing is done."""
    data: CheckedData = msgspec.field(default_factory=dict)
    """The user's map, as it came with the last acknowledgement that had one."""
    time_us: TimeUs = 0
    """When it was written, by the holder's clock."""
    gaps: Count = 0
    gap_records: Count = 0
    holds: bool = True
    """Whether retention keeps what is not done, in all streams that the pattern matches."""
    expire_after_s: Annotated[float, msgspec.Meta(ge=0, le=EXPIRY_S_MAX)] = 0.0
    created_us: TimeUs = 0
    used_at_us: TimeUs = 0

    @property
    def expires_at_us(self) -> int:
        """When it goes if nobody uses it, in µs since 1970; 0: never."""
        return self.used_at_us + int(self.expire_after_s * _S) if self.expire_after_s > 0 else 0

    @property
    def is_deleting(self) -> bool:
        """False: without ledgers its deletion is one change."""
        return False

    def mark_of(self, stream_id: str) -> DLSN:
        """Return the position in a stream before which everything is done."""
        return self.positions.get(stream_id, _AT_FIRST).mark


_AT_FIRST = StreamPosition()
_records = msgspec.msgpack.Decoder(PatternRecord)


def put_pattern(record: PatternRecord) -> bytes:
    """Return a record's bytes. Raises StorageError for what `get_pattern` would refuse (INV-S14)."""
    _check(record)
    return encoded(_MARK, record)


def get_pattern(raw: bytes | memoryview) -> PatternRecord:
    """Return what `put_pattern` wrote. Raises StorageError."""
    record = decoded(_MARK, _records, raw)
    _check(record)
    return record


def _check(record: PatternRecord) -> None:
    """Raise StorageError for ranges that are none, or too many, and for a map that is too large."""
    check_kept_data(record.data)
    ranges = 0
    for stream_id, one in record.positions.items():
        ranges += len(one.firsts)
        if not len(one.firsts) == len(one.ends) == len(one.behinds):
            raise StorageError(
                f"a cursor's ranges in stream {printable(stream_id, 64)} are not whole"
            )
        ends = [end for pair in zip(one.firsts, one.ends, strict=True) for end in pair]
        if ends and not (
            one.mark_seq < ends[0] and all(low < high for low, high in pairwise(ends))
        ):
            raise StorageError(
                f"a cursor's ranges in stream {printable(stream_id, 64)} do not follow each other"
            )
    if ranges > RANGES_MAX or len(record.positions) > STREAMS_MAX:
        raise StorageError(
            f"a cursor of {len(record.positions):,} streams with {ranges:,} ranges: it has at most"
            f" {STREAMS_MAX:,} and {RANGES_MAX:,}"
        )
    if not record.pattern.isprintable():
        raise StorageError("a cursor's pattern is no printable text")


# --- patterns -----------------------------------------------------------------------------------------------------


def split_pattern(pattern: str) -> tuple[tuple[str, ...], str]:
    """Return the namespace's names and the pattern of names in it, of such as `tenant/shop/*`. Raises ConfigError.

    `*` stands for any characters, `?` for one, `[ab]` for one of some; none of them for a slash.
    """
    if not isinstance(pattern, str):
        raise WrongType(f"{pattern!r} is no pattern of streams: write text, such as shop/*")
    *spaces, names = pattern.split("/")
    for name in spaces:
        if _MAGIC.search(name):
            raise ConfigError(
                f"{printable(pattern, 80)!r}: only the last name of a pattern may have *, ? or [: it chooses streams of"
                " one namespace. Read each namespace by a reader of its own"
            )
        check_name(name)
    if "**" in names:
        raise ConfigError(
            f"{printable(pattern, 80)!r}: ** means nothing: a pattern chooses streams of one namespace"
        )
    if len(names) > PATTERN_CHARACTERS_MAX:
        raise ConfigError(
            f"a pattern of streams has at most {PATTERN_CHARACTERS_MAX} characters, not {len(names)}"
        )
    if not names or not names.isprintable() or names[0] in ".<":
        raise ConfigError(
            f"{printable(pattern, 80)!r} is no pattern of streams: write such as shop/* or orders-?"
        )
    return tuple(spaces), names


def has_magic(text: str) -> bool:
    """Return whether the last name of a path has characters that stand for others."""
    return bool(_MAGIC.search(text.rpartition("/")[2]))


def too_many(pattern: str, count: int) -> QuotaExceeded:
    """Return what is raised where a pattern, with its namespace's path, matches so many streams."""
    return QuotaExceeded(
        f"the pattern {pattern} matches {count:,} streams, and one reader or cursor takes {STREAMS_MAX:,}: split it"
        " into several, such as a*, b* and [!ab]*"
    )


def is_match(pattern: str, name: str) -> bool:
    """Return whether a stream of this name is one of the pattern's."""
    return fnmatchcase(name, pattern)


def marks_of(records: Mapping[str, PatternRecord], stream_id: str, name: str) -> dict[str, DLSN]:
    """Return the marks of the cursors that hold a stream, by the cursors' names."""
    return {
        cursor: record.mark_of(stream_id)
        for cursor, record in records.items()
        if record.holds and is_match(record.pattern, name)
    }
