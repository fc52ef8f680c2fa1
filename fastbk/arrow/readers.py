"""A range of a ledger, or of a stream, as record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

import fastbk.sync
from fastbk.arrow.batches import (
    check_ledger_schema,
    check_stream_schema,
    chunks_batch,
    client_in,
    entry_batches_batch,
    ledger_schema,
    stream_schema,
)
from fastbk.client.ledger_reader import Batch
from fastbk.client.sync import LedgerReader
from fastbk.errors import ConfigError, DigestMismatch, NoSuchEntry, ProtocolError
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.buffer import unreadable_gap
from fastbk.stream.reader.search import error_of
from fastbk.stream.reader.sync_reader import SyncStreamReader
from fastbk.stream.records import Chunk, Gap
from fastbk.stream.sync import SyncStream

ROWS_MAX = 8192
BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class EntryGap:
    """Entries of a ledger that no bookie gives: `first` up to, not with, `next`."""

    ledger_id: int
    first: int
    next: int


OnEntryGap = Callable[[EntryGap], None]


def ledger_batches(
    client: fastbk.sync.Client,
    ledger_id: int,
    first: int = 0,
    last: int | None = None,
    *,
    schema: pa.Schema | None = None,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
    skip_gaps: bool = False,
    on_gap: OnEntryGap | None = None,
    digest: str | None = None,
    password: bytes = b"",
) -> Iterator[pa.RecordBatch]:
    """Yield the entries `first` to `last`, with both, in order; the ledger is not recovered, nobody is fenced.

    Args:
        client: of `fastbk.sync`.
        ledger_id: of an open ledger, too.
        first: from 0.
        last: None: the last acknowledged one when the first batch is asked for.
        schema: `ledger_schema()`, or some of its columns.
        rows_max: of a batch.
        bytes_max: of a batch's entries, about: what is read at once is not cut.
        skip_gaps: go on behind entries that no bookie has, or has undamaged.
        on_gap: is told of each gap that is passed by.
        digest, password: as `open_ledger` takes them.

    Raises:
        NoSuchEntry: `last` is beyond what is acknowledged, or an entry is on no bookie.
        DigestMismatch: an entry is damaged on all; both not for gaps with `skip_gaps`.
        NoSuchLedger, NotEnoughBookies, Unauthorized, ConfigError.
    """
    found = ledger_schema() if schema is None else schema
    check_ledger_schema(found)
    if rows_max < 1 or bytes_max < 1:
        raise ConfigError("rows_max and bytes_max must be at least 1")

    def read() -> Iterator[pa.RecordBatch]:
        with client.open_ledger(ledger_id, False, digest, password) as reader:
            end = _last_of(reader, first, last)
            batches = _found(reader, first, end, on_gap, skip_gaps=skip_gaps)
            yield from _gathered(batches, found, rows_max, bytes_max)

    return read()


def read_ledger(
    uri_or_client: str | fastbk.sync.Client | None,
    ledger_id: int,
    first: int = 0,
    last: int | None = None,
    *,
    payload: bool = True,
    skip_gaps: bool = False,
    on_gap: OnEntryGap | None = None,
    digest: str | None = None,
    password: bytes = b"",
    rows_max: int = ROWS_MAX,
) -> pa.RecordBatchReader:
    """Return a ledger's entries as a RecordBatchReader; arguments as `ledger_batches`. The range is fixed now.

    A client that is given stays open; of a URI (None: FASTBK_METADATA) one is made, and closed when the reader is read
    to its end, or let go.
    """
    schema = ledger_schema(payload=payload)
    if rows_max < 1:
        raise ConfigError("rows_max must be at least 1")

    def read() -> Iterator[pa.RecordBatch]:
        with ExitStack() as held:
            client = client_in(held, uri_or_client)
            reader = held.enter_context(client.open_ledger(ledger_id, False, digest, password))
            end = _last_of(reader, first, last)
            yield None  # it is open: what is wrong with the arguments was told
            batches = _found(reader, first, end, on_gap, skip_gaps=skip_gaps)
            yield from _gathered(batches, schema, rows_max, BYTES_MAX)

    batches = read()
    next(batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _last_of(reader: LedgerReader, first: int, last: int | None) -> int:
    if first < 0 or (last is not None and last < first):
        raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
    known = reader.last_known if reader.is_closed else reader.last_add_confirmed()
    if last is not None and last > known:
        raise NoSuchEntry(
            f"ledger {reader.ledger_id}: entry {last} is beyond the last acknowledged one, {known}:"
            " leave the end out to read what is there",
            ledger_id=reader.ledger_id,
            entry_id=last,
            retryable=not reader.is_closed,
        )
    return known if last is None else last


def _found(
    reader: LedgerReader, first: int, last: int, on_gap: OnEntryGap | None, *, skip_gaps: bool
) -> Iterator[Batch]:
    """Yield what is there; `on_gap` is told of a gap before what lies behind it is yielded."""
    position = behind = first
    while position <= last:
        try:
            for batch in reader.read_batches(position, last):
                _tell(on_gap, EntryGap(reader.ledger_id, behind, batch.first_entry_id))
                position = behind = batch.last_entry_id + 1
                yield batch
        except (NoSuchEntry, DigestMismatch):
            if not skip_gaps:
                raise
            position += 1
    _tell(on_gap, EntryGap(reader.ledger_id, behind, position))


def _tell(on_gap: OnEntryGap | None, gap: EntryGap) -> None:
    if on_gap is not None and gap.first < gap.next:
        on_gap(gap)


def _gathered(
    batches: Iterator[Batch], schema: pa.Schema, rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Put what was read together until it is enough, and cut off what is too much: no copies, but parts of one."""
    held: list[Batch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        size_bytes += batch.size_bytes
        if rows >= rows_max or size_bytes >= bytes_max:
            yield from _cut_off(held, rows, schema, rows_max)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield from _cut_off(held, rows, schema, rows_max)


def _cut_off(
    held: list[Batch], rows: int, schema: pa.Schema, rows_max: int
) -> Iterator[pa.RecordBatch]:
    made = entry_batches_batch(held, schema)
    for offset in range(0, rows, rows_max):
        yield made.slice(offset, rows_max)


WAIT_S = 30.0
_PREFETCH_BYTES = 16 << 20

OnGap = Callable[[Gap], None]


def stream_batches(
    stream: SyncStream,
    first: Start,
    end: Start | None = None,
    *,
    schema: pa.Schema | None = None,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
    skip_gaps: bool = False,
    on_gap: OnGap | None = None,
    wait_s: float = WAIT_S,
) -> Iterator[pa.RecordBatch]:
    """Yield the records from `first` up to, not with, `end`, in order, each once; nobody is fenced.

    Args:
        stream: of `fastbk.sync`.
        first: as a reader takes it.
        end: None: behind what is published when the first batch is asked for. A DLSN is reached, or it is an error:
            what bookies do not show yet is waited for. Any other end is where it is, or what is published.
        schema: `stream_schema()`, or some of its columns.
        rows_max: of a batch; all but the last one, and those before a gap, have as many if `bytes_max` lets them.
        bytes_max: of payloads, keys and headers of a batch, about: what was read at once is not cut.
        skip_gaps: go on behind what was truncated or lost.
        on_gap: is told of each gap that is passed by, within the range.
        wait_s: how long `end` is waited for without a record.

    Raises:
        PositionTruncated, DataLost: records are gone, behind all that were before them; not with `skip_gaps`.
        NoSuchEntry: `end` is behind what is published.
        StreamNotFound, ConfigError, and what readers raise.
    """
    found = stream_schema() if schema is None else schema
    check_stream_schema(found)
    if rows_max < 1 or bytes_max < 1:
        raise ConfigError("rows_max and bytes_max must be at least 1")

    def read() -> Iterator[pa.RecordBatch]:
        with _reader(stream, first, end) as reader:
            parts = _parts(reader, end, rows_max, bytes_max, wait_s)
            yield from _batches(stream.path, parts, found, on_gap, skip_gaps=skip_gaps)

    return read()


def read_stream(
    uri_or_client: str | fastbk.sync.Client | None,
    path: str,
    start: Start = "earliest",
    end: Start | None = None,
    *,
    payload: bool = True,
    headers: bool = False,
    skip_gaps: bool = False,
    on_gap: OnGap | None = None,
    rows_max: int = ROWS_MAX,
) -> pa.RecordBatchReader:
    """Return a stream's records as a RecordBatchReader; arguments as `stream_batches` and `stream_schema`.

    The range is fixed when this returns. A client that is given stays open; of a URI (None: FASTBK_METADATA) one is
    made, and closed when the reader is read to its end, or let go.

        pa.table | polars.from_arrow(read_stream(uri, "shop/orders")) | duckdb.from_arrow(...) | ....read_pandas()
    """
    namespace, name = split_stream_path(path)
    schema = stream_schema(payload=payload, headers=headers)
    if rows_max < 1:
        raise ConfigError("rows_max must be at least 1")

    def read() -> Iterator[pa.RecordBatch]:
        with ExitStack() as held:
            client = client_in(held, uri_or_client)
            stream = client.namespace(namespace).stream(name)
            reader = held.enter_context(_reader(stream, start, end))
            yield None  # it is open: what is wrong with the arguments was told
            parts = _parts(reader, end, rows_max, BYTES_MAX, WAIT_S)
            yield from _batches(stream.path, parts, schema, on_gap, skip_gaps=skip_gaps)

    batches = read()
    next(batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _reader(stream: SyncStream, first: Start, end: Start | None) -> SyncStreamReader[Gap]:
    is_exact = isinstance(end, DLSN)
    return stream.reader(
        first, end=end, tail=is_exact, prefetch_bytes=_PREFETCH_BYTES, on_gap="yield"
    )


def _parts(
    reader: SyncStreamReader[Gap], end: Start | None, rows_max: int, bytes_max: int, wait_s: float
) -> Iterator[list[Chunk] | Gap]:
    """Yield what a reader gives, gathered to batches: lists of chunks, and gaps cut at the end."""
    end = end if isinstance(end, DLSN) else None
    chunks: list[Chunk] = []
    rows = size_bytes = 0
    while items := reader.read_chunks(rows_max - rows, bytes_max - size_bytes, wait_s):
        for item in items:
            if isinstance(item, Chunk):
                chunks.append(item)
                rows += len(item)
                size_bytes += item.entries_bytes
                if rows < rows_max and size_bytes < bytes_max:
                    continue
            if chunks:
                yield chunks
                chunks, rows, size_bytes = [], 0, 0
            if isinstance(item, Gap):
                # It may reach beyond the range; who reads the next range is told of the rest.
                yield item if end is None or item.next <= end else Gap(item.kind, item.first, end)
    if chunks:
        yield chunks
    position = reader.position
    if end is not None and position < end:
        is_sealed = reader.is_at_end
        why = "the stream is sealed" if is_sealed else f"nothing came for {wait_s:g} s"
        raise NoSuchEntry(
            f"{end} was to be the end, and nothing is published behind {position}: {why};"
            " leave the end out to read what is there",
            retryable=not is_sealed,
        )


def _batches(
    path: str,
    parts: Iterator[list[Chunk] | Gap],
    schema: pa.Schema,
    on_gap: OnGap | None,
    *,
    skip_gaps: bool,
    unreadable: ProtocolError | None = None,
) -> Iterator[pa.RecordBatch]:
    """`unreadable`: of the first gap, where it stands for a record that cannot be read."""
    for part in parts:
        if not isinstance(part, Gap):
            try:
                batch = chunks_batch(part, path, schema)
            except ProtocolError as error:
                pieces = list(_cut_at_gaps(part))
                if not any(isinstance(piece, Gap) for piece in pieces):
                    raise
                # What is before the record comes first; then it is a gap.
                yield from _batches(
                    path, iter(pieces), schema, on_gap, skip_gaps=skip_gaps, unreadable=error
                )
            else:
                yield batch
            continue
        if not skip_gaps:
            raise unreadable or error_of(path, part)
        if on_gap is not None:
            on_gap(part)


def _cut_at_gaps(chunks: list[Chunk]) -> Iterator[list[Chunk] | Gap]:
    """Yield the records of some chunks between those that cannot be read, and these as gaps."""
    for chunk in chunks:
        begin = 0
        for index in range(len(chunk)):
            try:
                chunk[index]
            except ProtocolError:
                if begin < index:
                    yield [chunk[begin:index]]
                yield unreadable_gap(chunk, index)
                begin = index + 1
        if begin < len(chunk):
            yield [chunk[begin:]]
