"""The same client without `await`, for callers that have no event loop: threads, scripts, gevent.

Names and meanings are those of the asyncio client (`fastbk.connect`), and so is everything that decides: the state
machines and the codec. I/O is plain sockets that gevent can patch. One client serves many threads: calls take
turns, each runs in the thread of its caller. Streams (`Client.namespace`) go on between calls, in a thread of theirs.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from fastbk.client.blocking import Reactor
from fastbk.client.blocking_creation import create_in
from fastbk.client.blocking_ensembles import BlockingEnsembles
from fastbk.client.blocking_reader import LedgerReader
from fastbk.client.blocking_repairs import BlockingRepairs
from fastbk.client.blocking_runner import BlockingIo, run_blocking
from fastbk.client.blocking_writer import LedgerWriter, Pending
from fastbk.client.config import ClientConfig, ClientOptions, config_of
from fastbk.client.ensemble_log import log_replacements
from fastbk.client.entries import LedgerInfo
from fastbk.client.requests import LedgerRequests
from fastbk.client.rules import (
    QuorumWarnings,
    check_open,
    check_password,
    custom_metadata_change,
    new_metadata,
    pacing_of,
    placement_of,
    shape_of,
    with_group,
    writer_options,
)
from fastbk.errors import ClientClosed, NoSuchLedger
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import BookieRegistration, Watch
from fastbk.meta.replica_marks import delete_ledger
from fastbk.meta.uri import given_store, uri_or_default
from fastbk.model.entry import DigestType
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.native import client_codec as codec
from fastbk.option_checks import check_type, checked_timeout
from fastbk.placement.values import PlacementConfig
from fastbk.replication.actions import Choose, Replaced
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.owed_copies import owed_by
from fastbk.replication.procedure import Procedure
from fastbk.replication.recovery import RecoverLedger, RecoveryOptions
from fastbk.replication.writer_machine import WriterMachine

if TYPE_CHECKING:
    from fastbk.client.loop_thread import LoopThread
    from fastbk.stream.blocking import BlockingNamespace as Namespace
    from fastbk.stream.blocking import BlockingStream as Stream
    from fastbk.stream.blocking_cursor import BlockingCursor as Cursor
    from fastbk.stream.blocking_cursor import PendingAck
    from fastbk.stream.blocking_reader import BlockingStreamReader as StreamReader
    from fastbk.stream.blocking_writer import BlockingStreamWriter as StreamWriter
    from fastbk.stream.blocking_writer import PendingRecord
    from fastbk.stream.client import Client as AsyncClient

__all__ = [
    "Client", "Cursor", "LedgerReader", "LedgerWriter", "Namespace", "Pending", "PendingAck",
    "PendingRecord", "Stream", "StreamReader", "StreamWriter", "connect",
]  # fmt: skip
_HOMES = {
    "Namespace": "blocking.BlockingNamespace", "Stream": "blocking.BlockingStream",
    "Cursor": "blocking_cursor.BlockingCursor", "PendingAck": "blocking_cursor.PendingAck",
    "StreamReader": "blocking_reader.BlockingStreamReader",
    "StreamWriter": "blocking_writer.BlockingStreamWriter",
    "PendingRecord": "blocking_writer.PendingRecord",
}  # fmt: skip

T = TypeVar("T")
_WATCH_S = 1.0
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """A client of one cluster; see the asyncio client of the same name. Use `fastbk.sync.connect(uri)`."""

    def __init__(self, uri: str | MetadataStore, config: ClientConfig | None = None) -> None:
        self.config = ClientConfig() if config is None else config
        self._uri = uri
        self._opened: MetadataStore | None = given_store(uri)
        self._lock = threading.RLock()
        # Not `list_bookies`: a connection that is made again calls this in the middle of a turn.
        self.reactor = Reactor(self.config, lambda: self.store().list_bookies())
        self._writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()
        self._ensembles = BlockingEnsembles(self.reactor, self.store)
        self._warnings = QuorumWarnings()
        self._watch: Watch | None = None
        self._streams: LoopThread[AsyncClient] | None = None
        self.repairs = BlockingRepairs(self)
        _open_clients.add(self)

    @contextmanager
    def turn(self) -> Iterator[Reactor]:
        """Hold the client for one call."""
        with self._lock:
            if self.reactor.is_closed is not None:
                raise ClientClosed(self.reactor.is_closed)
            if self.reactor.before_wait is not None:
                self.reactor.turn(0.0)  # what goes on beside calls, also where this one waits for nothing
            yield self.reactor

    def store(self) -> MetadataStore:
        """Return the metadata store, opened at its first use."""
        if self._opened is None:
            assert isinstance(self._uri, str)
            self._opened = open_store(self._uri, self.config.metadata_timeout, may_make=False)
        return self._opened

    # --- bookies -----------------------------------------------------------------------------------------------

    def _bookies_changed(self) -> None:
        """Called by a thread of the store's: who runs the reactor next looks."""
        self.reactor.bookies_version += 1

    def _io(
        self,
        requests: LedgerRequests,
        metadata: LedgerMetadata,
        placement: PlacementConfig | None = None,
    ) -> BlockingIo:
        config = placement or placement_of(metadata, self.config.placement)

        def choose(action: Choose) -> Replaced:
            return self._ensembles.replace(action, metadata, config)

        return BlockingIo(
            requests.ledger_id, requests, self.reactor, self.store, choose, self.repairs.add
        )

    def tool_io(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> BlockingIo:
        """Return what procedures about a ledger act on, with the digest and password that its metadata names."""
        digest_type = metadata.digest_type or DigestType.CRC32
        requests = LedgerRequests(ledger_id, digest_type, metadata.password or b"", 0, metadata.creation_token)
        return self._io(requests, metadata)

    # --- ledgers -----------------------------------------------------------------------------------------------

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
        check_type("ledger_id", ledger_id, int | None)
        digest_type = DigestType.of(digest)
        wish = placement or self.config.placement
        metadata = with_group(metadata, wish)
        arguments = (write_quorum, ack_quorum, digest_type, password, metadata)
        checked = new_metadata((), ensemble, *arguments, 0, 0)
        self._warnings.check(checked)
        with self.turn():
            store = self.store()
            if self._watch is None:
                self._watch = store.watch_bookies(self._bookies_changed)
            chosen = self._ensembles.new(checked, wish, allow_missing_bookies=allow_missing_bookies)
            now_ms, size = int(time.time() * 1000), len(chosen.bookies)
            value = new_metadata(chosen.bookies, size, *arguments, now_ms, secrets.randbits(62))
            found_id = store.next_ledger_id() if ledger_id is None else ledger_id
            known = create_in(store, found_id, value)
            if chosen.away:
                store.marks.update(found_id, add=owed_by(chosen.away))
            flags = codec.FLAG_DEFERRED_SYNC if deferred_sync else 0
            requests = LedgerRequests(found_id, digest_type, password, flags, value.creation_token)
            machine = WriterMachine(found_id, known, writer_options(self.config, deferred_sync, chosen.away))
            io = self._io(requests, value, wish)
            machine.adds.describe_trouble = self.reactor.known.describe_trouble
            writer = LedgerWriter(self, machine, io, explicit_ids=explicit_ids)
            self._writers.add(writer)
            return writer

    def check_bookies(
        self,
        ensemble: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        placement: PlacementConfig | None = None,
        allow_missing_bookies: bool = False,
    ) -> None:
        """Raise NotEnoughBookies unless enough bookies answer now for a ledger of that shape; see `create_ledger`."""
        shape = shape_of(ensemble, write_quorum, ack_quorum)
        wish = placement or self.config.placement
        with self.turn():
            self._ensembles.new(shape, wish, allow_missing_bookies=allow_missing_bookies)

    def open_ledger(
        self,
        ledger_id: LedgerId,
        recovery: bool = True,
        digest: str | None = None,
        password: bytes = b"",
    ) -> LedgerReader:
        """Open a ledger for reading; see the asyncio client for `recovery`."""
        with self.turn():
            known = self.store().read_ledger(ledger_id)
            digest_type = check_open(ledger_id, known.metadata, digest, password)
            requests = LedgerRequests(ledger_id, digest_type, password, 0, known.metadata.creation_token)
            io = self._io(requests, known.metadata)
            if recovery and not known.metadata.is_closed:
                options = RecoveryOptions(
                    pacing=pacing_of(self.config), metadata_timeout_s=self.config.metadata_timeout
                )
                recovery_run = RecoverLedger(ledger_id, known, options)
                known = run_blocking(recovery_run, io)
                log_replacements(ledger_id, "recovery", recovery_run.stats.replacements)
                self.repairs.check_recovered(ledger_id, known.metadata)
            return LedgerReader(self, known.metadata, io)

    def delete_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> None:
        """Delete a ledger. NoSuchLedger if there is none."""
        with self.turn():
            if password is not None:
                check_password(ledger_id, self.store().read_ledger(ledger_id).metadata, password)
            delete_ledger(self.store(), ledger_id)

    def list_ledgers(self) -> Iterator[LedgerInfo]:
        """Yield all ledgers by id."""
        after = -1
        while True:
            with self.turn():
                page = self.store().list_ledgers(after)
                found = self.store().read_ledgers(page)
            for ledger_id, read in zip(page, found, strict=True):
                if read is not None:
                    yield LedgerInfo(ledger_id, read.metadata, read.version)
            if not page:
                return
            after = page[-1]

    def ledger_info(self, ledger_id: LedgerId) -> LedgerInfo:
        """Return a ledger's metadata."""
        with self.turn():
            found = self.store().read_ledger(ledger_id)
        return LedgerInfo(ledger_id, found.metadata, found.version)

    def is_closed(self, ledger_id: LedgerId) -> bool:
        """Return whether the ledger is closed, by what its metadata says now."""
        return self.ledger_info(ledger_id).metadata.is_closed

    def watch_ledger(self, ledger_id: LedgerId) -> Iterator[LedgerInfo]:
        """Yield a ledger's metadata now, and again after changes; ends when the ledger is deleted."""
        changed = threading.Event()
        with self.turn():
            watch = self.store().watch_ledger(ledger_id, lambda _: changed.set())
        version: int | None = None
        try:
            while True:
                changed.clear()
                try:
                    info = self.ledger_info(ledger_id)
                except NoSuchLedger:
                    if version is None:
                        raise
                    return
                if info.version != version:
                    version = info.version
                    yield info
                # So that a client that is closed meanwhile ends this, too.
                changed.wait(_WATCH_S)
        finally:
            watch.close()

    def edit_metadata(self, ledger_id: LedgerId, changes: Mapping[str, bytes | None]) -> LedgerInfo:
        """Set (or with None remove) keys of a ledger's custom metadata; return what holds then."""
        with self.turn():
            known = self.store().read_ledger(ledger_id)
            decide = custom_metadata_change(changes)
            update = MetadataUpdate(decide, known, self.config.metadata_timeout)
            found = self.run_procedure(ledger_id, known.metadata, update)
        return LedgerInfo(ledger_id, found.metadata, found.version)

    def run_procedure(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, procedure: Procedure[T]
    ) -> T:
        """Run a procedure of fastbk/replication about a ledger and return its result; for tools."""
        with self.turn():
            return run_blocking(procedure, self.tool_io(ledger_id, metadata))

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        with self.turn():
            return self.store().list_bookies()

    def stats(self) -> dict[str, object]:
        """Return figures of the writers that are open."""
        writers = {writer.ledger_id: writer.stats() for writer in self._writers}
        return {
            "writers": writers,
            "under_replicated": sum(sum(one.under_replicated.values()) for one in writers.values()),
        }

    # --- streams -----------------------------------------------------------------------------------------------

    def namespace(self, path: str = "") -> Namespace:
        """Return a namespace of streams by its path, such as "tenant/app"; "": the root. No I/O.

        Streams live on an event loop in a thread of its own, with connections of its own; gevent can't patch those.
        """
        from fastbk.client.loop_thread import LoopThread
        from fastbk.stream.blocking import BlockingNamespace
        from fastbk.stream.client import Client as AsyncClient

        with self._lock:
            if self.reactor.is_closed is not None:
                raise ClientClosed(self.reactor.is_closed)
            if self._streams is None:
                self._streams = LoopThread(lambda: AsyncClient(self._uri, self.config))
            return BlockingNamespace(self._streams, path)

    def mark_forked(self) -> None:
        """Make this client refuse everything: it lives in a forked child."""
        self.reactor.is_closed = "this client was made before a fork: make a new one in the child"
        self._lock = threading.RLock()

    def close(self, *, timeout: float | None = None) -> None:
        """End writers that are left (their ledgers stay open) and close. A second call does nothing."""
        limit_s = checked_timeout(timeout, self.config.close_timeout)
        with self._lock:
            if self.reactor.is_closed is not None:
                return
            self.repairs.close()
            self.reactor.is_closed = "this client is closed: make a new one"
            if self._streams is not None:
                self._streams.close(limit_s)
            self.reactor.close(limit_s)
            if self._watch is not None:
                self._watch.close()
            if self._opened is not None and isinstance(self._uri, str):
                self._opened.close()

    def __enter__(self) -> Client:
        with self.turn():
            self.store().instance_id()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(uri: str | MetadataStore | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Return a client of the cluster whose metadata is at `uri`; both as `fastbk.connect` takes them. No I/O."""
    if uri is None:
        uri = uri_or_default(uri, "give connect() a metadata URI")
    return Client(uri, config_of(options))


def _after_fork_in_child() -> None:
    for client in list(_open_clients):
        client.mark_forked()


def __getattr__(name: str) -> object:
    """Return what streams are made of here, imported at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastbk.sync' has no attribute {name!r}")
    from importlib import import_module

    module, _, kind = _HOMES[name].partition(".")
    return getattr(import_module(f"fastbk.stream.{module}"), kind)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


os.register_at_fork(after_in_child=_after_fork_in_child)
