"""What is kept of a cursor, as values and bytes, and how acknowledgements change it; pure.

Kept are its state, and the record of metadata that names where the state is.

The mark is a position and a sequence number: the position is what readers begin at and retention compares; the number
is what ranges are counted by (`CursorAcks`).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from fastbk.errors import ConfigError, StorageError, WrongType, check_invariant
from fastbk.stream.positions import DLSN, FIRST, Count, Number, TimeUs

NONE = -1
RANGES_MAX = 10_000
"""Ranges done behind the mark. At most 46 bytes each, so that a state fits into a record of metadata."""
DATA_BYTES_MAX = 32 * 1024
"""Maximum bytes of the user's map, as it is written."""
DOOMED_MAX = 16
"""Ledgers of a cursor that wait to be deleted; with more it does not get another one."""

HOLDER_CHARACTERS_MAX = 200
DATA_KEYS_MAX = 4096
EXPIRY_S_MAX = 1e10
"""Three hundred years."""
LedgerIds = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)], ...], msgspec.Meta(max_length=64)
]
LedgerNumber = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
_Ends = Annotated[tuple[Count, ...], msgspec.Meta(max_length=2 * RANGES_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=DATA_BYTES_MAX)]
Data: TypeAlias = dict[str, int | str]
CheckedData = Annotated[dict[Text, bool | int | Text], msgspec.Meta(max_length=DATA_KEYS_MAX)]
"""The map as it is read: versions before 0.3 took True and False, too, and could not read them again."""

_STATE_MARK, _RECORD_MARK = b"FBKS", b"FBKU"
VERSION = 1
_HEAD = struct.Struct("<4sBI")
_S = 1_000_000

T = TypeVar("T")


class CursorState(msgspec.Struct, frozen=True, array_like=True):
    """All that acknowledgements make."""

    serial: Count = 0
    """Rises with each state that is written, over all holders: of two that are found the higher one counts."""
    epoch: Count = 0
    """Epoch of the holder that wrote it; rises with each opening."""
    mark: DLSN = FIRST
    """Every record before it is done. It lies behind the last of these, and not behind the first that is not done."""
    mark_seq: Number = NONE
    """The number of the first record that is not done; NONE while no record was seen."""
    firsts: _Ends = ()
    ends: _Ends = ()
    behinds: Annotated[tuple[DLSN, ...], msgspec.Meta(max_length=2 * RANGES_MAX)] = ()
    """Ranges done behind the mark, see `AckRanges`."""
    data: CheckedData = msgspec.field(default_factory=dict)
    """The user's map, as it came with the acknowledgement that made the mark."""
    time_us: TimeUs = 0
    """When it was written, by the holder's clock."""
    gaps: Count = 0
    """How often records were gone before they were done, over the cursor's life: hard limits, losses."""
    gap_records: Count = 0


class CursorRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of metadata of one cursor."""

    state: CursorState
    """The last state that was written here; the ledger may have a later one."""
    holder: Annotated[str, msgspec.Meta(max_length=HOLDER_CHARACTERS_MAX)] = ""
    """Drawn at each opening: who holds it."""
    ledger: LedgerNumber = NONE
    """Where states are written now."""
    reserved: LedgerNumber = NONE
    """A ledger that is about to be created; no state counts that is in it (INV-S8)."""
    doomed: LedgerIds = ()
    """Ledgers to be deleted."""
    holds: bool = True
    """Whether retention keeps what is not done."""
    expire_after_s: Annotated[float, msgspec.Meta(ge=0, le=EXPIRY_S_MAX)] = 0.0
    """A cursor that nobody has used for so long goes; 0: never."""
    created_us: TimeUs = 0
    used_at_us: TimeUs = 0
    is_deleting: bool = False
    """It is being deleted: whoever finds it so goes on with that."""

    @property
    def epoch(self) -> int:
        """Epoch of the holder that wrote it."""
        return self.state.epoch

    @property
    def ledgers(self) -> tuple[int, ...]:
        """All ledgers that it names."""
        named = (self.ledger, self.reserved, *self.doomed)
        return tuple(one for one in named if one != NONE)

    @property
    def expires_at_us(self) -> int:
        """When it goes if nobody uses it, in µs since 1970; 0: never."""
        return self.used_at_us + int(self.expire_after_s * _S) if self.expire_after_s > 0 else 0


_states = msgspec.msgpack.Decoder(CursorState)
_datas: msgspec.msgpack.Decoder[Data] = msgspec.msgpack.Decoder(CheckedData)
_records = msgspec.msgpack.Decoder(CursorRecord)


def check_data(data: Mapping[str, int | str]) -> Data:
    """Return a copy of the user's map. Raises ConfigError for other values than numbers and text, or too many."""
    if not isinstance(data, Mapping):
        raise WrongType(f"a cursor's map is a mapping, not {type(data).__name__}")
    copy = dict(data)
    for key, value in copy.items():
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not isinstance(key, str) or not (is_number or isinstance(value, str)):
            raise ConfigError(f"a cursor's map has text and whole numbers, not {key!r}: {value!r}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(f"{key!r}: {value} has more than 64 bits")
    try:
        raw = msgspec.msgpack.encode(copy)
        size = len(raw)
        if size > DATA_BYTES_MAX:
            raise ConfigError(f"a cursor's map has {size} bytes: at most {DATA_BYTES_MAX}")
        # By the decoder of the record itself: what it refuses would make the cursor unreadable for good.
        return _datas.decode(raw)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"a cursor's map cannot be kept: {error}") from error


