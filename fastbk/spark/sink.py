"""What Spark calls to write: the batch and the streaming writer, both exactly once. See README.md here.

Decision 83.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from fastbk.errors import (
    ConfigError,
    DraftGone,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    StreamBusy,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import Retry
from fastbk.spark.sink_options import WriteOptions
from fastbk.spark.task_attempt import AttemptWriter, CommitMessage, TaskAttempt, stream_of
from fastbk.spark.worker_client import client_of
from fastbk.stream.chain import ONCE
from fastbk.stream.drafts import LEDGERS_MAX, Draft
from fastbk.stream.paths import split_stream_path
from fastbk.sync import Client

if TYPE_CHECKING:
    import pyarrow as pa

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

        Raises ConfigError where the stream is not there or its policy does not fit, StreamBusy, MetadataUnavailable.
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
            raise self._older(key, batch, attached)
        if drafts and batch > attached:
            try:
                self._stream.attach_drafts(drafts, batch, is_fencing=self._options.is_fencing)
            except StreamBusy as error:
                raise self._busy() from error

    def _older(self, key: str, batch: int, attached: int) -> ConfigError:
        """Return the error of a batch before the last one that is visible.

        Spark runs nothing but the last batch again. Whoever comes with an older one has lost what the checkpoint said
        since then, so its rows need not be those that the number stands for: passing them by would lose them.
        """
        return ConfigError(
            f"batch {batch} of {key} comes after batch {attached}, which is in {self._options.stream} already: the"
            " query's checkpoint is an older copy, or another driver of it goes on. Stop all but one; with an older"
            " checkpoint begin anew, with another checkpointLocation and startingOffsets behind what was written"
        )

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
