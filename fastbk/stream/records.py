"""Records, chunks of records and gaps, as readers return them, and the bytes of headers and of compressed entries.

Bodies of entries are compressed one by one, so that each can be read alone: LZ4 blocks, Zstandard frames. Readers trust
no size that an entry declares. The head's size is bounded, a frame must declare the head's size, and a body that has
another size is an error.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, overload

import lz4.block
import zstandard

from fastbk.errors import ConfigError, ProtocolError, WrongType
from fastbk.native import stream_codec as codec
from fastbk.native.stream_codec import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    HEAD_BYTES,
    HEAD_TIME_US,
    HEAD_WORDS,
    ROW_HEADERS_AT,
    ROW_HEADERS_BYTES,
    ROW_KEY_AT,
    ROW_KEY_BYTES,
    ROW_PAYLOAD_AT,
    ROW_PAYLOAD_BYTES,
    ROW_PLACE,
    ROW_TXID,
    ROW_WORDS,
    Head,
    Source,
    put_head,
    read_head,
)
from fastbk.option_checks import owned_bytes
from fastbk.printable_text import shown_bytes
from fastbk.replication.entry_table import EntryTable
from fastbk.stream.policy import Compression
from fastbk.stream.positions import DLSN, to_time

_SLOT_MASK = 0xFFFFFFFF
_CODEC_AT = 2
_UNPACKED_RECORDS_MAX = 256 * 1024
"""Maximum records of the compressed entries of one chunk, but for its first one: a record takes 64 bytes."""


class Origin(NamedTuple):
    """The stream that records are of, where a reader reads several."""

    path: str
    """Namespace and name, as they were when the records were read."""
    id: str
    """Id of this stream, whatever has its name by now."""


NO_ORIGIN = Origin("", "")


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `payload` is a view of the chunk that it came in; `value` is a copy, to keep it alone.

    It can be pickled and copied: what comes out has its own payload.
    """

    dlsn: DLSN
    seq: int
    """Its number in the stream, from 0, without holes."""
    txid: int
    time_us: int
    """When it was appended, by its writer's clock, in microseconds since 1970; within a segment it never falls."""
    payload: memoryview
    key: bytes | None = None
    headers: Headers = ()

    @property
    def stream(self) -> str:
        """Namespace and name of its stream, from readers and cursors of several streams; "": from others."""
        return ""

    @property
    def value(self) -> bytes:
        """The payload as bytes of its own, as `json.loads` and others want it."""
        return bytes(self.payload)

    @property
    def time(self) -> datetime:
        """When it was appended, in UTC."""
        return to_time(self.time_us)

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={shown_bytes(self.key)}"
        headers = f", headers={self.headers!r}" if self.headers else ""
        sizes = f"{len(self.payload)} bytes {shown_bytes(self.payload)}"
        place = f"{self.stream} {self.dlsn}".lstrip()
        return f"<Record {place} seq={self.seq} txid={self.txid}{key}{headers}: {sizes}>"

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.dlsn, self.seq, self.txid, self.time_us, self.value, self.key, self.headers)
        return _record_of, given


def _record_of(
    dlsn: DLSN, seq: int, txid: int, time_us: int, value: bytes, key: bytes | None, headers: Headers
) -> Record:
    """Return a record that was pickled."""
    return Record(dlsn, seq, txid, time_us, memoryview(value), key, headers)


@dataclass(frozen=True, slots=True, repr=False)
class OriginRecord(Record):
    """A record that says which stream it is of: only these pay for it."""

    origin: Origin = NO_ORIGIN

    @property
    def stream(self) -> str:
        """Namespace and name of its stream."""
        return self.origin.path

    def __reduce__(self) -> tuple[object, ...]:
        one = self
        plain = Record(one.dlsn, one.seq, one.txid, one.time_us, one.payload, one.key, one.headers)
        return _origin_record_of, (plain, *self.origin)


