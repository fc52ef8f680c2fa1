"""The same client without `await`, for callers that have no event loop: threads, scripts, gevent.

Names and meanings are those of the asyncio client (`fastbk.connect`), and it is the asyncio client
that does the work: all clients of a process share one event loop in a thread
(`fastbk/client/loop_thread.py`). Calls of several threads run side by side. gevent can patch the
thread and its sockets.

Decision 88.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar, Unpack

from fastbk.client.client import CopyRepairs
from fastbk.client.config import ClientConfig, ClientOptions, config_of
from fastbk.client.ledger_reader import LedgerInfo
from fastbk.client.ledger_reader import LedgerReader as AsyncLedgerReader
from fastbk.client.ledger_writer import LedgerWriter as AsyncLedgerWriter
from fastbk.client.loop_thread import LoopThread, blocking, blocking_opening
from fastbk.client.sync import LedgerReader, LedgerWriter, Pending, live_or_last
from fastbk.meta import MetadataStore
from fastbk.meta.uri import given_store, uri_or_default
from fastbk.model.ids import LedgerId
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client as AsyncClient

if TYPE_CHECKING:
    from fastbk.coordination.sync import SyncConfig as Config
    from fastbk.coordination.sync import SyncCounter as Counter
    from fastbk.coordination.sync import SyncElection as Election
    from fastbk.coordination.sync import SyncGuardedWriter as GuardedWriter
    from fastbk.coordination.sync import SyncLease as Lease
    from fastbk.coordination.sync import SyncLock as Lock
    from fastbk.objects.sync_objects import SyncObjectReader as ObjectReader
    from fastbk.objects.sync_objects import SyncObjects as Objects
    from fastbk.objects.sync_objects import SyncObjectWriter as ObjectWriter
    from fastbk.pipelines.sync_pipeline import SyncPipeline as Pipeline
    from fastbk.pipelines.sync_pipeline import sync_pipeline as pipeline
    from fastbk.stream.cursor.sync_cursor import PendingAck
    from fastbk.stream.cursor.sync_cursor import SyncCursor as Cursor
    from fastbk.stream.cursor.sync_cursor import SyncPatternCursor as PatternCursor
    from fastbk.stream.cursor.sync_cursor import SyncPatternReader as PatternReader
    from fastbk.stream.producer.sync_producer import SyncProducer as Producer
    from fastbk.stream.reader.sync_reader import SyncStreamReader as StreamReader
    from fastbk.stream.sync import SyncNamespace as Namespace
    from fastbk.stream.sync import SyncStream as Stream
    from fastbk.stream.sync import SyncStreamWriter as StreamWriter
    from fastbk.stream.sync_appends import PendingRecord

__all__ = [
    "Client", "Config", "Counter", "Cursor", "Election", "GuardedWriter", "Lease", "LedgerReader",
    "LedgerWriter", "Lock", "Namespace", "ObjectReader", "ObjectWriter", "Objects", "PatternCursor",
    "PatternReader", "Pending", "PendingAck", "PendingRecord", "Pipeline", "Producer", "Stream",
    "StreamReader", "StreamWriter", "connect", "pipeline",
]  # fmt: skip
_HOMES = {
    "Namespace": "stream.sync.SyncNamespace", "Stream": "stream.sync.SyncStream",
    "Objects": "objects.sync_objects.SyncObjects",
    "ObjectReader": "objects.sync_objects.SyncObjectReader",
    "ObjectWriter": "objects.sync_objects.SyncObjectWriter",
    "Cursor": "stream.cursor.sync_cursor.SyncCursor",
    "PendingAck": "stream.cursor.sync_cursor.PendingAck",
    "PatternCursor": "stream.cursor.sync_cursor.SyncPatternCursor",
    "PatternReader": "stream.cursor.sync_cursor.SyncPatternReader",
    "StreamReader": "stream.reader.sync_reader.SyncStreamReader",
    "StreamWriter": "stream.sync.SyncStreamWriter",
    "PendingRecord": "stream.sync_appends.PendingRecord",
    "Producer": "stream.producer.sync_producer.SyncProducer",
    "Pipeline": "pipelines.sync_pipeline.SyncPipeline",
    "pipeline": "pipelines.sync_pipeline.sync_pipeline",
    "Config": "coordination.sync.SyncConfig", "Counter": "coordination.sync.SyncCounter",
    "Election": "coordination.sync.SyncElection", "Lease": "coordination.sync.SyncLease",
    "GuardedWriter": "coordination.sync.SyncGuardedWriter", "Lock": "coordination.sync.SyncLock",
}  # fmt: skip

T = TypeVar("T")
_LISTED_AT_ONCE = 256


def _writer(client: Client, inner: AsyncLedgerWriter) -> LedgerWriter:
    explicit_ids = inner.has_explicit_ids
    return LedgerWriter(client._thread, inner, client.config, explicit_ids=explicit_ids)


def _reader(client: Client, inner: AsyncLedgerReader) -> LedgerReader:
    return LedgerReader(client._thread, inner)


class Client:
    """A client of one cluster; see the asyncio client. Use `fastbk.sync.connect(uri)`."""

    def __init__(self, uri: str | MetadataStore, config: ClientConfig | None = None) -> None:
        given_store(uri)  # refuses what is neither
        self._place = uri if isinstance(uri, str) else "a metadata store"
        known = self.config = ClientConfig() if config is None else config
        self._thread = LoopThread(
            lambda: AsyncClient(uri, known, shares_loop=False), known.close_timeout
        )

    def __repr__(self) -> str:
        return f"<fastbk.sync.Client of {self._place}{'' if self._thread.is_closed is None else ', closed'}>"

    def _inner(self) -> AsyncClient:
        """Return the asyncio client. Only on the loop."""
        return self._thread.client()

    def _call(self, act: Callable[[AsyncClient], Awaitable[T]]) -> T:
        return self._thread.call(lambda: act(self._inner()))

    def _opening(
        self, act: Callable[[AsyncClient], Awaitable[T]], undo: Callable[[T], Awaitable[object]]
    ) -> T:
        return self._thread.call(lambda: act(self._inner()), undo)

    # --- ledgers ----------------------------------------

    create_ledger = blocking_opening(
        AsyncClient.create_ledger, _writer, lambda writer: writer._inner.close()
    )
    open_ledger = blocking_opening(
        AsyncClient.open_ledger, _reader, lambda reader: reader._inner.close()
    )
    check_bookies = blocking(AsyncClient.check_bookies)
    close_accepting_loss = blocking(AsyncClient.close_accepting_loss)
    delete_ledger = blocking(AsyncClient.delete_ledger)
    ledger_info = blocking(AsyncClient.ledger_info)
    is_closed = blocking(AsyncClient.is_closed)
    edit_metadata = blocking(AsyncClient.edit_metadata)
    run_procedure = blocking(AsyncClient.run_procedure)
    call_store = blocking(AsyncClient.call_store)
    list_bookies = blocking(AsyncClient.list_bookies)

    def list_ledger_ids(self) -> Iterator[list[LedgerId]]:
        """Yield the ids of all ledgers, a page at a time, ascending; no ledger's metadata is read."""
        return self._thread.iterate(lambda: self._inner().list_ledger_ids())

    def list_ledgers(self) -> Iterator[LedgerInfo]:
        """Yield all ledgers by id."""
        return self._thread.iterate(lambda: self._inner().list_ledgers(), _LISTED_AT_ONCE)

    def watch_ledger(self, ledger_id: LedgerId) -> Iterator[LedgerInfo]:
        """Yield a ledger's metadata now and after changes; ends when the ledger is deleted."""
        return self._thread.iterate(lambda: self._inner().watch_ledger(ledger_id))

    @property
    def repairs(self) -> CopyRepairs:
        """What this client repairs in the background; for tools."""
        return self._thread.call_plain(lambda: self._inner().repairs)

    # --- streams ----------------------------------------

    def namespace(self, path: str = "") -> Namespace:
        """Return a namespace of streams by its path, such as "tenant/app"; "": the root. No I/O."""
        from fastbk.stream.sync import SyncNamespace

        self._thread.check()
        return SyncNamespace(self._thread, path)

    # --- life ----------------------------------------

    def stats(self) -> dict[str, object]:
        """Return figures of the writers that are open."""
        return live_or_last(
            self._thread, lambda: self._inner().stats(), lambda: self._inner().stats()
        )

    def mark_forked(self) -> None:
        """Make this client refuse everything: it lives in a forked child."""
        self._thread.mark_forked()

    def close(self, *, timeout: float | None = None) -> None:
        """End writers that are left (their ledgers stay open) and close. Again: does nothing."""
        self._thread.close(checked_timeout(timeout, self.config.close_timeout))

    def __enter__(self) -> Client:
        self._thread.call(lambda: self._inner().__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(uri: str | MetadataStore | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Return a client of the cluster at `uri`, with the arguments of `fastbk.connect`. No I/O."""
    if uri is None:
        uri = uri_or_default(uri, "give connect() a metadata URI")
    return Client(uri, config_of(options))


def __getattr__(name: str) -> object:
    """Return what streams and pipelines are made of here, imported at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastbk.sync' has no attribute {name!r}")
    from importlib import import_module

    module, _, kind = _HOMES[name].rpartition(".")
    return getattr(import_module(f"fastbk.{module}"), kind)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
