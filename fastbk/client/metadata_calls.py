"""The metadata store for the asyncio client: its blocking calls run in threads of the client's own.

One thread where a call is short and only one can be made at a time (a file); some for ZooKeeper, whose calls are
several round trips each: thousands of streams that begin or roll together would wait for one another. A call that
hangs is given up at its deadline and goes on in its thread, so what it does may come after what is asked later: every
change is by compare-and-set, and whoever was given up reads again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastbk.client.config import ClientConfig
from fastbk.errors import ClientClosed, MetadataUnavailable, NoSuchLedger
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import BookieRegistration, VersionedLedger, Watch
from fastbk.meta.uri import is_zookeeper
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata

T = TypeVar("T")

CALLS_AT_ONCE = 8
"""Of ZooKeeper's. More wait for the interpreter and not for the server."""


class MetadataCalls:
    """A metadata store as coroutines; opened at its first use. It belongs to the loop it was first used on."""

    def __init__(self, uri: str | MetadataStore, config: ClientConfig) -> None:
        self.closed: str | None = None
        """Why it takes no more calls."""
        self._uri = uri
        self._config = config
        self._store: MetadataStore | None = None if isinstance(uri, str) else uri
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._opening = threading.Lock()
        self._watches: list[Watch] = []

    async def call(self, call: Callable[[MetadataStore], T], timeout_s: float | None = None) -> T:
        """Run `call(store)` in a thread. MetadataUnavailable at the deadline: it may have taken effect."""
        if self.closed is not None:
            raise ClientClosed(self.closed)
        limit_s = self._config.metadata_timeout if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ClientClosed(
                "a client belongs to the event loop it was first used on: make one for each"
            )
        if self._executor is None:
            count = CALLS_AT_ONCE if isinstance(self._uri, str) and is_zookeeper(self._uri) else 1
            self._executor = ThreadPoolExecutor(count, thread_name_prefix="fastbk-metadata")
        try:
            async with asyncio.timeout(limit_s):
                return await loop.run_in_executor(self._executor, self._call_store, call)
        except TimeoutError:
            raise MetadataUnavailable(
                f"the metadata store did not answer within {limit_s:g} s; read again before retrying"
            ) from None

    def _call_store(self, call: Callable[[MetadataStore], T]) -> T:
        store = self._store
        if store is None:
            with self._opening:
                store = self._store
                if store is None:
                    assert isinstance(self._uri, str)
                    store = self._store = open_store(self._uri, self._config.metadata_timeout)
        return call(store)

    async def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        return await self.call(lambda store: store.list_bookies())

    async def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata; NoSuchLedger."""
        return await self.call(lambda store: store.read_ledger(ledger_id))

    async def update_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int
    ) -> int:
        """Replace a ledger's metadata by compare-and-set; return the new version."""
        return await self.call(lambda store: store.update_ledger(ledger_id, metadata, version))

    async def watch_ledger(self, ledger_id: LedgerId, callback: Callable[[], None]) -> Watch:
        """Call `callback()` on the loop after each change of the ledger, until the watch is closed."""
        told = self._on_loop(callback)
        return await self._watch(lambda store: store.watch_ledger(ledger_id, lambda _: told()))

    async def follow_ledger(self, ledger_id: LedgerId) -> AsyncGenerator[VersionedLedger, None]:
        """Yield a ledger's metadata now and after changes, of which several may be told as one, until it is deleted."""
        changed = asyncio.Event()
        watch = await self.watch_ledger(ledger_id, changed.set)
        version: int | None = None
        try:
            while True:
                changed.clear()
                try:
                    found = await self.read_ledger(ledger_id)
                except NoSuchLedger:
                    if version is None:
                        raise
                    return
                if found.version != version:
                    version = found.version
                    yield found
                await changed.wait()
        finally:
            watch.close()

    async def watch_bookies(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the loop after bookies came or went, until this is closed."""
        told = self._on_loop(callback)
        self._watches.append(await self._watch(lambda store: store.watch_bookies(told)))

    async def begin_watch(
        self,
        begin: Callable[[MetadataStore, Callable[[], None]], Watch],
        callback: Callable[[], None],
    ) -> Watch:
        """Begin any watch of the store; `callback` is called on the loop."""
        told = self._on_loop(callback)
        return await self._watch(lambda store: begin(store, told))

    async def _watch(self, begin: Callable[[MetadataStore], Watch]) -> Watch:
        """Begin a watch; one that is there only when nobody waits for it any more is closed again."""
        lock = threading.Lock()
        is_given_up = False
        begun: Watch | None = None

        def call(store: MetadataStore) -> Watch:
            nonlocal begun
            begun = begin(store)
            with lock:
                if is_given_up:
                    begun.close()
            return begun

        try:
            return await self.call(call)
        except BaseException:
            with lock:
                is_given_up = True
                if begun is not None:
                    begun.close()
            raise

    def _on_loop(self, callback: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def told() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)

        return told

    async def close(self, timeout_s: float) -> None:
        """End the threads, and the store if it was opened here."""
        for watch in self._watches:
            watch.close()
        executor, self._executor = self._executor, None
        if executor is not None:
            if self._store is not None and isinstance(self._uri, str):
                ending = ThreadPoolExecutor(1, thread_name_prefix="fastbk-metadata-end")
                ended = asyncio.get_running_loop().run_in_executor(
                    ending, _end, executor, self._store
                )
                await asyncio.wait([ended], timeout=timeout_s)
                ending.shutdown(wait=False)
            executor.shutdown(wait=False)


def _end(executor: ThreadPoolExecutor, store: MetadataStore) -> None:
    """Close the store behind all calls that are under way, whoever has given them up."""
    executor.shutdown(wait=True)
    store.close()