def _origin_record_of(record: Record, path: str, stream_id: str) -> OriginRecord:
    """Return a record that was pickled."""
    one = record
    given = (one.dlsn, one.seq, one.txid, one.time_us, one.payload, one.key, one.headers)
    return OriginRecord(*given, Origin(path, stream_id))


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that a reader passed by: `first` up to, not with, `next`. `records`: how many, None if nobody knows."""

    kind: Literal["trimmed", "lost"]
    first: DLSN
    next: DLSN
    records: int | None = None
    stream: str = ""
    """Namespace and name of its stream, from readers and cursors of several streams; "": from others."""


class Chunk(Sequence[Record]):
    """Records of one segment, one behind the other, at least one; they are decoded when they are looked at.

    No Python object is made for a record unless it is asked for: `payloads()`, `txids()` and `rows()` go by columns.
    """

    __slots__ = (
        "_first",
        "_heads",
        "_last",
        "_rows",
        "base_txid",
        "data",
        "first_entry_id",
        "first_seq",
        "origin",
        "segment",
    )

    def __init__(
        self,
        segment: int,
        first_entry_id: int,
        base_seq: int,
        base_txid: int,
        data: bytes | memoryview,
        tables: tuple[memoryview, memoryview],
    ) -> None:
        """`base_seq`, `base_txid`: of the segment. `tables`: of `decode`; all entries' ids follow each other."""
        self.origin: Origin | None = None
        """The stream, from readers and cursors of several streams."""
        self.segment = segment
        self.first_entry_id = first_entry_id
        self.base_txid = base_txid
        self.data = data
        self._heads, self._rows = tables
        self._first = 0
        self._last = len(self._rows) // ROW_WORDS
        self.first_seq = base_seq + (
            self._heads[codec.HEAD_FIRST_RECORD] if len(self._heads) else 0
        )
        """The number of the first record."""

    def __len__(self) -> int:
        return self._last - self._first

    def __repr__(self) -> str:
        if len(self) == 0:
            return f"<Chunk of no records of segment {self.segment}>"
        between = f"{self.first_dlsn} to {self.last_dlsn}"
        of = f" of {self.stream}" if self.stream else ""
        return f"<Chunk of {len(self)} records{of}, {between}, seq from {self.first_seq}, {self.nbytes} bytes>"

    def __reduce__(self) -> tuple[object, ...]:
        base_seq = (
            self.first_seq
            - self._first
            - (self._heads[codec.HEAD_FIRST_RECORD] if len(self._heads) else 0)
        )
        tables = (self._heads.tobytes(), self._rows.tobytes())
        given = (
            self.segment,
            self.first_entry_id,
            base_seq,
            self.base_txid,
            bytes(self.data),
            *tables,
        )
        return _chunk_part_of, (*given, self._first, self._last, self.origin)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Chunk: ...
    def __getitem__(self, index: int | slice) -> Record | Chunk:
        """Return a record, or a chunk of consecutive ones (of the same memory).

        Raises ProtocolError for a record whose headers make no sense; it names the record's position.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a chunk's records follow each other: slices have no step")
            return self._part(start, max(start, stop))
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return self._record(self._first + index % len(self))

    def __iter__(self) -> Iterator[Record]:
        for row in range(self._first, self._last):
            yield self._record(row)

    def _part(self, start: int, stop: int) -> Chunk:
        part = object.__new__(Chunk)
        part.origin = self.origin
        part.segment, part.first_entry_id = self.segment, self.first_entry_id
        part.base_txid, part.data = self.base_txid, self.data
        part._heads, part._rows = self._heads, self._rows
        part._first, part._last = self._first + start, self._first + stop
        part.first_seq = self.first_seq + start
        return part

    def _record(self, row: int) -> Record:
        offset = row * ROW_WORDS
        words = self._rows[offset : offset + ROW_WORDS]
        place = words[ROW_PLACE]
        key_bytes, header_bytes = words[ROW_KEY_BYTES], words[ROW_HEADERS_BYTES]
        view = memoryview(self.data)
        kind = Record if self.origin is None else partial(OriginRecord, origin=self.origin)
        return kind(
            self._dlsn(place),
            self.first_seq + row - self._first,
            self.base_txid + words[ROW_TXID],
            self._heads[(place >> 32) * HEAD_WORDS + HEAD_TIME_US],
            view[words[ROW_PAYLOAD_AT] : words[ROW_PAYLOAD_AT] + words[ROW_PAYLOAD_BYTES]],
            None
            if key_bytes < 0
            else bytes(view[words[ROW_KEY_AT] : words[ROW_KEY_AT] + key_bytes]),
            self._headers(row, view[words[ROW_HEADERS_AT] : words[ROW_HEADERS_AT] + header_bytes])
            if header_bytes
            else (),
        )

    def _headers(self, row: int, raw: memoryview) -> Headers:
        """Return a record's headers. Raises ProtocolError, which says where the record is, and what is behind it."""
        try:
            return get_headers(raw)
        except ProtocolError as error:
            index = row - self._first
            raise ProtocolError(
                f"record {self._dlsn_of_row(row)} cannot be read: {error}; behind it is"
                f" {self[index : index + 1].next_dlsn}"
            ) from error

    def _dlsn(self, place: int) -> DLSN:
        return DLSN(self.segment, self.first_entry_id + (place >> 32), place & _SLOT_MASK)

    def _dlsn_of_row(self, row: int) -> DLSN:
        return self._dlsn(self._rows[row * ROW_WORDS + ROW_PLACE])

    @property
    def stream(self) -> str:
        """Namespace and name of its stream, from readers and cursors of several streams; "": from others."""
        return "" if self.origin is None else self.origin.path

    @property
    def entries(self) -> int:
        """How many entries were decoded together."""
        return len(self._heads) // HEAD_WORDS

    @property
    def first(self) -> Record:
        """The first record."""
        return self._record(self._first)

    @property
    def last(self) -> Record:
        """The last record."""
        return self._record(self._last - 1)

    @property
    def first_dlsn(self) -> DLSN:
        """The position of the first record."""
        return self._dlsn_of_row(self._first)

    @property
    def last_dlsn(self) -> DLSN:
        """The position of the last record."""
        return self._dlsn_of_row(self._last - 1)

    @property
    def next_dlsn(self) -> DLSN:
        """The position behind the last record: of the next one, where that is of the same segment."""
        if len(self) == 0:
            return DLSN(self.segment, self.first_entry_id + self.entries, 0)
        place = self._rows[(self._last - 1) * ROW_WORDS + ROW_PLACE]
        segment, entry, slot = self._dlsn(place)
        records = self._heads[(place >> 32) * HEAD_WORDS + codec.HEAD_RECORDS]
        at_end = slot + 1 == records
        return DLSN(segment, entry + 1, 0) if at_end else DLSN(segment, entry, slot + 1)

    @property
    def last_txid(self) -> int:
        """The transaction id of the last record."""
        return self.base_txid + self._rows[(self._last - 1) * ROW_WORDS + ROW_TXID]

    @property
    def last_time_us(self) -> int:
        """When the last record was appended."""
        place = self._rows[(self._last - 1) * ROW_WORDS + ROW_PLACE]
        return self._heads[(place >> 32) * HEAD_WORDS + HEAD_TIME_US]

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(self._column(ROW_PAYLOAD_BYTES))

    @property
    def entries_bytes(self) -> int:
        """Bytes of the entries' records, about: payloads, keys, headers and what stands before each; no sum."""
        first, last = self._first * ROW_WORDS, (self._last - 1) * ROW_WORDS
        rows = self._rows
        return (
            rows[last + ROW_PAYLOAD_AT] + rows[last + ROW_PAYLOAD_BYTES] - rows[first + ROW_KEY_AT]
        )

    def payloads(self) -> list[memoryview]:
        """Return all payloads, as views of the chunk's memory."""
        view = memoryview(self.data)
        starts, sizes = self._column(ROW_PAYLOAD_AT), self._column(ROW_PAYLOAD_BYTES)
        return [view[at : at + size] for at, size in zip(starts, sizes, strict=True)]

    def txids(self) -> array[int]:
        """Return all transaction ids."""
        base = self.base_txid
        return array("q", [base + txid for txid in self._column(ROW_TXID)])

    def rows_with_headers(self) -> Iterator[int]:
        """Yield the indexes of the records that have headers."""
        return (row for row, size in enumerate(self._column(ROW_HEADERS_BYTES)) if size)

    def rows(self) -> memoryview:
        """Return the table of records as int64, `stream_codec.ROW_WORDS` each; places count from `data`."""
        return self._rows[self._first * ROW_WORDS : self._last * ROW_WORDS]

    def columns(self) -> Source:
        """Return the records as `fastbk.native.stream_codec` takes them, to be written by columns."""
        return Source(
            self.data,
            self._heads,
            self.rows(),
            self.segment,
            self.first_entry_id,
            self.first_seq,
            self.base_txid,
        )

    def _column(self, column: int) -> list[int]:
        return self._rows[
            self._first * ROW_WORDS + column : self._last * ROW_WORDS : ROW_WORDS
        ].tolist()

    def index_of(self, dlsn: DLSN) -> int:
        """Return the place of the first record that is not before `dlsn`; len(self) if there is none."""
        # Readers mostly ask for what lies before all of it, or behind.
        if len(self) == 0 or dlsn <= self.first_dlsn:
            return 0
        if dlsn > self.last_dlsn:
            return len(self)
        return bisect_left(range(self._first, self._last), dlsn, key=self._dlsn_of_row)


