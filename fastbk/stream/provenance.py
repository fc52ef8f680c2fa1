"""Where an entry's records come from: the block between its head and its records, and what a takeover reads of it.

    block = put_producers(Provenance(rows, distance=3))
    get_producers(entry).rows                   # of an entry's data; None: it has no such block

A block says either which producers appended what up to and with this entry (a table of rows, whole or only what
changed), or up to where the outputs of each source's records are there (pipelines). README.md here has the
bytes; fastbk/producers/README.md says why a log that has its table in itself stores each record exactly once.

INV-S36: the table that `read_table` returns is that of all entries of the log, whatever of it was truncated: each
segment begins with a whole one, the newest segment with entries stays, and an entry of another kind than producers'
comes only after the table was put into pages of metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import ProtocolError, StorageError
from fastbk.native.stream_codec import HEAD_BYTES, KIND_INDEX, PROVENANCE_BYTES_MIN, read_head
from fastbk.stream.chain import Chain
from fastbk.stream.context import StreamContext
from fastbk.stream.positions import DLSN

SOURCES: Final = 1
PRODUCERS: Final = 2
NAME_BYTES_MAX: Final = 64
RANDOM_PREFIX: Final = "~"
"""The names of producers that were given none begin with it: nobody opens one again."""
_BLOCK = struct.Struct("<IBBHII")
_PRODUCER = struct.Struct("<qqQB")
_SOURCE = struct.Struct("<QIqIq")
READ_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Row:
    """What the table has of one producer's name."""

    name: bytes
    incarnation: int
    """Writer's epoch << 32 | opening of that owner: it rises over all openings, of names that were forgotten, too."""
    last_number: int
    time_us: int
    """Of its last append or opening, by the owner's clock."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What one entry says of producers. `distance`: entries since the newest whole table, 0 if this has it."""

    rows: tuple[Row, ...]
    distance: int

    @property
    def is_whole(self) -> bool:
        """Whether the rows are the whole table."""
        return self.distance == 0


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Where a pipeline goes on in one source: all outputs of the records before are in this entry, or in one before.

    A position, as a cursor's mark: behind the last of these records.
    """

    stream: int
    """The source's id."""
    segment: int
    entry: int
    slot: int
    seq: int
    """Number of the record that will lie there; -1: not known. With it a restart tells records that were truncated
    unread from the end of a segment that is gone."""

    @property
    def dlsn(self) -> DLSN:
        """The position."""
        return DLSN(self.segment, self.entry, self.slot)


def put_producers(provenance: Provenance) -> bytes:
    """Return the block of an entry with records of producers, or with openings of their names."""
    rows = provenance.rows
    return _block(PRODUCERS, provenance.distance, len(rows), put_rows(rows))


def put_sources(rows: Sequence[SourceRow]) -> bytes:
    """Return the block of an entry that a pipeline writes: all its sources, each time."""
    packed = [_SOURCE.pack(row.stream, row.segment, row.entry, row.slot, row.seq) for row in rows]
    return _block(SOURCES, 0, len(rows), b"".join(packed))


def _block(kind: int, distance: int, count: int, rows: bytes) -> bytes:
    size_bytes = _BLOCK.size + len(rows)
    return _BLOCK.pack(size_bytes, kind, distance == 0, 0, count, distance) + rows


def get_producers(entry: bytes | memoryview) -> Provenance | None:
    """Return what an entry's data says of producers; None: nothing. Raises ProtocolError."""
    kind, _, count, distance, rows = _parts(entry)
    if kind != PRODUCERS:
        return None
    found = get_rows(rows)
    if len(found) != count:
        raise ProtocolError(f"a block of provenance has {len(found)} rows, and says {count}")
    return Provenance(found, distance)


def get_sources(entry: bytes | memoryview) -> tuple[SourceRow, ...] | None:
    """Return what an entry's data says of sources; None: nothing. Raises ProtocolError."""
    kind, _, count, _, rows = _parts(entry)
    if kind != SOURCES:
        return None
    if len(rows) != count * _SOURCE.size:
        raise ProtocolError(f"{len(rows)} bytes are not {count} sources")
    return tuple(SourceRow(*row) for row in _SOURCE.iter_unpack(rows))


