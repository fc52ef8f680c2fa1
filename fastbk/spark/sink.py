"""The sink: Spark writes batches and streaming queries to a stream, both exactly once. See README.md here.

Spark calls the two writers. The driver checks everything before any task starts, and makes a batch visible by one
change of metadata. Each attempt of a task writes its rows to ledgers of its own, noted as a draft before they exist.
Arrow's buffers go to C: no Python object a record.

Decision 83.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
)

from fastbk.arrow.batches import HEADERS
from fastbk.client.sync import LedgerWriter
from fastbk.errors import (
    BufferFull,
    ConfigError,
    DraftGone,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NotEnoughBookies,
    ProtocolError,
    RecordTooLarge,
    StreamBusy,
    StreamNotFound,
)
from fastbk.meta.uri import uri_or_default
from fastbk.model.ledger import custom_of_stream
from fastbk.model.quorum import check_quorums
from fastbk.native.stream_codec import HEAD_BYTES, RECORD_OVERHEAD_BYTES_MAX, Column, Table
from fastbk.observe.library_log import LibraryLog
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import decode_rule
from fastbk.retry import Retry
from fastbk.spark.options import COMMON, Option, Values, known
from fastbk.spark.worker_client import client_of
from fastbk.stream.chain import ONCE
from fastbk.stream.drafts import LEDGERS_MAX, Draft, check_key
from fastbk.stream.paths import split_stream_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.records import CODECS, compressed
from fastbk.stream.segment_contents import IndexBuilder
from fastbk.sync import Client

if TYPE_CHECKING:
    from fastbk.stream.sync import SyncStream
    from fastbk.sync import Client, LedgerWriter

_log = LibraryLog("fastbk.spark")

Connect = Callable[[str | None], "Client"]
Messages = Sequence["WriterCommitMessage | None"]
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


class _Writer:
    """What both writers do: in a worker and on the driver they connect by the same options."""

    def __init__(self, options: WriteOptions, connect: Connect) -> None:
        self._options = options
        self._connect = connect

    def attempt(self, place: TaskAttempt) -> AttemptWriter:
        """Return an attempt at a partition."""
        return AttemptWriter(self._connect(self._options.metadata), self._options, place)

    def _committer(self) -> Committer:
        return Committer(self._connect(self._options.metadata), self._options)


class FastbkBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame to a stream: all of it becomes visible by one change of metadata."""

    def __init__(self, options: WriteOptions, connect: Connect = client_of) -> None:
        """Check everything that can be. Without `idempotencyKey` the write has a key that was never used."""
        super().__init__(options, connect)
        self.key = f"spark/{options.key}" if options.key else f"{ONCE}{secrets.token_hex(8)}"
        self._committer().prepare()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write one partition, in a worker."""
        context = TaskContext.get()
        partition, attempt = (
            (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        )
        place = TaskAttempt(self.key, 0, partition, attempt)
        return self.attempt(place).write(iterator)

    def commit(self, messages: Messages) -> None:
        """Make it visible, on the driver."""
        self._committer().commit(_written(messages), 0)

    def abort(self, messages: Messages) -> None:
        """Delete what was written, on the driver."""
        self._committer().abort(_written(messages), 0, self.key)


class FastbkStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query to a stream; each becomes visible whole, once."""

    def __init__(self, options: WriteOptions, connect: Connect = client_of) -> None:
        """Check everything that can be. Spark makes one for the tasks, and one for each commit."""
        super().__init__(options, connect)
        prepare_patiently(self._committer)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write one partition of one batch, in a worker."""
        return self.attempt(_place_of_task()).write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Make a batch visible, on the driver; a batch that is visible already stays as it is."""
        self._committer().commit(_written(messages), batchId)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Delete what was written for a batch, unless it is visible, on the driver."""
        self._committer().abort(_written(messages), batchId)


def _place_of_task() -> TaskAttempt:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    if context is None or not query or not batch:
        raise ConfigError(
            "Spark does not say which query and batch this is: fastbk's sink needs PySpark 4.2 or newer"
        )
    return TaskAttempt(f"spark/{query}", int(batch), context.partitionId(), context.attemptNumber())


def _written(messages: Messages) -> list[CommitMessage | None]:
    return [cast("CommitMessage | None", message) for message in messages]


# --- the driver's part ----------------------------------------------------------------------------
#
# What the driver does: checks before any task starts, the one change that makes a batch visible,
# and what is swept.
#
# Every call may be repeated, by this driver or the next one, after any of it: attaching is keyed by
# query and batch, and what was attached is no draft any more, so that sweeping cannot reach it.


COMMIT_S = 60.0
"""How long a commit that others overtake is tried again."""
PREPARE_S = 30.0
"""How long metadata is waited for before a streaming query's batch, and before its commit."""
AGAIN_S = 0.05