def _chunk_part_of(
    segment: int,
    first_entry_id: int,
    base_seq: int,
    base_txid: int,
    data: bytes,
    heads: bytes,
    rows: bytes,
    start: int,
    stop: int,
    origin: Origin | None = None,
) -> Chunk:
    """Return a chunk that was pickled."""
    tables = (memoryview(heads).cast("q"), memoryview(rows).cast("q"))
    part = Chunk(segment, first_entry_id, base_seq, base_txid, data, tables)[start:stop]
    part.origin = origin
    return part


def chunk_of(
    segment: int,
    first_entry_id: int,
    datas: Sequence[bytes | memoryview],
    base_seq: int,
    base_txid: int,
    unpacked_bytes_max: int | None = None,
) -> Chunk:
    """Return the records of consecutive entries' data as one chunk; empty when they hold none (index, provenance).

    `unpacked_bytes_max`: where entries are compressed, the chunk ends with the first entry that reaches so many bytes;
    `Chunk.entries` says how many it has. Raises ProtocolError for what is no entry of a stream.
    """
    if any(len(data) > _CODEC_AT and data[_CODEC_AT] != CODEC_NONE for data in datas):
        parts, sizes = _unpacked(datas, unpacked_bytes_max)
        joined = b"".join(parts)
    else:
        joined, sizes = b"".join(datas), array("I", map(len, datas))
    return Chunk(segment, first_entry_id, base_seq, base_txid, joined, codec.decode(joined, sizes))


