"""What the driver does: checks before any task starts, the one change that makes a batch visible, and what is swept.

Every call may be repeated, by this driver or the next one, after any of it: attaching is keyed by query and batch, and
what was attached is no draft any more, so that sweeping cannot reach it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

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
from fastbk.spark.task_attempt import CommitMessage, stream_of
from fastbk.stream.chain.drafts import LEDGERS_MAX, Draft
from fastbk.stream.paths import split_stream_path
from fastbk.sync import Client

_log = LibraryLog("fastbk.spark")

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
        count = sum(len(one.ledgers) for one in winners)
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
        records = sum(one.records for one in winners)
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
        found = [known.get(one.draft or "") for one in winners]
        drafts = [draft for draft in found if draft is not None and not draft.is_given_up]
        if [draft.ledgers for draft in drafts] == [one.ledgers for one in winners]:
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
            some = [one for one in self._stream.drafts() if one.key == key and one.number <= batch]
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
    return [one for one in messages if one is not None]