class Committer:
    """One stream, as the driver of a query sees it."""

    def __init__(self, client: Client, options: WriteOptions) -> None:
        self._client = client
        self._options = options
        self._stream = stream_of(client, options.stream)

    def prepare(self) -> None:
        """Check what can be known before any task starts; make the stream if that was asked for.

        Raises ConfigError where the stream is not there or its policy does not fit, WrongStreamKind, StreamBusy,
        MetadataUnavailable.
        """
        namespace, name = split_stream_path(self._options.stream)
        if self._options.create:
            self._client.namespace(namespace).create(exist_ok=True)
            self._client.namespace(namespace).create_stream(name, exist_ok=True)
        try:
            info = self._stream.info()
            self._options.check_policy(self._stream.effective_policy())
        except StreamNotFound as error:
            raise ConfigError(
                f"there is no stream {self._options.stream}: make it by fastbk stream create {self._options.stream},"
                ' or have it made: .option("create", "true")'
            ) from error
        if info.is_sealed:
            raise ConfigError(f"stream {info.path} is sealed: nothing can be written to it")
        if info.kind == "producers":
            return  # each task appends beside everybody else
        if info.open_segments and not self._options.is_fencing:
            raise self._busy(info.owner)

    def _busy(self, owner: str = "") -> StreamBusy:
        whose = f" (made by {owner})" if owner else ""
        return StreamBusy(
            f"stream {self._options.stream} has an open segment{whose}: a writer has it, or died with it. Close that"
            ' writer, or let each commit end it: .option("onWriter", "fence")'
        )

    def commit(self, messages: Iterable[CommitMessage | None], batch: int) -> None:
        """Make a batch visible, all of it in the order of partitions, once; then sweep what it leaves.

        Raises StreamBusy, ConfigError beyond as many ledgers as can be attached at once and for a batch that is older
        than the last one, DraftGone when another driver of this query gave up what was written, and what metadata
        raises. What is not known to be attached may be committed again.
        """
        received = sorted(_received(messages), key=lambda one: one.place.partition)
        if not received:
            return
        key = received[0].place.key
        winners = [one for one in received if one.draft is not None]
        count = sum(len(winner.ledgers) for winner in winners)
        if count > LEDGERS_MAX:
            raise ConfigError(
                f"the batch has {count} ledgers, and {LEDGERS_MAX} can become visible at once: write fewer partitions,"
                ' as by .coalesce(64), or larger ledgers, by .option("rollBytes", "1GiB")'
            )
        if winners or any(one.was_attached for one in received):
            self._attach(winners, key, batch)
        self._sweep(key, batch)

    def _attach(self, winners: Sequence[CommitMessage], key: str, batch: int) -> None:
        # Another query's commit, or a writer, may take the stream over between two steps of ours; or an answer is lost,
        # and the next look tells what became of it.
        _patiently(lambda: self._attach_once(winners, key, batch), COMMIT_S)
        records = sum(winner.records for winner in winners)
        _log.info("spark.committed", stream=self._options.stream, batch=batch, records=records)

    def _attach_once(self, winners: Sequence[CommitMessage], key: str, batch: int) -> None:
        drafts = self._drafts_of(winners)
        attached = self._stream.attached_number(key)
        if batch < attached:
            raise _older(key, batch, attached, self._options.stream)
        if drafts and batch > attached:
            try:
                self._stream.attach_drafts(drafts, batch, is_fencing=self._options.is_fencing)
            except StreamBusy as error:
                raise self._busy() from error

    def _drafts_of(self, winners: Sequence[CommitMessage]) -> list[Draft]:
        """Return the winners' drafts as they are now, none where they were attached. Raises DraftGone."""
        known = {draft.name: draft for draft in self._stream.drafts()}
        found = [known.get(winner.draft or "") for winner in winners]
        drafts = [draft for draft in found if draft is not None and not draft.is_given_up]
        if [draft.ledgers for draft in drafts] == [winner.ledgers for winner in winners]:
            return drafts
        batch, key = winners[0].place.batch, winners[0].place.key
        if batch <= self._stream.attached_number(key):
            return []
        raise DraftGone(
            f"batch {batch} of {key} cannot be committed: another driver of this query gave its ledgers up"
        )

    def abort(
        self, messages: Iterable[CommitMessage | None], batch: int, key: str | None = None
    ) -> None:
        """Give up what this batch has written, unless it was attached. `key`: where it is known without messages.

        Where every task failed a streaming query's key is not known here: its next commit sweeps.
        """
        key = next((one.place.key for one in _received(messages)), key)
        if key is not None:
            self._sweep(key, batch)

    def _sweep(self, key: str, batch: int) -> None:
        """Give up the drafts of this batch, and of those before it; what cannot be done now the next commit does."""
        try:
            some = [
                draft
                for draft in self._stream.drafts()
                if draft.key == key and draft.number <= batch
            ]
            self._stream.give_up_drafts(some)
        except Error as error:
            _log.warning("spark.sweep_waits", stream=self._options.stream, reason=str(error))


