"""The same client without `await`, for callers that have no event loop: threads, scripts, gevent.

Names and meanings are those of the asyncio client (`fastbk.connect`), and it is the asyncio client
that does the work: all clients of a process share one event loop in a thread
(`fastbk/client/loop_thread.py`). Calls of several threads run side by side. gevent can patch the
thread and its sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from fastbk.client.config import ClientConfig, ClientOptions, config_of
from fastbk.client.copy_repairs import CopyRepairs
from fastbk.client.entries import LedgerInfo
from fastbk.client.loop_thread import LoopThread
from fastbk.client.sync_pending import Pending
from fastbk.client.sync_reader import LedgerReader
from fastbk.client.sync_writer import LedgerWriter, live_or_last
from fastbk.meta import MetadataStore
from fastbk.meta.api import BookieRegistration
from fastbk.meta.uri import given_store, uri_or_default
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.option_checks import checked_timeout
from fastbk.placement.values import PlacementConfig
from fastbk.replication.procedure import Procedure
from fastbk.stream.client import Client as AsyncClient

if TYPE_CHECKING:
    from fastbk.stream.cursor.sync_cursor import PendingAck
    from fastbk.stream.cursor.sync_cursor import SyncCursor as Cursor
    from fastbk.stream.namespace.sync_namespace import SyncNamespace as Namespace
    from fastbk.stream.reader.sync_reader import SyncStreamReader as StreamReader
    from fastbk.stream.sync_stream import SyncStream as Stream
    from fastbk.stream.writer.sync_writer import PendingRecord
    from fastbk.stream.writer.sync_writer import SyncStreamWriter as StreamWriter

__all__ = [
    "Client", "Cursor", "LedgerReader", "LedgerWriter", "Namespace", "Pending", "PendingAck",
    "PendingRecord", "Stream", "StreamReader", "StreamWriter", "connect",
]  # fmt: skip
_HOMES = {
    "Namespace": "namespace.sync_namespace.SyncNamespace", "Stream": "sync_stream.SyncStream",
    "Cursor": "cursor.sync_cursor.SyncCursor", "PendingAck": "cursor.sync_cursor.PendingAck",
    "StreamReader": "reader.sync_reader.SyncStreamReader",
    "StreamWriter": "writer.sync_writer.SyncStreamWriter",
    "PendingRecord": "writer.sync_writer.PendingRecord",
}  # fmt: skip

T = TypeVar("T")
_LISTED_AT_ONCE = 256


class Client:
    """A client of one cluster; see the asyncio client. Use `fastbk.sync.connect(uri)`."""

    def __init__(self, uri: str | MetadataStore, config: ClientConfig | None = None) -> None:
        given_store(uri)  # refuses what is neither
        known = self.config = ClientConfig() if config is None else config
        self._thread = LoopThread(lambda: AsyncClient(uri, known), known.close_timeout)

    def _inner(self) -> AsyncClient:
        """Return the asyncio client. Only on the loop."""
        return self._thread.client()

    # --- ledgers ----------------------------------------

    def create_ledger(
        self,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int | None = None,
        digest: str = "crc32c",
        password: bytes = b"",
        metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        *,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
        placement: PlacementConfig | None = None,
        allow_missing_bookies: bool = False,
    ) -> LedgerWriter:
        """Create a ledger and return its writer; see the asyncio client for the arguments."""
        inner = self._thread.call(
            lambda: self._inner().create_ledger(
                ensemble,
                write_quorum,
                ack_quorum,
                digest,
                password,
                metadata,
                ledger_id,
                explicit_ids=explicit_ids,
                deferred_sync=deferred_sync,
                placement=placement,
                allow_missing_bookies=allow_missing_bookies,
            )
        )
        return LedgerWriter(self._thread, inner, self.config, explicit_ids=explicit_ids)

    def check_bookies(
        self,
        ensemble: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        placement: PlacementConfig | None = None,
        allow_missing_bookies: bool = False,
    ) -> None:
        """Raise NotEnoughBookies unless enough bookies answer now for a ledger of that shape."""
        self._thread.call(
            lambda: self._inner().check_bookies(
                ensemble,
                write_quorum,
                ack_quorum,
                placement=placement,
                allow_missing_bookies=allow_missing_bookies,
            )
        )

    def open_ledger(
        self,
        ledger_id: LedgerId,
        recovery: bool = True,
        digest: str | None = None,
        password: bytes = b"",
    ) -> LedgerReader:
        """Open a ledger for reading; see the asyncio client for `recovery`."""
        inner = self._thread.call(
            lambda: self._inner().open_ledger(ledger_id, recovery, digest, password)
        )
        return LedgerReader(self._thread, inner)

    def delete_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> None:
        """Delete a ledger. NoSuchLedger if there is none."""
        self._thread.call(lambda: self._inner().delete_ledger(ledger_id, password=password))

    def list_ledgers(self) -> Iterator[LedgerInfo]:
        """Yield all ledgers by id."""
        return self._thread.iterate(lambda: self._inner().list_ledgers(), _LISTED_AT_ONCE)

    def ledger_info(self, ledger_id: LedgerId) -> LedgerInfo:
        """Return a ledger's metadata."""
        return self._thread.call(lambda: self._inner().ledger_info(ledger_id))

    def is_closed(self, ledger_id: LedgerId) -> bool:
        """Return whether the ledger is closed, by what its metadata says now."""
        return self._thread.call(lambda: self._inner().is_closed(ledger_id))

    def watch_ledger(self, ledger_id: LedgerId) -> Iterator[LedgerInfo]:
        """Yield a ledger's metadata now and after changes; ends when the ledger is deleted."""
        return self._thread.iterate(lambda: self._inner().watch_ledger(ledger_id))

    def edit_metadata(self, ledger_id: LedgerId, changes: Mapping[str, bytes | None]) -> LedgerInfo:
        """Set (or with None remove) keys of a ledger's custom metadata; return what holds then."""
        return self._thread.call(lambda: self._inner().edit_metadata(ledger_id, changes))

    def run_procedure(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, procedure: Procedure[T]
    ) -> T:
        """Run a procedure of fastbk/replication about a ledger and return its result; for tools."""
        return self._thread.call(
            lambda: self._inner().run_procedure(ledger_id, metadata, procedure)
        )

    def call_store(self, call: Callable[[MetadataStore], T]) -> T:
        """Return `call(store)` of the metadata store, in a thread of the client's; for tools."""
        return self._thread.call(lambda: self._inner().call_store(call))

    @property
    def repairs(self) -> CopyRepairs:
        """What this client repairs in the background; for tools."""
        return self._thread.call_plain(lambda: self._inner().repairs)

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        return self._thread.call(lambda: self._inner().list_bookies())

    # --- streams ----------------------------------------

    def namespace(self, path: str = "") -> Namespace:
        """Return a namespace of streams by its path, such as "tenant/app"; "": the root. No I/O."""
        from fastbk.stream.namespace.sync_namespace import SyncNamespace

        self._thread.check()
        return SyncNamespace(self._thread, path)

    # --- life ----------------------------------------

    def stats(self) -> dict[str, object]:
        """Return figures of the writers that are open."""
        return live_or_last(self._thread, lambda: self._inner().stats(), lambda: self._inner().stats())

    def mark_forked(self) -> None:
        """Make this client refuse everything: it lives in a forked child."""
        self._thread.mark_forked()

    def close(self, *, timeout: float | None = None) -> None:
        """End writers that are left (their ledgers stay open) and close. Again: does nothing."""
        self._thread.close(checked_timeout(timeout, self.config.close_timeout))

    def __enter__(self) -> Client:
        self._thread.call(lambda: self._inner().__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(uri: str | MetadataStore | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Return a client of the cluster at `uri`, with the arguments of `fastbk.connect`. No I/O."""
    if uri is None:
        uri = uri_or_default(uri, "give connect() a metadata URI")
    return Client(uri, config_of(options))


def __getattr__(name: str) -> object:
    """Return what streams are made of here, imported at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastbk.sync' has no attribute {name!r}")
    from importlib import import_module

    module, _, kind = _HOMES[name].rpartition(".")
    return getattr(import_module(f"fastbk.stream.{module}"), kind)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
