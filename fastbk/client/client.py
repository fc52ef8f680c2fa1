"""The asyncio client: creates, opens, deletes and lists ledgers; owns the connections and the metadata store."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig, config_of
from fastbk.client.ledger_reader import LedgerReader
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.client.rules import (
    check_open,
    check_password,
    close_in,
    ensemble_candidates,
    new_metadata,
)
from fastbk.errors import (
    ClientClosed,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
)
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import BookieRegistration, VersionedLedger, Watch
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.native import client_codec as codec

T = TypeVar("T")
_log = logging.getLogger("fastbk.client")
# Clients that are open in this process: a fork makes them useless in the child.
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as the metadata store has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int


class Client:
    """A client of one cluster on one event loop. Use `fastbk.connect(uri)`; no I/O before `async with` or a call.

    Every call has a deadline: `timeout=` or the default of `ClientConfig`. A cancelled call of this class leaves
    nothing half-done but this: a cancelled `create_ledger` may leave an empty open ledger, and a cancelled
    `delete_ledger` may have deleted.
    """

    def __init__(self, uri: str | MetadataStore, config: ClientConfig | None = None) -> None:
        self.config = ClientConfig() if config is None else config
        self._uri = uri
        self._store: MetadataStore | None = None if isinstance(uri, str) else uri
        self._owns_store = isinstance(uri, str)
        self._closed: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._pool = BookiePool(self.config, self._list_bookies, self._report)
        self._writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()
        _open_clients.add(self)

    # --- metadata ----------------------------------------------------------------------------------------------

    async def _metadata(
        self, call: Callable[[MetadataStore], T], timeout_s: float | None = None
    ) -> T:
        """Run a call of the blocking store in this client's own thread."""
        self._check()
        limit_s = self.config.metadata_timeout if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ClientClosed(
                "a client belongs to the event loop it was first used on: make one for each"
            )
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="fastbk-metadata")
        try:
            async with asyncio.timeout(limit_s):
                return await loop.run_in_executor(self._executor, self._call_store, call)
        except TimeoutError:
            raise MetadataUnavailable(
                f"the metadata store did not answer within {limit_s:g} s; read again before retrying"
            ) from None

    def _call_store(self, call: Callable[[MetadataStore], T]) -> T:
        if self._store is None:
            assert isinstance(self._uri, str)
            self._store = open_store(self._uri, self.config.metadata_timeout)
        return call(self._store)

    async def _list_bookies(self) -> list[BookieRegistration]:
        return await self._metadata(lambda store: store.list_bookies())

    async def _read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        return await self._metadata(lambda store: store.read_ledger(ledger_id))

    async def _watch_ledger(self, ledger_id: LedgerId, callback: Callable[[], None]) -> Watch:
        loop = asyncio.get_running_loop()

        def told(_: LedgerId) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)

        return await self._metadata(lambda store: store.watch_ledger(ledger_id, told))

    # --- ledgers -----------------------------------------------------------------------------------------------

    async def create_ledger(
        self,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int | None = None,
        digest: str = "crc32c",
        password: bytes = b"",
        metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer. `ack_quorum` None: the majority of `write_quorum`.

        Raises NotEnoughBookies unless `ensemble` writable bookies answer, ConfigError, MetadataConflict for a
        `ledger_id` that is taken, or was a deleted ledger's.
        """
        digest_type = DigestType.of(digest)
        # Refuses impossible quorums before anything is asked.
        new_metadata((), ensemble, write_quorum, ack_quorum, digest_type, password, metadata, 0, 0)
        chosen = await self._choose(ensemble)
        value = new_metadata(
            chosen,
            ensemble,
            write_quorum,
            ack_quorum,
            digest_type,
            password,
            metadata,
            int(time.time() * 1000),
            secrets.randbits(62),
        )
        if ledger_id is None:
            found_id = await self._metadata(lambda store: store.next_ledger_id())
        else:
            found_id = ledger_id
        await self._create(found_id, value)
        writer = LedgerWriter(
            found_id,
            value,
            codec.LedgerCodec(found_id, digest_type, password),
            password,
            self._pool,
            self.config,
            self._close_ledger,
        )
        self._writers.add(writer)
        return writer

    async def _create(self, ledger_id: LedgerId, value: LedgerMetadata) -> None:
        try:
            await self._metadata(lambda store: store.create_ledger(ledger_id, value))
        except (MetadataConflict, MetadataUnavailable):
            # The answer of a creation that took effect may have been lost: the token tells.
            found: VersionedLedger | None
            try:
                found = await self._read_ledger(ledger_id)
            except NoSuchLedger:
                found = None
            if found is None or found.metadata.creation_token != value.creation_token:
                raise

    async def _choose(self, ensemble: int) -> tuple[BookieId, ...]:
        """Return `ensemble` writable bookies that answer, in random order."""
        candidates = ensemble_candidates(await self._pool.bookies(), ensemble)
        random.shuffle(candidates)
        chosen: list[BookieId] = []
        said: dict[BookieId, str] = {}
        while len(chosen) < ensemble and candidates:
            asked = [candidates.pop() for _ in range(min(ensemble - len(chosen), len(candidates)))]
            tries = [self._pool.peer(one).adds.open(self.config.connect_timeout) for one in asked]
            for bookie, result in zip(
                asked, await asyncio.gather(*tries, return_exceptions=True), strict=True
            ):
                if isinstance(result, Error):
                    said[bookie] = str(result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    chosen.append(bookie)
        if len(chosen) < ensemble:
            raise NotEnoughBookies(
                f"{ensemble} writable bookies are needed and {len(chosen)} answer:"
                " start more, or create the ledger with a smaller ensemble",
                replicas=said,
            )
        return tuple(chosen)

    async def open_ledger(
        self,
        ledger_id: LedgerId,
        recovery: bool = True,
        digest: str | None = None,
        password: bytes = b"",
    ) -> LedgerReader:
        """Open a ledger for reading. `digest` None: what its metadata names.

        With `recovery`, a ledger that is not closed would be fenced and closed first; this version cannot do that
        and raises ConfigError for one. Without, the reader follows the writer.
        """
        found = await self._read_ledger(ledger_id)
        digest_type = check_open(ledger_id, found.metadata, recovery, digest, password)
        return LedgerReader(
            ledger_id,
            found.metadata,
            codec.LedgerCodec(ledger_id, digest_type, password),
            password,
            self._pool,
            self.config,
            self._read_ledger,
            self._watch_ledger,
        )

    async def _close_ledger(
        self, ledger_id: LedgerId, last: EntryId, length: int, timeout_s: float
    ) -> None:
        """Close by compare-and-set with the writer's own end."""
        await self._metadata(lambda store: close_in(store, ledger_id, last, length), timeout_s)

    async def delete_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> None:
        """Delete a ledger: its metadata at once, its data when bookies get to it. NoSuchLedger if there is none."""
        if password is not None:
            check_password(ledger_id, (await self._read_ledger(ledger_id)).metadata, password)
        await self._metadata(lambda store: store.delete_ledger(ledger_id))

    async def list_ledgers(self) -> AsyncGenerator[LedgerInfo, None]:
        """Yield all ledgers by id; those that come or go meanwhile may be in it or not."""
        after = -1
        while page := await self._metadata(lambda store: store.list_ledgers(after)):  # noqa: B023
            for ledger_id in page:
                try:
                    yield await self.ledger_info(ledger_id)
                except Error as error:
                    if error.code != -7:
                        raise
            after = page[-1]

    async def ledger_info(self, ledger_id: LedgerId) -> LedgerInfo:
        """Return a ledger's metadata; NoSuchLedger if there is none."""
        found = await self._read_ledger(ledger_id)
        return LedgerInfo(ledger_id, found.metadata, found.version)

    async def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        return await self._pool.bookies()

    # --- life --------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """Return figures of the whole client and of its writers that are open."""
        writers = {writer.ledger_id: writer.stats() for writer in self._writers}
        return {
            "writers": writers,
            "under_replicated": sum(sum(one.under_replicated.values()) for one in writers.values()),
        }

    def _check(self) -> None:
        if self._closed is not None:
            raise ClientClosed(self._closed)

    def _report(self, error: BaseException) -> None:
        _log.error("unexpected error in a connection", exc_info=error)

    def mark_forked(self) -> None:
        """Make this client refuse everything: it lives in a forked child, its sockets are the parent's."""
        self._closed = "this client was made before a fork: make a new one in the child"
        self._pool.is_closed = True
        error = ClientClosed(self._closed)
        for writer in self._writers:
            writer.block(error)

    async def close(self, *, timeout: float | None = None) -> None:
        """End writers that are left (their ledgers stay open), send what was written, close. Again: does nothing."""
        if self._closed is not None:
            return
        self._closed = "this client is closed: make a new one"
        limit_s = self.config.close_timeout if timeout is None else timeout
        _open_clients.discard(self)
        for writer in list(self._writers):
            writer.abandon(
                ClientClosed(
                    f"the client was closed while ledger {writer.ledger_id} was open: close writers first",
                    outcome="unknown",
                )
            )
        await self._pool.close(limit_s)
        executor, self._executor = self._executor, None
        if executor is not None:
            if self._store is not None and self._owns_store:
                await asyncio.wait(
                    [asyncio.get_running_loop().run_in_executor(executor, self._store.close)],
                    timeout=limit_s,
                )
            executor.shutdown(wait=False)

    async def __aenter__(self) -> Client:
        await self._metadata(lambda store: store.instance_id())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def connect(uri: str | MetadataStore, **options: object) -> Client:
    """Return a client of the cluster whose metadata is at `uri`; see `ClientConfig` for the options. No I/O."""
    return Client(uri, config_of(options))


def _after_fork_in_child() -> None:
    for client in list(_open_clients):
        client.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
