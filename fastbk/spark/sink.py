"""What Spark calls to write: the batch and the streaming writer, both exactly once. See README.md here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from fastbk.errors import ConfigError
from fastbk.spark.commit import Committer, prepare_patiently
from fastbk.spark.sink_options import WriteOptions
from fastbk.spark.task_attempt import AttemptWriter, CommitMessage, TaskAttempt
from fastbk.spark.worker_client import client_of
from fastbk.stream.chain.chain import ONCE

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbk.sync import Client

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
    return [cast("CommitMessage | None", one) for one in messages]
