"""The blocking reader of one ledger: the reading procedures as calls and iterators. Made by `fastbk.sync.Client`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

from fastbk.client.blocking import Owner
from fastbk.client.blocking_runner import BlockingIo, BlockingRunner, run_blocking
from fastbk.client.entries import Batch, Entry, batches_of
from fastbk.client.preferring import Preference
from fastbk.client.rules import pacing_of, read_options
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    MetadataUnavailable,
    NoSuchEntry,
    NotEnoughBookies,
)
from fastbk.model.ids import EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.option_checks import checked_timeout
from fastbk.replication.actions import Found
from fastbk.replication.lac_procedures import ReadLastConfirmed, TryReadLastConfirmed
from fastbk.replication.polling import LacNews, PollLac, PollOptions
from fastbk.replication.reading import ReadRange

_POLL_S_MAX = 0.1


class LedgerReader:
    """Reads one ledger; made by `Client.open_ledger`. The rules are the asyncio reader's."""

    def __init__(self, client: Owner, metadata: LedgerMetadata, io: BlockingIo) -> None:
        self.ledger_id = io.ledger_id
        self.metadata = metadata
        self._client = client
        self._config = client.config
        self._io = io
        self._lac: EntryId = metadata.last_entry_id
        self._prefer = Preference(
            client.reactor.known,
            random.randrange(1 << 16),
            is_striped=metadata.ensemble_size != metadata.write_quorum,
        )
        self._replicas_skipped = 0
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self.metadata.is_closed

    @property
    def last_known(self) -> EntryId:
        """The highest entry that this reader knows to be acknowledged; no I/O."""
        return self._lac

    def last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask the bookies for the last acknowledged entry, -1 if there is none."""
        return self._ask_lac(ReadLastConfirmed, timeout)

    def try_last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask all bookies once and return the best that is proven, however few answer."""
        return self._ask_lac(TryReadLastConfirmed, timeout)

    def _ask_lac(self, kind: type[ReadLastConfirmed], timeout: float | None) -> EntryId:
        self._check()
        checked_timeout(timeout)
        with self._client.turn():
            if not self.metadata.is_closed:
                self._refresh()
            if not self.metadata.is_closed:
                asking = kind(self.ledger_id, self.metadata, pacing_of(self._config, timeout))
                self._lac = max(self._lac, run_blocking(asking, self._io))
        return self._lac

    def _refresh(self) -> None:
        """Read the metadata: the writer may have changed its ensemble, or closed. Without it, what is known counts."""
        with suppress(MetadataUnavailable):
            self._see(self._io.store().read_ledger(self.ledger_id).metadata)

    def _see(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        if metadata.is_closed:
            self._lac = metadata.last_entry_id

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield the entries first..last in order; `last` None: up to the last acknowledged one known now."""
        for batch in self.read_batches(first, last):
            yield from batch

    def read_batches(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Batch]:
        """Like `read`, a Batch of consecutive entries at a time."""
        self._check()
        if first < 0 or (last is not None and last < first):
            raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
        known = self._lac
        if (last is None or last > known) and not self.metadata.is_closed:
            known = self.last_add_confirmed()
        if last is not None and last > known:
            raise NoSuchEntry(
                f"ledger {self.ledger_id}: entry {last} is beyond the last acknowledged one, {known};"
                " wait for it with tail(), or use read_unconfirmed()",
                ledger_id=self.ledger_id,
                entry_id=last,
            )
        for runs in self._found(first, known if last is None else last):
            yield from batches_of(self.ledger_id, self.metadata, runs)

    def _found(
        self,
        first: EntryId,
        last: EntryId,
        *,
        timeout: float | None = None,
        is_unconfirmed: bool = False,
    ) -> Iterator[list[Sequence[Found]]]:
        """Yield what is found of a range, in order, as it came. Whoever iterates does not hold the client meanwhile."""
        options = read_options(self._config, timeout, is_unconfirmed=is_unconfirmed)
        order = self._prefer.at(time.monotonic())
        reading = ReadRange(self.ledger_id, self.metadata, first, last, options, order)
        runner = BlockingRunner(reading, self._io)
        try:
            with self._client.turn():
                runner.start()
            while True:
                runs: list[Sequence[Found]] = []

                def take() -> bool:
                    runs.extend(reading.take_runs(time.monotonic()))  # noqa: B023
                    runner.step()
                    return bool(runs) or reading.is_finished  # noqa: B023

                with self._client.turn():
                    runner.run_until(take)
                if not runs:
                    reading.value()
                    return
                self._lac = max(self._lac, runs[-1][-1].lac)
                yield runs
        finally:
            runner.stop()
            self._replicas_skipped += reading.skipped
            self._prefer.were_slow(reading.slow)
            if not self.metadata.is_closed:
                self._see(reading.metadata)

    def read_unconfirmed(
        self, first: EntryId, last: EntryId, *, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries first..last that bookies hold, up to the first that is missing."""
        self._check()
        if not 0 <= first <= last:
            raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
        entries: list[Entry] = []
        for runs in self._found(first, last, timeout=timeout, is_unconfirmed=True):
            entries += Batch(self.ledger_id, *runs)
        return entries

    def read_last(self, *, timeout: float | None = None) -> Entry:
        """Return the last acknowledged entry; NoSuchEntry in an empty ledger."""
        last = self.last_add_confirmed(timeout=timeout)
        if last < 0:
            raise NoSuchEntry(f"ledger {self.ledger_id} has no entries", ledger_id=self.ledger_id)
        (entry,) = self.read(last, last)
        return entry

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from `first` on as they are acknowledged; ends after the last one of a closed ledger."""
        for batch in self.tail_batches(first):
            yield from batch

    def tail_batches(self, first: EntryId = 0) -> Iterator[Batch]:
        """Like `tail`, a Batch of consecutive entries at a time: whatever was acknowledged since the last one."""
        position = first
        heard_s = time.monotonic()
        while True:
            self._check()
            if self._lac >= position:
                for batch in self.read_batches(position, self._lac):
                    position = batch.last_entry_id + 1
                    yield batch
                heard_s = time.monotonic()
                continue
            if self.metadata.is_closed:
                return
            try:
                news = self._poll(position)
            except NotEnoughBookies:
                if time.monotonic() - heard_s > self._config.read_timeout:
                    raise
                continue
            heard_s = time.monotonic()
            if news.entry is not None:
                entry = news.entry._replace(data=memoryview(news.entry.data))
                yield Batch(self.ledger_id, [entry])
                position += 1

    def _poll(self, position: EntryId) -> LacNews:
        """Wait at the bookies for the LAC to reach `position`: shortly, since other callers of the client wait, too."""
        options = PollOptions(
            wait_s=min(self._config.poll_interval, _POLL_S_MAX), pacing=pacing_of(self._config)
        )
        with self._client.turn():
            self._refresh()
            order = self._prefer.at(time.monotonic())
            poll = PollLac(self.ledger_id, self.metadata, position, options, order)
            news = run_blocking(poll, self._io)
        self._lac = max(self._lac, news.lac)
        if news.slow is not None:
            self._prefer.were_slow([news.slow])
        return news

    def stats(self) -> dict[str, int]:
        """Return this reader's figures."""
        return {"last_known": self._lac, "replicas_skipped": self._replicas_skipped}

    def _check(self) -> None:
        if self._closed:
            raise ClientClosed(
                "this reader is closed: open the ledger again", ledger_id=self.ledger_id
            )

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