def _older(key: str, batch: int, newest: int, stream: str) -> ConfigError:
    """Return the error of a batch before the last one that is visible.

    Spark runs nothing but the last batch again. Whoever comes with an older one has lost what the checkpoint said
    since then, so its rows need not be those that the number stands for: passing them by would lose them.
    """
    return ConfigError(
        f"batch {batch} of {key} comes after batch {newest}, which is in {stream} already: the query's checkpoint is"
        " an older copy, or another driver of it goes on. Stop all but one; with an older checkpoint begin anew, with"
        " another checkpointLocation and startingOffsets behind what was written"
    )


def prepare_patiently(made: Callable[[], Committer]) -> None:
    """Check a streaming query's sink, which Spark does with each batch and each commit: metadata may be away then."""
    _patiently(lambda: made().prepare(), PREPARE_S)


def _patiently(act: Callable[[], None], limit_s: float) -> None:
    """Do it; again, for so long, where others were faster or metadata is away."""
    retry = Retry(AGAIN_S, 1.0, limit_s)
    while True:
        try:
            return act()
        except (MetadataConflict, MetadataUnavailable) as error:
            time.sleep(retry.pause_s(error))


def _received(messages: Iterable[CommitMessage | None]) -> list[CommitMessage]:
    return [message for message in messages if message is not None]


# --- one attempt of a task -------------------------------------------------------------------------
#
# Nothing of it is visible until the driver attaches the draft. An attempt that dies leaves its
# draft to the driver. One that goes on after its batch was decided can neither name another ledger
# nor have one attached.

ROLL_BYTES = 256 * 1024 * 1024
"""Where the stream's policy rolls by age alone."""
BOOKIES_S = 30.0
"""How long an attempt waits for the bookies of its next ledger: a bookie that is started again is back by then.

An attempt that fails is begun again at once: those of Spark's default, four, are used up before that.
"""
BOOKIES_AGAIN_S = 0.1
BOOKIES_AGAIN_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Which attempt of which task it is."""

    key: str
    """What its ledgers are attached under: names the query, and no other."""
    batch: int
    partition: int
    attempt: int

    @property
    def label(self) -> str:
        """What a draft is called by, for people."""
        return f"{self.partition}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class CommitMessage(WriterCommitMessage):
    """What an attempt tells the driver."""

    place: TaskAttempt
    draft: str | None
    """Its draft's name; None: there were no rows, or the batch was attached before."""
    ledgers: tuple[int, ...] = ()
    records: int = 0
    size_bytes: int = 0
    was_attached: bool = False
    """The batch was attached before: nothing was written."""


def stream_of(client: Client, path: str) -> SyncStream:
    """Return the stream by its path."""
    namespace, name = split_stream_path(path)
    return client.namespace(namespace).stream(name)