def put_state(state: CursorState) -> bytes:
    """Return a state's bytes: a mark, a version, the CRC-32 of what follows, MessagePack. Raises StorageError."""
    check_kept_data(state.data)
    return encoded(_STATE_MARK, state)


def get_state(raw: bytes | memoryview) -> CursorState:
    """Return what `put_state` wrote. Raises StorageError."""
    state = decoded(_STATE_MARK, _states, raw)
    check_kept_data(state.data)
    return state


def put_record(record: CursorRecord) -> bytes:
    """Return a record's bytes. Raises StorageError for what `get_record` would refuse (INV-S14)."""
    check_kept_data(record.state.data)
    return encoded(_RECORD_MARK, record)


def get_record(raw: bytes | memoryview) -> CursorRecord:
    """Return what `put_record` wrote. Raises StorageError."""
    record = decoded(_RECORD_MARK, _records, raw)
    check_kept_data(record.state.data)
    return record


def check_kept_data(data: Mapping[str, int | str]) -> None:
    """Raise StorageError for a map in a record that is larger as a whole than `check_data` takes (INV-S14)."""
    size = sum(len(key) + (len(one) if isinstance(one, str) else 1) for key, one in data.items())
    if size > DATA_BYTES_MAX:
        raise StorageError(f"a cursor's map has {size} characters, and at most {DATA_BYTES_MAX}")


@cache
def _decoder_of(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind)


def encoded(mark: bytes, value: msgspec.Struct) -> bytes:
    """Return the bytes of what is kept of a cursor: a mark, a version, the CRC-32 of what follows, MessagePack.

    Raises StorageError for what its own decoder would refuse (INV-S14).
    """
    body = msgspec.msgpack.encode(value)
    try:
        _decoder_of(type(value)).decode(body)
    except ValueError as error:
        raise StorageError(f"a cursor's record would be one that nobody reads: {error}") from error
    return _HEAD.pack(mark, VERSION, zlib.crc32(body)) + body


def decoded(mark: bytes, decoder: msgspec.msgpack.Decoder[T], raw: bytes | memoryview) -> T:
    """Return what `encoded` made of a value. Raises StorageError."""
    if len(raw) < _HEAD.size:
        raise StorageError(f"{len(raw)} bytes are no state of a cursor")
    found, version, crc = _HEAD.unpack_from(raw)
    if found != mark:
        raise StorageError(f"{len(raw)} bytes are no {mark.decode()} of a cursor")
    if version != VERSION:
        raise StorageError(f"a cursor of version {version}: this fastbk reads version {VERSION}")
    body = memoryview(raw)[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise StorageError("a cursor's state is damaged: its CRC is another")
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"a cursor's state is damaged: {error}") from error


# --- acknowledgements -----------------------------------------------------------------------------
#
# What a holder of a cursor knows to be done: acknowledgements come in, states to be kept go out.
# Pure (INV-S10).


def behind(dlsn: DLSN) -> DLSN:
    """Return the position right behind a record: not behind that of the record after it, wherever that is."""
    return DLSN(dlsn.segment, dlsn.entry, dlsn.slot + 1)


