"""A range of a ledger as record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

import fastbk.sync
from fastbk.arrow.batches import client_in, entry_batches_batch
from fastbk.arrow.schemas import check_ledger_schema, ledger_schema
from fastbk.client.entries import Batch
from fastbk.client.sync_reader import LedgerReader
from fastbk.errors import ConfigError, DigestMismatch, NoSuchEntry

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
            yield from _cut(held, rows, schema, rows_max)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield from _cut(held, rows, schema, rows_max)


def _cut(
    held: list[Batch], rows: int, schema: pa.Schema, rows_max: int
) -> Iterator[pa.RecordBatch]:
    made = entry_batches_batch(held, schema)
    for at in range(0, rows, rows_max):
        yield made.slice(at, rows_max)