class AttemptWriter:
    """One attempt, in a worker."""

    def __init__(self, client: Client, options: WriteOptions, place: TaskAttempt) -> None:
        self._client = client
        self._options = options
        self._place = place
        self._stream = stream_of(client, options.stream)
        self._policy: StreamPolicy | None = None
        self._draft: Draft | None = None
        self._open: EntryWriter | None = None
        self._records = 0
        self._size_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Write all rows; return once they are durable and their ledgers closed.

        Raises what writing raises; what was written is given up then, at once if that can be, else by the driver.
        """
        try:
            if self._stream.info().kind == "producers":
                return self._produce(batches)
            return self._write(batches)
        except BaseException:
            if self._draft is not None:
                with suppress(Error):
                    self._stream.give_up_drafts([self._draft])
            raise

    def _write(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        place, was_attached = self._place, False
        for batch in batches:
            if batch.num_rows == 0 or was_attached:
                continue  # Spark wants all batches to be taken
            if self._draft is None:
                self._draft = self._stream.begin_draft(place.key, place.batch, place.label)
                was_attached = self._draft is None
                if was_attached:
                    continue
            self._write_batch(batch)
        self._close()
        if self._draft is None:
            return CommitMessage(place, None, was_attached=was_attached)
        ledgers = self._draft.ledgers
        return CommitMessage(place, self._draft.name, ledgers, self._records, self._size_bytes)

    def _produce(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Append all rows by a producer of this query and partition, whose numbers are those of batch and row.

        So a later attempt leaves out what an earlier one appended, and fences it. Rows are visible one by one.
        """
        place, columns = self._place, self._options.columns
        number = place.batch << ROW_BITS
        with self._stream.producer(producer_name(place)) as producer:
            if producer.last_number >> ROW_BITS > place.batch:
                raise _older(
                    place.key, place.batch, producer.last_number >> ROW_BITS, self._stream.path
                )
            for batch in batches:
                if batch.num_rows:
                    table_of(batch, columns)  # it refuses what can be no records
                for value, key, headers in _rows_of(batch, columns):
                    if number > producer.last_number:
                        producer.ready()
                        producer.append_nowait(value, key=key, headers=headers, number=number)
                        self._records += 1
                        self._size_bytes += len(value)
                    number += 1
            producer.flush()
        return CommitMessage(place, None, (), self._records, self._size_bytes)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        table, row = table_of(batch, self._options.columns), 0
        policy = self._known_policy()
        roll_bytes = self._options.roll_bytes or policy.roll_bytes or ROLL_BYTES
        while row < table.count:
            if self._open is None:
                self._open = self._create(policy)
            row = self._open.write(table, row)
            if self._open.size_bytes >= roll_bytes:
                self._close()

    def _known_policy(self) -> StreamPolicy:
        if self._policy is None:
            self._policy = self._stream.effective_policy()
        return self._policy

    def _create(self, policy: StreamPolicy) -> EntryWriter:
        """Name the draft's next ledger, then create it."""
        assert self._draft is not None
        ledger_id, self._draft = self._stream.draw_ledger(self._draft)
        ledger = self._when_bookies_are_there(policy, ledger_id)
        compression = self._options.compression or policy.compression
        return EntryWriter(ledger, CODECS[compression], self._options.entry_bytes)  # type: ignore[index]

    def _when_bookies_are_there(self, policy: StreamPolicy, ledger_id: int) -> LedgerWriter:
        assert self._draft is not None
        namespace, _ = split_stream_path(self._options.stream)
        retry = Retry(BOOKIES_AGAIN_S, BOOKIES_AGAIN_S_MAX, BOOKIES_S)
        while True:
            try:
                return self._client.create_ledger(
                    *self._options.quorums_with(policy),
                    policy.digest,
                    metadata=custom_of_stream(self._draft.stream_id, namespace),
                    ledger_id=ledger_id,
                    placement=policy.placement_for(self._options.placement),
                    allow_missing_bookies=policy.allow_missing_bookies,
                )
            except NotEnoughBookies as error:
                time.sleep(retry.pause_s(error))

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._records += self._open.records
            self._size_bytes += self._open.size_bytes
            self._open = None


# --- the entries of one ledger ---------------------------------------------------------------------

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a record with its key and headers, which a stream's writer takes by default."""
EPOCH = 0
"""The epoch of entries that no writer of the stream wrote."""