class AckRanges:
    """Ranges `first` up to, not with, `end`, of sequence numbers; sorted, and none touches another.

    A position does not show which one is next: that takes the number of records in its entry. So ranges count by
    sequence numbers, and each also has the position behind its last record, so that the mark can move over it.

    Attributes:
        firsts, ends: of each range.
        behinds: of each range, a position behind its last record and not behind the next record.
    """

    __slots__ = ("behinds", "ends", "firsts")

    def __init__(
        self, firsts: Sequence[int] = (), ends: Sequence[int] = (), behinds: Sequence[DLSN] = ()
    ) -> None:
        self.firsts = list(firsts)
        self.ends = list(ends)
        self.behinds = list(behinds)

    def __len__(self) -> int:
        return len(self.firsts)

    def __contains__(self, seq: int) -> bool:
        index = bisect_right(self.firsts, seq) - 1
        return index >= 0 and seq < self.ends[index]

    def __iter__(self) -> Iterator[tuple[int, int, DLSN]]:
        return zip(self.firsts, self.ends, self.behinds, strict=True)

    @property
    def records(self) -> int:
        """Records in all ranges."""
        return sum(self.ends) - sum(self.firsts)

    def touches(self, first: int, end: int) -> bool:
        """Whether `add` of this range needs no room: there is one that it overlaps or lies beside."""
        return bisect_left(self.ends, first) < bisect_right(self.firsts, end)

    def add(self, first: int, end: int, behind: DLSN) -> None:
        """Take a range, not empty, in; those that it overlaps or touches become one with it."""
        low, high = bisect_left(self.ends, first), bisect_right(self.firsts, end)
        if low < high:
            first = min(first, self.firsts[low])
            if self.ends[high - 1] >= end:
                end, behind = self.ends[high - 1], self.behinds[high - 1]
        self.firsts[low:high] = [first]
        self.ends[low:high] = [end]
        self.behinds[low:high] = [behind]

    def reach(self, mark_seq: int) -> tuple[int, DLSN | None]:
        """Drop what lies below the mark, or touches it; return where the mark gets by it, and that position if so."""
        count = bisect_right(self.firsts, mark_seq)
        if count == 0:
            return mark_seq, None
        end, behind = self.ends[count - 1], self.behinds[count - 1]
        del self.firsts[:count], self.ends[:count], self.behinds[:count]
        return (end, behind) if end > mark_seq else (mark_seq, None)

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return what of this range is in none of ours, as ranges."""
        missing: list[tuple[int, int]] = []
        index = bisect_right(self.ends, first)
        while first < end and index < len(self.firsts) and self.firsts[index] < end:
            if self.firsts[index] > first:
                missing.append((first, self.firsts[index]))
            first = self.ends[index]
            index += 1
        if first < end:
            missing.append((first, end))
        return missing


class CursorAcks:
    """The mark, and what is done behind it.

    Attributes:
        mark, mark_seq: see `CursorState`.
        changes: counts what has changed; what is kept of a cursor is compared by it.
    """

    def __init__(self, state: CursorState) -> None:
        self.mark = state.mark
        self.mark_seq = state.mark_seq
        self.ranges = AckRanges(state.firsts, state.ends, state.behinds)
        self.data: Data = dict(state.data)
        self.gaps = state.gaps
        self.gap_records = state.gap_records
        self.changes = 0

    def state(self, serial: int, epoch: int, time_us: int) -> CursorState:
        """Return all of it as a value."""
        return CursorState(
            serial,
            epoch,
            self.mark,
            self.mark_seq,
            tuple(self.ranges.firsts),
            tuple(self.ranges.ends),
            tuple(self.ranges.behinds),
            dict(self.data),
            time_us,
            self.gaps,
            self.gap_records,
        )

    def is_done(self, seq: int) -> bool:
        """Whether this record needs no more delivery."""
        return seq < self.mark_seq or (len(self.ranges) > 0 and seq in self.ranges)

    def not_done(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return what of these records is not done, as ranges `first` up to, not with, `end`."""
        return self.ranges.missing(max(first, self.mark_seq), end)

    def ack(self, seq: int, dlsn: DLSN) -> bool:
        """All up to this record, it included, is done; False, and nothing, if it was before."""
        if seq < self.mark_seq:
            return False
        self._move(seq + 1, behind(dlsn))
        return True

    def has_room(self, seq: int) -> bool:
        """Whether `ack_one` may be called: it needs no range more than there may be."""
        return (
            len(self.ranges) < RANGES_MAX
            or seq <= self.mark_seq
            or self.ranges.touches(seq, seq + 1)
        )

    def ack_one(self, seq: int, dlsn: DLSN) -> bool:
        """This record is done; False, and nothing, if it was before."""
        return self._done(seq, seq + 1, behind(dlsn))

    def _done(self, first: int, end: int, position: DLSN) -> bool:
        if first >= end or not self.not_done(first, end):
            return False
        if first <= self.mark_seq:
            self._move(end, position)
        else:
            self.ranges.add(first, end, position)
            self.changes += 1
        return True

    def _move(self, mark_seq: int, mark: DLSN) -> None:
        check_invariant(mark_seq > self.mark_seq, "INV-S10: a mark moves forward, or by a reset")
        reached, position = self.ranges.reach(mark_seq)
        self.mark_seq = reached
        self.mark = mark if position is None else position
        self.changes += 1

    def first_is(self, seq: int) -> None:
        """The first record that is not before the mark has this number: what a reader tells that began there."""
        if self.mark_seq == NONE:
            self._move(seq, self.mark)

    def pass_gap(self, first: int, end: int, position: DLSN) -> int:
        """These records are gone: nobody can do them any more. `position`: of what follows them.

        Returns how many of them were not done.
        """
        lost = sum(high - low for low, high in self.not_done(first, end))
        if lost:
            self.gaps += 1
            self.gap_records += lost
            self._done(first, end, position)
        return lost

    def reset(self, mark: DLSN, mark_seq: int = NONE) -> None:
        """Begin anew here: nothing at or behind it is done. `mark_seq`: NONE where its number is not known yet."""
        self.mark, self.mark_seq = mark, mark_seq
        self.ranges = AckRanges()
        self.changes += 1
