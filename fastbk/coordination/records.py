"""Records of coordination: what one says, its bytes, and which changes of records there are. Pure.

INV-K1: the number of a name never falls: a lease's token, a configuration's revision, a counter's changes. Each
granting and each change raises it. The count of the namespace's names keeps a floor, which a deletion raises to the
number of what goes, and above which a new record begins. So a name that is deleted and made anew goes on, too.
INV-W12: a gateway refuses a change that breaks INV-K1, or the count of names.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from fastbk.errors import StorageError
from fastbk.stream.positions import NUMBER_MAX, Count

T = TypeVar("T")
VERSION = 1
NAMES_MAX = 1000
"""Maximum names in one namespace: a list reads them all."""
DATA_BYTES_MAX = 64 * 1024
"""Maximum bytes of a configuration, and of what a leader says of itself."""
HOLDER_CHARACTERS_MAX = 200
DURATION_MS_MIN: Final = 500
DURATION_MS_MAX: Final = 3_600_000
KEYS_KEPT = 64
"""So many last changes of a counter or configuration are known by their keys (INV-K5)."""
RECORD_BYTES_MAX = DATA_BYTES_MAX + 4000
_MARK = b"FBKK"
_HEAD = struct.Struct("<4sBI")

_Text = Annotated[str, msgspec.Meta(max_length=HOLDER_CHARACTERS_MAX)]
_Key = Annotated[str, msgspec.Meta(max_length=32)]
_Data = Annotated[bytes, msgspec.Meta(max_length=DATA_BYTES_MAX)]
_Value = Annotated[int, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """A lease, of which a lock and an election are kinds."""

    number: Count = 0
    """The fencing token: rises with each granting."""
    beat: Count = 0
    """Rises with each renewal. One that stands still for `duration_ms` is of a holder that may be gone."""
    key: _Key = ""
    """Drawn at each granting: by it a holder knows its own record; "": nobody holds it."""
    duration_ms: Annotated[int, msgspec.Meta(ge=DURATION_MS_MIN, le=DURATION_MS_MAX)] = 10_000
    holder: _Text = ""
    """For people."""
    data: _Data = b""
    """What a leader says of itself, such as its address."""


class KeptChange(msgspec.Struct, frozen=True, array_like=True):
    """One of a record's last changes: its key, and the value or revision that it made (INV-K5)."""

    key: _Key
    value: _Value


_Changes = Annotated[tuple[KeptChange, ...], msgspec.Meta(max_length=KEYS_KEPT)]


class CounterRecord(msgspec.Struct, frozen=True, array_like=True, tag="counter"):
    """A counter."""

    number: Count = 0
    """Rises with each change."""
    value: _Value = 0
    changes: _Changes = ()
    """The last changes, the newest last."""


class ConfigRecord(msgspec.Struct, frozen=True, array_like=True, tag="config"):
    """A configuration."""

    number: Count = 0
    """The revision: rises with each change."""
    data: _Data = b""
    changes: _Changes = ()
    """The last changes, the newest last."""


AnyRecord: TypeAlias = LeaseRecord | CounterRecord | ConfigRecord


class NamesRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is counted of a namespace's names."""

    names: Annotated[int, msgspec.Meta(ge=0, le=NAMES_MAX)] = 0
    floor: Count = 0
    """A new record's number lies above it (INV-K1)."""


_records: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
_names = msgspec.msgpack.Decoder(NamesRecord)


def kind_of(record: AnyRecord) -> str:
    """Return what people call it: "lease", "counter" or "config"."""
    return str(type(record).__struct_config__.tag)


def put_record(record: AnyRecord) -> bytes:
    """Return a record's bytes. Raises StorageError for what `get_record` would refuse."""
    return _put(record, _records)


def get_record(raw: bytes | memoryview) -> AnyRecord:
    """Return what `put_record` wrote. Raises StorageError."""
    record = _get(_records, raw)
    if isinstance(record, LeaseRecord) and not record.holder.isprintable():
        raise StorageError("the holder of a lease is no printable text")
    return record


def put_names(names: NamesRecord) -> bytes:
    """Return the bytes of a count. Raises StorageError for one that cannot be."""
    return _put(names, _names)


def get_names(raw: bytes | memoryview) -> NamesRecord:
    """Return what `put_names` wrote. Raises StorageError."""
    return _get(_names, raw)


