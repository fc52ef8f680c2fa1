"""What is kept of a cursor, as values and bytes: its state, and the record of metadata that names where the state is.

The mark is a position and a sequence number: the position is what readers begin at and retention compares; the number
is what ranges are counted by (`acks.py`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from fastbk.errors import ConfigError, StorageError, WrongType
from fastbk.stream.positions import DLSN, FIRST, Count, Number, TimeUs

NONE = -1
RANGES_MAX = 10_000
"""Ranges done behind the mark. At most 46 bytes each, so that a state fits into a record of metadata."""
DATA_BYTES_MAX = 32 * 1024
"""Of the user's map, as it is written."""
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
"""As it is read: versions before 0.3 took True and False, too, and could not read them again."""

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
    """Of the holder that wrote it; rises with each opening."""
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
        """Of the holder that wrote it."""
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