def _unpacked(
    datas: Sequence[bytes | memoryview], bytes_max: int | None
) -> tuple[list[bytes | memoryview], array[int]]:
    """Return heads and bodies of the first entries, and the entries' sizes."""
    found: list[bytes | memoryview] = []
    sizes, size_bytes, records = array("I"), 0, 0
    for data in datas:
        head = codec.read_head(data)
        size_bytes, records = size_bytes + head.raw_bytes, records + head.record_count
        is_full = size_bytes > (bytes_max or 0) or records > _UNPACKED_RECORDS_MAX
        if bytes_max is not None and found and is_full:
            break
        parts = unpacked_parts(data, head)
        found += parts
        sizes.append(sum(map(len, parts)))
    return found, sizes


def chunk_of_run(
    segment: int,
    first_entry_id: int,
    run: EntryTable,
    base_seq: int,
    base_txid: int,
    unpacked_bytes_max: int | None = None,
) -> Chunk:
    """Like `chunk_of`, of entries as a bookie's answer has them: without a copy, but where they are compressed."""
    try:
        tables = codec.decode_table(run.data, run.words)
    except ProtocolError:
        # Compressed, or damaged in a way that is told there.
        datas = run.datas
        return chunk_of(segment, first_entry_id, datas, base_seq, base_txid, unpacked_bytes_max)
    return Chunk(segment, first_entry_id, base_seq, base_txid, run.data, tables)


# --- headers --------------------------------------------------------------------------------------
# Of each: 2 bytes of the name's size, the name (UTF-8), 4 bytes of the value's size, the value; sizes little-endian.
# They keep their order, and a name may occur more than once.

