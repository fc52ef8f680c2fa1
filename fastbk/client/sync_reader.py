"""The reader of `fastbk.sync`: the asyncio reader on the loop's thread.

Decision 148.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastbk.client.entries import Batch, Entry
from fastbk.client.ledger_reader import LedgerReader as AsyncLedgerReader
from fastbk.client.ledger_reader import LedgerReaderStats
from fastbk.client.loop_thread import (
    ElementFetcher,
    ElementIterator,
    ListFetcher,
    LoopIterator,
    LoopThread,
    facade_text,
)
from fastbk.model.ids import EntryId
from fastbk.model.ledger import LedgerMetadata


class LedgerReader:
    """Reads one ledger; made by `fastbk.sync.Client.open_ledger`. See the asyncio reader."""

    def __init__(self, thread: LoopThread[Any], inner: AsyncLedgerReader) -> None:
        self.ledger_id = inner.ledger_id
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this reader last read it."""
        return self._inner.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self._inner.is_closed

    @property
    def last_known(self) -> EntryId:
        """The highest entry that this reader knows to be acknowledged; no I/O."""
        return self._inner.last_known

    def last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask the bookies for the last acknowledged entry, -1 if there is none."""
        return self._thread.call(lambda: self._inner.last_add_confirmed(timeout=timeout))

    def try_last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask all bookies once and return the best that is proven, however few answer."""
        return self._thread.call(lambda: self._inner.try_last_add_confirmed(timeout=timeout))

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield the entries first..last in order; `last` None: up to the last acknowledged one."""
        fetcher: ElementFetcher[Entry] = ElementFetcher(
            lambda: self._inner.found_batches(first, last)
        )
        return ElementIterator(self._thread, fetcher)

    def read_batches(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Batch]:
        """Like `read`, a Batch of consecutive entries at a time. More is fetched meanwhile."""
        fetcher: ListFetcher[Batch] = ListFetcher(lambda: self._inner.found_batches(first, last))
        return LoopIterator(self._thread, fetcher)

    def read_unconfirmed(
        self, first: EntryId, last: EntryId, *, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries first..last that bookies hold, up to the first that is missing."""
        return self._thread.call(lambda: self._inner.read_unconfirmed(first, last, timeout=timeout))

    def read_last(self, *, timeout: float | None = None) -> Entry:
        """Return the last acknowledged entry; NoSuchEntry in an empty ledger."""
        return self._thread.call(lambda: self._inner.read_last(timeout=timeout))

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from `first` on as they are acknowledged, to the end of a closed ledger."""
        fetcher: ElementFetcher[Entry] = ElementFetcher(lambda: self._inner.tailed_batches(first))
        return ElementIterator(self._thread, fetcher)

    def tail_batches(self, first: EntryId = 0) -> Iterator[Batch]:
        """Like `tail`, a Batch of consecutive entries at a time: all that came meanwhile."""
        fetcher: ListFetcher[Batch] = ListFetcher(lambda: self._inner.tailed_batches(first))
        return LoopIterator(self._thread, fetcher)

    def stats(self) -> LedgerReaderStats:
        """Return this reader's figures now."""
        return self._inner.stats()

    def close(self) -> None:
        """Take no more calls. Those of other threads that are under way end with ClientClosed."""
        if self._thread.is_closed is None:
            self._thread.call(self._inner.close, goes_on=True)

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