def _put(record: msgspec.Struct, decoder: msgspec.msgpack.Decoder[Any]) -> bytes:
    body = msgspec.msgpack.encode(record)
    try:
        decoder.decode(body)
    except ValueError as error:
        raise StorageError(f"a record of coordination would be one that nobody reads: {error}") from error  # fmt: skip
    return _HEAD.pack(_MARK, VERSION, zlib.crc32(body)) + body


def _get(decoder: msgspec.msgpack.Decoder[T], raw: bytes | memoryview) -> T:
    if len(raw) < _HEAD.size or bytes(raw[:4]) != _MARK:
        raise StorageError(f"{len(raw)} bytes are no record of coordination")
    _, version, crc = _HEAD.unpack_from(raw)
    if version != VERSION:
        raise StorageError(
            f"a record of coordination of version {version}: this fastbk reads version {VERSION}"
        )
    body = memoryview(raw)[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise StorageError("a record of coordination is damaged: its CRC is another")
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"a record of coordination is damaged: {error}") from error


# --- changes --------------------------------------------------------------------------------------


def check_change(before: AnyRecord, after: AnyRecord) -> None:
    """Raise StorageError for a change of a record that breaks INV-K1."""
    if type(before) is not type(after):
        raise StorageError(f"a {kind_of(before)} stays one: delete it first")
    if isinstance(before, LeaseRecord) and isinstance(after, LeaseRecord):
        is_granted = after.key not in ("", before.key)
        is_right = after.number == before.number + is_granted
        if after.key == before.key:
            is_right = is_right and after.beat >= before.beat
    else:
        is_right = after.number == before.number + 1
    if not is_right:
        raise StorageError("a fencing token, revision or count of changes rises by one (INV-K1)")


def check_names(
    before: NamesRecord,
    after: NamesRecord,
    records: Sequence[tuple[AnyRecord | None, AnyRecord | None]],
) -> None:
    """Raise StorageError where names come or go otherwise than their count says, or below the floor (INV-K1).

    `records`: those that come or go in the same change, each as it was and as it is to be.
    """
    come = [new for old, new in records if old is None and new is not None]
    gone = [old for old, new in records if old is not None and new is None]
    if after.names != max(before.names + len(come) - len(gone), 0):
        raise StorageError("the count of names of coordination is not that of the names")
    floor = max([before.floor, *(old.number for old in gone)])
    if after.floor < floor or any(new.number != before.floor + 1 for new in come):
        raise StorageError("a new name's number begins above those that were deleted (INV-K1)")


class TransactionCheck:
    """All changes of coordination in one transaction of a client, as a gateway judges them (INV-W12)."""

    def __init__(self) -> None:
        self._records: dict[str, list[tuple[AnyRecord | None, AnyRecord | None]]] = {}
        self._names: dict[str, tuple[NamesRecord, NamesRecord]] = {}

    def take(self, owner: str, before: bytes | None, after: bytes | None) -> bool:
        """Take in the change of a record of this namespace; return whether it is a deletion. Raises StorageError."""
        if before is not None and after is not None:
            check_change(get_record(before), get_record(after))
            return False
        known = None
        if before is not None:
            with suppress(StorageError):  # what nobody can read goes uncounted
                known = get_record(before)
        new = None if after is None else get_record(after)
        self._records.setdefault(owner, []).append((known, new))
        return after is None

    def take_names(self, owner: str, before: bytes | None, after: bytes | None) -> bool:
        """Take in the change of a namespace's count; return whether it is a deletion. Raises StorageError."""
        if after is None:
            return True
        old = NamesRecord() if before is None else get_names(before)
        self._names[owner] = old, get_names(after)
        return False

    def check(self, is_there: Callable[[str], bool]) -> set[str]:
        """Return the ids of namespaces that get a name more. Raises StorageError.

        `is_there`: says whether there is a namespace. Of one that is gone names go without the count.
        """
        for owner in {*self._records, *self._names}:
            records = self._records.get(owner, [])
            if owner in self._names:
                check_names(*self._names[owner], records)
            elif any(new is not None for _, new in records) or is_there(owner):
                raise StorageError("a name comes and goes together with the count of its namespace")
        return {
            owner
            for owner, records in self._records.items()
            if any(new is not None for _, new in records)
        }