ROW_BITS = 32
"""Of a record's number, where producers append: its row within batch and partition. The batch is above."""


def producer_name(place: TaskAttempt) -> str:
    """Return the name of the producer of a query's partition: the same for all attempts and batches."""
    query = hashlib.blake2b(place.key.encode(), digest_size=16).hexdigest()
    return f"spark-{query}-{place.partition}"


def _rows_of(
    batch: pa.RecordBatch, columns: Columns
) -> Iterator[tuple[bytes, bytes | None, Sequence[tuple[str, bytes]]]]:
    """Yield value, key and headers of each row."""

    def items(name: str | None) -> Iterable[Any]:
        return repeat(None) if name is None else _item_array(batch.column(name)).to_pylist()

    def raw(item: bytes | str | None) -> bytes | None:
        return item.encode() if isinstance(item, str) else item

    lists: Iterable[Any] = repeat(None)
    if columns.headers is not None:
        lists = batch.column(columns.headers).to_pylist()
    rows = zip(batch.column(columns.value).to_pylist(), items(columns.key), lists, strict=False)
    for value, key, headers in rows:
        pairs = [(header["key"], header["value"]) for header in headers or ()]
        yield raw(value) or b"", raw(key), pairs


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns are what of a record; None: records have none."""

    value: str = "value"
    key: str | None = None
    headers: str | None = None


def table_of(batch: pa.RecordBatch, columns: Columns) -> Table:
    """Return a batch's rows as C takes them, without copies where the types are Spark's own. One row at least.

    Raises ConfigError for a value that is null, and for headers that are null or have a null name; ProtocolError for a
    batch whose buffers are not what its columns say.
    """
    values = _item_array(_checked(batch, columns.value))
    if values.null_count:
        raise ConfigError(
            f"column {columns.value} has {values.null_count} nulls, and a record has a value: leave those rows out,"
            f' as by .where("{columns.value} is not null")'
        )
    keys = None if columns.key is None else _column(_item_array(_checked(batch, columns.key)))
    if columns.headers is None:
        return Table(_column(values), keys)
    lists = _checked(batch, columns.headers)
    if lists.type != HEADERS:
        lists = lists.cast(HEADERS)
    if len(lists.values) == 0:
        return Table(_column(values), keys)
    names, header_values = lists.values.field(0), lists.values.field(1)
    if lists.values.null_count or names.null_count:
        raise ConfigError(f"column {columns.headers} has headers that are null, or without a key")
    validity, offsets = lists.buffers()[:2]
    headers = Column(offsets, None, validity, lists.offset, len(lists))
    return Table(_column(values), keys, headers, _column(names), _column(header_values))


def _checked(batch: pa.RecordBatch, name: str) -> Any:  # noqa: ANN401 -- pyarrow has no types
    """Return a column whose memory may be read. Raises ProtocolError.

    Arrow believes what a sender says of lengths and offsets. C checks each offset of values and keys again; what Arrow
    itself goes through, and names of headers, which have to be text, are checked whole.
    """
    array = batch.column(name)
    try:
        array.validate(full=not _is_plain(array.type))
    except pa.ArrowInvalid as error:
        raise ProtocolError(
            f"column {name} of a batch of {batch.num_rows} rows makes no sense: {error}"
        ) from error
    return array


def _is_plain(kind: Any) -> bool:  # noqa: ANN401 -- pyarrow has no types
    """Return whether a column's items are taken as they lie there: binary or string with 32-bit offsets."""
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _item_array(array: Any) -> Any:  # noqa: ANN401 -- pyarrow has no types
    """Return an array of binary or string with 32-bit offsets."""
    if _is_plain(array.type):
        return array
    return array.cast(pa.binary())


def _column(array: Any) -> Column:  # noqa: ANN401 -- pyarrow has no types
    validity, offsets, data = array.buffers()
    if offsets is None:  # of no items
        return Column(bytes(4), None, None, 0, 0)
    return Column(offsets, data, validity, array.offset, len(array))