Headers: TypeAlias = tuple[tuple[str, bytes], ...]
HeadersLike: TypeAlias = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Headers as callers give them: pairs of a name and a value, or a mapping."""

_HEADERS_ARE = "headers are pairs of a text and bytes, or a mapping from text to bytes"
_NAME_SIZE = struct.Struct("<H")
_VALUE_SIZE = struct.Struct("<I")
NAME_BYTES_MAX = 0xFFFF


def put_headers(headers: HeadersLike) -> bytes:
    """Return the bytes of headers. Raises ConfigError for what is no header, or a name of more than 64 KiB."""
    parts: list[bytes] = []
    given: object = headers
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise WrongType(f"headers={given!r}: {_HEADERS_ARE}")
    pairs: Iterable[object] = given.items() if isinstance(given, Mapping) else given
    for pair in pairs:
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise WrongType(f"headers: {pair!r} is no header; {_HEADERS_ARE}")
        name, value = pair
        if not isinstance(name, str):
            raise WrongType(f"headers: the name {name!r} is no text; {_HEADERS_ARE}")
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"headers: the name {name!r} cannot be written: {error}") from None
        if len(raw) > NAME_BYTES_MAX:
            raise ConfigError(f"a header's name has {len(raw)} bytes: at most {NAME_BYTES_MAX}")
        data = owned_bytes(value, f"the value of header {name!r}")
        parts += (_NAME_SIZE.pack(len(raw)), raw, _VALUE_SIZE.pack(len(data)), data)
    return b"".join(parts)


def get_headers(raw: bytes | memoryview) -> Headers:
    """Return what `put_headers` wrote. Raises ProtocolError."""
    found: list[tuple[str, bytes]] = []
    offset = 0
    try:
        while offset < len(raw):
            (size,) = _NAME_SIZE.unpack_from(raw, offset)
            name = bytes(raw[offset + 2 : offset + 2 + size]).decode()
            offset += 2 + size
            (size,) = _VALUE_SIZE.unpack_from(raw, offset)
            value = bytes(raw[offset + 4 : offset + 4 + size])
            offset += 4 + size
            if offset > len(raw):
                raise ProtocolError("a record's headers end too early")
            found.append((name, value))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a record's headers make no sense: {error}") from error
    return tuple(found)


# --- compression ----------------------------------------------------------------------------------


CODECS: dict[Compression, int] = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
RAW_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of an entry's body before it is compressed. Writers refuse larger entries, and so do readers."""
RECORDS_MAX = 1024 * 1024
"""Maximum records of a compressed entry. A record takes 64 bytes of a reader's memory, and may take next to nothing
of the entry.
"""
ZSTD_LEVEL = 3


def compressed(entry: bytearray, codec: int) -> bytes | bytearray:
    """Return the entry with its body compressed, or as it is where that would not make it smaller.

    Its provenance is not compressed: whoever takes a stream over reads nothing else.
    """
    if codec == CODEC_NONE:
        return entry
    head = read_head(entry)
    body = memoryview(entry)[HEAD_BYTES + head.provenance_bytes :]
    if not body:
        return entry
    if codec == CODEC_LZ4:
        packed: bytes = lz4.block.compress(body, store_size=False)
    else:
        packed = zstandard.ZstdCompressor(ZSTD_LEVEL, write_content_size=True).compress(body)
    if len(packed) >= len(body):
        return entry
    out = bytearray(HEAD_BYTES)
    put_head(out, head._replace(codec=codec, stored_bytes=len(packed)))
    return bytes(out) + bytes(entry[HEAD_BYTES : HEAD_BYTES + head.provenance_bytes]) + packed


def unpacked_parts(entry: bytes | memoryview, head: Head) -> tuple[bytes | memoryview, ...]:
    """Return the entry with its body as it was before it was compressed, as head and body: the body is not copied.

    Of a compressed one without its provenance. Raises ProtocolError.
    """
    if head.codec == CODEC_NONE:
        return (entry,)
    if head.raw_bytes > RAW_BYTES_MAX or head.record_count > RECORDS_MAX:
        raise ProtocolError(
            f"a compressed entry declares {head.raw_bytes} bytes and {head.record_count} records; the limits are"
            f" {RAW_BYTES_MAX} bytes and {RECORDS_MAX} records"
        )
    body = memoryview(entry)[HEAD_BYTES + head.provenance_bytes :]
    try:
        raw = _raw(body, head)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
        raise ProtocolError(f"an entry's body cannot be unpacked: {error}") from error
    if len(raw) != head.raw_bytes:
        raise ProtocolError(f"an entry's body has {len(raw)} bytes, its head says {head.raw_bytes}")
    out = bytearray(HEAD_BYTES)
    put_head(out, head._replace(codec=CODEC_NONE, stored_bytes=len(raw), provenance_bytes=0))
    return bytes(out), raw


def _raw(body: memoryview, head: Head) -> bytes:
    if head.codec == CODEC_LZ4:
        raw: bytes = lz4.block.decompress(body, uncompressed_size=head.raw_bytes)
        return raw
    # The decompressor allocates what the frame declares, whatever `max_output_size` is.
    declared = zstandard.frame_content_size(body)
    if declared not in (-1, head.raw_bytes):
        raise ProtocolError(
            f"a compressed entry's frame declares {declared} bytes, its head {head.raw_bytes}"
        )
    decompressor = zstandard.ZstdDecompressor(max_window_size=RAW_BYTES_MAX)
    return decompressor.decompress(body, max_output_size=head.raw_bytes)
