"""What one attempt of a task does: it writes its rows to ledgers of its own, noted as a draft before they exist.

Nothing of it is visible until the driver attaches the draft (`sink.py`). An attempt that dies leaves its draft to the
driver; one that goes on after its batch was decided can neither name another ledger nor have one attached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ledger import custom_of_stream
from fastbk.retry import Retry
from fastbk.spark.entry_writer import EntryWriter, table_of
from fastbk.spark.sink_options import WriteOptions
from fastbk.stream.drafts import Draft
from fastbk.stream.paths import split_stream_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.records import CODECS

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbk.stream.sync import SyncStream
    from fastbk.sync import Client, LedgerWriter

ROLL_BYTES = 256 * 1024 * 1024
"""Where the stream's policy rolls by age alone."""
BOOKIES_S = 30.0
"""How long an attempt waits for the bookies of its next ledger: a bookie that is started again is back by then.

An attempt that fails is begun again at once: those of Spark's default, four, are used up before that.
"""
AGAIN_S = 0.1
AGAIN_S_MAX = 1.0


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
        retry = Retry(AGAIN_S, AGAIN_S_MAX, BOOKIES_S)
        while True:
            try:
                return self._client.create_ledger(
                    *self._options.quorums_with(policy),
                    policy.digest,
                    metadata=custom_of_stream(self._draft.stream_id, namespace),
                    ledger_id=ledger_id,
                    placement=policy.placement(),
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
