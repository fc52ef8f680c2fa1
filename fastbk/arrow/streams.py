"""A range of a stream as record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyarrow as pa

import fastbk.sync
from fastbk.arrow.batches import chunks_batch, client_in
from fastbk.arrow.schemas import check_stream_schema, stream_schema
from fastbk.errors import ConfigError, NoSuchEntry, ProtocolError
from fastbk.stream.namespace.sync_namespace import SyncStream
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.buffer import unreadable_gap
from fastbk.stream.reader.search import error_of
from fastbk.stream.reader.sync_reader import SyncStreamReader
from fastbk.stream.records import Chunk, Gap

ROWS_MAX = 8192
BYTES_MAX = 32 << 20
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
                pieces = list(_cut(part))
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


def _cut(chunks: list[Chunk]) -> Iterator[list[Chunk] | Gap]:
    """Yield the records of some chunks between those that cannot be read, and these as gaps."""
    for chunk in chunks:
        begin = 0
        for at in range(len(chunk)):
            try:
                chunk[at]
            except ProtocolError:
                if begin < at:
                    yield [chunk[begin:at]]
                yield unreadable_gap(chunk, at)
                begin = at + 1
        if begin < len(chunk):
            yield [chunk[begin:]]