class EntryWriter:
    """Writes one ledger as a stream's segment: entries, and at the end the index behind them.

    Attributes:
        records, size_bytes: of all that was sent.
    """

    def __init__(self, ledger: LedgerWriter, codec: int, entry_bytes: int) -> None:
        """`codec`: how bodies are compressed; `entry_bytes`: records that are packed into one entry, before that."""
        self.records = 0
        self.size_bytes = 0
        self._ledger = ledger
        self._codec = codec
        self._entry_bytes = entry_bytes
        self._out = bytearray(HEAD_BYTES + entry_bytes + RECORD_OVERHEAD_BYTES_MAX)
        self._index = IndexBuilder()
        self._entries = 0
        self._time_us = 0

    def write(self, table: Table, first: int) -> int:
        """Send one entry of rows from `first` on; return which row is next. Waits for room.

        Raises RecordTooLarge, and what ended the ledger's writer.
        """
        self._time_us = max(self._time_us, time.time_ns() // 1000)
        size, taken = self._gathered(table, first)
        entry = memoryview(self._out)[:size]
        if self._codec:
            self._send(compressed(bytearray(entry), self._codec))
        else:
            self._send(entry)
        entry.release()
        self._index.add(self._entries, self.records, self.records + 1, self._time_us)
        self._entries += 1
        self.records += taken
        return first + taken

    def _gathered(self, table: Table, first: int) -> tuple[int, int]:
        arguments = (EPOCH, self.records, self._time_us, first, self._entry_bytes)
        try:
            return table.gather(*arguments, self._out)
        except RecordTooLarge:
            whole = HEAD_BYTES + RECORD_BYTES_MAX + RECORD_OVERHEAD_BYTES_MAX
            if len(self._out) >= whole:
                raise RecordTooLarge(
                    f"a record has more than {RECORD_BYTES_MAX} bytes with its key and headers"
                ) from None
            self._out = bytearray(whole)
            return table.gather(*arguments, self._out)

    def _send(self, entry: bytes | bytearray | memoryview) -> None:
        while True:
            try:
                self._ledger.append_nowait(entry)
            except BufferFull:
                self._ledger.ready()
            else:
                break
        self.size_bytes += len(entry)

    def close(self) -> None:
        """Write the index and close the ledger: all that was sent is acknowledged then. Raises what ended it."""
        entry = self._index.entry(EPOCH, self.records, self.records, self._time_us)
        self._send(entry)
        self._ledger.close()


# --- the options of a write ------------------------------------------------------------------------

WRITE = (
    *COMMON,
    Option("stream", "shop/orders", ("topic", "path")),
    Option("create", "true"),
    Option("onWriter", "fence"),
    Option("valueColumn", "payload"),
    Option("keyColumn", "customer"),
    Option("headersColumn", "headers"),
    Option("compression", "zstd"),
    Option("ensemble", "3"),
    Option("writeQuorum", "3"),
    Option("ackQuorum", "2"),
    Option("placement", '{"policy":"rack","enforce":true}'),
    Option("rollBytes", "256MiB"),
    Option("entryBytes", "256KiB"),
)
BATCH_WRITE = (*WRITE, Option("idempotencyKey", "load-2026-01-31"))
STREAM_WRITE = (*WRITE, Option("checkpointLocation", "/checkpoints/orders"))
ENTRY_BYTES = 256 * 1024
ENTRY_BYTES_MAX = 2 * 1024 * 1024
OF_THE_SOURCE = ("stream", "partition", "segment", "entry", "slot", "seq", "txid", "timestamp")
"""Columns of what was read from a stream: they say where it was, and are given anew."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What is to be written, where and how. None: as the stream's policy says."""

    metadata: str | None
    stream: str
    columns: Columns
    create: bool = False
    is_fencing: bool = False
    compression: str | None = None
    quorums: Mapping[str, int] = field(default_factory=dict)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """It narrows the stream's policy."""
    roll_bytes: int | None = None
    entry_bytes: int = ENTRY_BYTES
    key: str | None = None
    """The key of a batch write: what makes its repetition do nothing."""

    def check_policy(self, policy: StreamPolicy) -> None:
        """Raise ConfigError for quorums or a placement that do not fit together with those of the policy."""
        check_quorums(*self.quorums_with(policy))
        policy.placement_for(self.placement)

    def quorums_with(self, policy: StreamPolicy) -> tuple[int, int, int]:
        """Return ensemble, write quorum and ack quorum of a ledger."""
        mine = self.quorums
        return (
            mine.get("ensemble", policy.ensemble),
            mine.get("writeQuorum", policy.write_quorum),
            mine.get("ackQuorum", policy.ack_quorum),
        )


def write_options(
    given: Mapping[str, str], schema: StructType, *, streaming: bool, overwrite: bool
) -> WriteOptions:
    """Return what the options of a write say. Raises ConfigError, with the right form of what is wrong."""
    if overwrite:
        raise ConfigError(
            'a stream is appended to: .mode("append") for batches, .outputMode("append") for streaming'
        )
    table = STREAM_WRITE if streaming else BATCH_WRITE
    values = Values(known(given, table, "streaming writes" if streaming else "writes"), table)
    stream = values.text("stream")
    if not stream:
        raise ConfigError('say where to write to: .option("stream", "shop/orders")')
    split_stream_path(stream)
    entry_bytes = values.size("entryBytes", ENTRY_BYTES) or ENTRY_BYTES
    if entry_bytes > ENTRY_BYTES_MAX:
        raise values.error("entryBytes", f"more than {ENTRY_BYTES_MAX}")
    compression = values.text("compression")
    if compression is not None and compression not in CODECS:
        raise values.error("compression", f"none of {', '.join(CODECS)}")
    key = values.text("idempotencyKey")
    if key == "":
        raise values.error(
            "idempotencyKey", "empty, and a write that is repeated would be there twice"
        )
    if key is not None:
        check_key(f"spark/{key}")
    quorums = {
        name: number
        for name in ("ensemble", "writeQuorum", "ackQuorum")
        if (number := values.number(name)) is not None
    }
    placement = values.text("placement")
    return WriteOptions(
        # A worker's environment need not be the driver's.
        uri_or_default(values.text("metadata"), 'give .option("metadata", ...)'),
        stream,
        _columns(values, schema),
        create=values.flag("create", False),
        is_fencing=values.choice("onWriter", "refuse", "fence") == "fence",
        compression=compression,
        quorums=quorums,
        placement=PlacementConfig() if placement is None else decode_rule(placement.encode()),
        roll_bytes=values.size("rollBytes"),
        entry_bytes=entry_bytes,
        key=key,
    )


def _columns(values: Values, schema: StructType) -> Columns:
    types = {one.name: one.dataType for one in schema.fields}
    if len(types) != len(schema.fields):
        twice = next(name for name in types if schema.names.count(name) > 1)
        raise ConfigError(f"there are several columns {twice}: leave all but one of them out")
    value = values.text("valueColumn")
    value = "value" if value is None else value
    if value not in types:
        raise ConfigError(
            f"there is no column {value} to write, among {', '.join(types)}: make one,"
            ' as by .select(to_json(struct("*")).alias("value")), or name another: .option("valueColumn", "payload")'
        )
    columns = Columns(
        value,
        _optional(values, types, "keyColumn", "key"),
        _optional(values, types, "headersColumn", "headers"),
    )
    for name in (columns.value, columns.key):
        if name is not None and not isinstance(types[name], BinaryType | StringType):
            raise ConfigError(
                f"column {name} is {types[name].simpleString()}, and values and keys are binary or string:"
                f' cast it, as by .withColumn("{name}", col("{name}").cast("string"))'
            )
    if columns.headers is not None and not _is_headers(types[columns.headers]):
        raise ConfigError(
            f"column {columns.headers} is {types[columns.headers].simpleString()},"
            " and headers are array<struct<key:string,value:binary>>"
        )
    taken = {columns.value, columns.key, columns.headers, *OF_THE_SOURCE}
    lost = [name for name in types if name not in taken]
    if lost:
        raise ConfigError(
            f"columns {', '.join(lost)} would be lost: leave them out, or put them into the value,"
            ' as by .select(to_json(struct("*")).alias("value"))'
        )
    return columns


def _optional(
    values: Values, types: Mapping[str, DataType], option: str, default: str
) -> str | None:
    name = values.text(option)
    if name is None:
        return default if default in types else None
    if name not in types:
        raise values.error(option, f"there is no such column among {', '.join(types)}")
    return name


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = [(one.name, type(one.dataType)) for one in given.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