def _parts(entry: bytes | memoryview) -> tuple[int, bool, int, int, memoryview]:
    """Return kind (0: there is no block), whether it is whole, count of rows, distance, and the rows."""
    size_bytes = read_head(entry).provenance_bytes
    if not size_bytes:
        return 0, False, 0, 0, memoryview(b"")
    assert size_bytes >= PROVENANCE_BYTES_MIN
    block = memoryview(entry)[HEAD_BYTES : HEAD_BYTES + size_bytes]
    _, kind, is_whole, zero, count, distance = _BLOCK.unpack_from(block)
    if kind not in (SOURCES, PRODUCERS) or zero or is_whole != (distance == 0):
        raise ProtocolError(f"a block of provenance of kind {kind} makes no sense")
    return kind, bool(is_whole), count, distance, block[_BLOCK.size :]


def put_rows(rows: Iterable[Row]) -> bytes:
    """Return the bytes of a table's rows."""
    parts: list[bytes] = []
    for row in rows:
        sizes = _PRODUCER.pack(row.last_number, row.time_us, row.incarnation, len(row.name))
        parts += (sizes, row.name)
    return b"".join(parts)


def get_rows(data: bytes | memoryview) -> tuple[Row, ...]:
    """Return what `put_rows` wrote. Raises ProtocolError."""
    rows: list[Row] = []
    offset = 0
    try:
        while offset < len(data):
            last_number, time_us, incarnation, size = _PRODUCER.unpack_from(data, offset)
            offset += _PRODUCER.size + size
            name = bytes(data[offset - size : offset])
            if not 0 < size <= NAME_BYTES_MAX or len(name) != size or last_number < -1:
                raise ProtocolError("a row of producers makes no sense")
            rows.append(Row(name, incarnation, last_number, time_us))
    except struct.error as error:
        raise ProtocolError(f"a row of producers ends too early: {error}") from error
    return tuple(rows)


# --- a takeover ---------------------------------------------------------------------------------------------------


def read_table(newest: Provenance | None, before: Callable[[int], Provenance]) -> dict[bytes, Row]:
    """Return the table of a log that ends with `newest`; None: it has no entry.

    Args:
        before: returns what the n-th entry before the newest one says.
    """
    if newest is None:
        return {}
    rows: dict[bytes, Row] = {}
    for number in range(newest.distance, 0, -1):
        rows.update((row.name, row) for row in before(number).rows)
    rows.update((row.name, row) for row in newest.rows)
    return rows


async def table_of_log(context: StreamContext, chain: Chain) -> dict[bytes, Row] | None:
    """Return the table of producers that a stream's segments have, all of them closed; None: they have none.

    Raises StorageError for a table that cannot be read, and what reads raise: nobody may append as a producer then.
    """
    if not chain.rows:
        return None
    row = chain.rows[-1]
    async with await context.client.open_ledger(row.ledger_id, recovery=False) as reader:
        last = reader.metadata.last_entry_id
        assert last is not None  # it is closed
        data = await _entry(reader, last)
        if read_head(data).kind == KIND_INDEX:
            last -= 1
            data = await _entry(reader, last)
        newest = _provenance_of(reader, last, data)
        if newest is None:
            return None
        if newest.distance > last:
            raise _bad_table(reader, last, "its whole table lies before the segment")
        before: dict[int, Provenance] = {}
        first = last - newest.distance
        if newest.distance:
            async for batch in reader.read_batches(first, last - 1):
                for entry in batch:
                    part = _provenance_of(reader, entry.entry_id, entry.data)
                    if part is None or part.distance != entry.entry_id - first:
                        raise _bad_table(reader, entry.entry_id, "a part of the table is missing")
                    before[last - entry.entry_id] = part
        return read_table(newest, before.__getitem__)


async def _entry(reader: LedgerReader, entry_id: int) -> bytes | memoryview:
    async for batch in reader.read_batches(entry_id, entry_id):
        for entry in batch:
            return entry.data
    raise _bad_table(reader, entry_id, "it is not there")


def _provenance_of(
    reader: LedgerReader, entry_id: int, data: bytes | memoryview
) -> Provenance | None:
    try:
        return get_producers(data)
    except ProtocolError as error:
        raise _bad_table(reader, entry_id, str(error)) from error


def _bad_table(reader: LedgerReader, entry_id: int, why: str) -> StorageError:
    return StorageError(
        f"ledger {reader.ledger_id}, entry {entry_id}: the table of producers cannot be read: {why}",
        ledger_id=reader.ledger_id,
        entry_id=entry_id,
    )
