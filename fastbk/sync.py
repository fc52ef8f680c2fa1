"""The same client without `await`, for callers that have no event loop: threads, scripts, gevent.

Names and meanings are those of the asyncio client (`fastbk.connect`), and so is everything that decides: the state
machines and the codec. I/O is plain sockets that gevent can patch. One client serves many threads: calls take
turns, each runs in the thread of its caller.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from fastbk.client.blocking import Reactor
from fastbk.client.blocking_reader import LedgerReader
from fastbk.client.blocking_writer import LedgerWriter, Pending
from fastbk.client.client import LedgerInfo
from fastbk.client.config import ClientConfig, config_of
from fastbk.client.rules import check_open, check_password, ensemble_candidates, new_metadata
from fastbk.errors import (
    ClientClosed,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
)
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import BookieRegistration
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, LedgerId

__all__ = ["Client", "LedgerReader", "LedgerWriter", "Pending", "connect"]

_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """A client of one cluster; see the asyncio client of the same name. Use `fastbk.sync.connect(uri)`."""

    def __init__(self, uri: str | MetadataStore, config: ClientConfig | None = None) -> None:
        self.config = ClientConfig() if config is None else config
        self._uri = uri
        self._opened: MetadataStore | None = None if isinstance(uri, str) else uri
        self._lock = threading.RLock()
        self.reactor = Reactor(self.config, self.list_bookies)
        self._writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()
        _open_clients.add(self)

    @contextmanager
    def turn(self) -> Iterator[Reactor]:
        """Hold the client for one call."""
        with self._lock:
            if self.reactor.is_closed is not None:
                raise ClientClosed(self.reactor.is_closed)
            yield self.reactor

    def store(self) -> MetadataStore:
        """Return the metadata store, opened at its first use."""
        if self._opened is None:
            assert isinstance(self._uri, str)
            self._opened = open_store(self._uri, self.config.metadata_timeout)
        return self._opened

    def create_ledger(
        self,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int | None = None,
        digest: str = "crc32c",
        password: bytes = b"",
        metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer. `ack_quorum` None: the majority of `write_quorum`."""
        digest_type = DigestType.of(digest)
        arguments = (ensemble, write_quorum, ack_quorum, digest_type, password, metadata)
        new_metadata((), *arguments, 0, 0)
        with self.turn() as reactor:
            chosen = self._choose(reactor, ensemble)
            value = new_metadata(chosen, *arguments, int(time.time() * 1000), secrets.randbits(62))
            store = self.store()
            found_id = store.next_ledger_id() if ledger_id is None else ledger_id
            try:
                store.create_ledger(found_id, value)
            except (MetadataConflict, MetadataUnavailable):
                # The answer of a creation that took effect may have been lost: the token tells.
                try:
                    token = store.read_ledger(found_id).metadata.creation_token
                except NoSuchLedger:
                    token = None
                if token != value.creation_token:
                    raise
            writer = LedgerWriter(self, found_id, value, password, digest_type)
            self._writers.add(writer)
            return writer

    def _choose(self, reactor: Reactor, ensemble: int) -> list[BookieId]:
        candidates = ensemble_candidates(reactor.bookies(), ensemble)
        random.shuffle(candidates)
        chosen: list[BookieId] = []
        said: dict[BookieId, str] = {}
        for bookie_id in candidates:
            if len(chosen) == ensemble:
                break
            try:
                reactor.open(bookie_id, "adds", self.config.connect_timeout)
                chosen.append(bookie_id)
            except NotEnoughBookies as error:
                said[bookie_id] = str(error)
        if len(chosen) < ensemble:
            raise NotEnoughBookies(
                f"{ensemble} writable bookies are needed and {len(chosen)} answer:"
                " start more, or create the ledger with a smaller ensemble",
                replicas=said,
            )
        return chosen

    def open_ledger(
        self,
        ledger_id: LedgerId,
        recovery: bool = True,
        digest: str | None = None,
        password: bytes = b"",
    ) -> LedgerReader:
        """Open a ledger for reading; see the asyncio client for `recovery`."""
        with self.turn():
            found = self.store().read_ledger(ledger_id)
            digest_type = check_open(ledger_id, found.metadata, recovery, digest, password)
            return LedgerReader(self, ledger_id, found.metadata, password, digest_type)

    def delete_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> None:
        """Delete a ledger. NoSuchLedger if there is none."""
        with self.turn():
            if password is not None:
                check_password(ledger_id, self.store().read_ledger(ledger_id).metadata, password)
            self.store().delete_ledger(ledger_id)

    def list_ledgers(self) -> Iterator[LedgerInfo]:
        """Yield all ledgers by id."""
        after = -1
        while True:
            with self.turn():
                page = self.store().list_ledgers(after)
            for ledger_id in page:
                try:
                    yield self.ledger_info(ledger_id)
                except NoSuchLedger:
                    continue
            if not page:
                return
            after = page[-1]

    def ledger_info(self, ledger_id: LedgerId) -> LedgerInfo:
        """Return a ledger's metadata."""
        with self.turn():
            found = self.store().read_ledger(ledger_id)
        return LedgerInfo(ledger_id, found.metadata, found.version)

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

    def mark_forked(self) -> None:
        """Make this client refuse everything: it lives in a forked child."""
        self.reactor.is_closed = "this client was made before a fork: make a new one in the child"
        self._lock = threading.RLock()

    def close(self, *, timeout: float | None = None) -> None:
        """End writers that are left (their ledgers stay open) and close. A second call does nothing."""
        with self._lock:
            if self.reactor.is_closed is not None:
                return
            self.reactor.is_closed = "this client is closed: make a new one"
            self.reactor.close(self.config.close_timeout if timeout is None else timeout)
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


def connect(uri: str | MetadataStore, **options: object) -> Client:
    """Return a client of the cluster whose metadata is at `uri`; options as `fastbk.connect` takes them. No I/O."""
    return Client(uri, config_of(options))


def _after_fork_in_child() -> None:
    for client in list(_open_clients):
        client.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
