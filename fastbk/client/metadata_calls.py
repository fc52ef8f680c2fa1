"""The metadata store for the asyncio client: its blocking calls run in threads of the client's own.

One thread where a call is short and only one can be made at a time (a file): what waits for it goes together, with one
commit for all, where the store can do that. Some threads for ZooKeeper, whose calls are several round trips each:
thousands of streams that begin or roll together would wait for one another. A call that hangs is given up at its
deadline and goes on in its thread, so what it does may come after what is asked later: every change is by
compare-and-set, and whoever was given up reads again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from fastbk.client.config import ClientConfig
from fastbk.errors import ClientClosed, Error, MetadataUnavailable, NoSuchLedger
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import (
    BookieRegistration,
    GroupingStore,
    IdentityVersion,
    LedgerLock,
    VersionedIdentity,
    VersionedLedger,
    Watch,
)
from fastbk.meta.uri import given_store, is_gateway, is_zookeeper
from fastbk.model.ids import BookieId, LedgerId, check_ledger_id
from fastbk.model.ledger import LedgerMetadata
from fastbk.retry import Backoff, jittered

if TYPE_CHECKING:
    from fastbk.meta.gateway.store import GatewayAccess

T = TypeVar("T")

CALLS_AT_ONCE = 8
"""Of ZooKeeper's, and of gateways. More wait for the interpreter and not for the server."""
GATEWAYS_SHARE = 0.95
"""Of a call's time, after which a store of gateways gives up: it knows which gateway failed, and why."""
GATEWAYS_LEFT_S = 0.25
"""It leaves so much of it at least, and at most half: a thread of a busy machine is late, and knows in vain then."""
TOGETHER_MAX = 64
"""Calls with one commit; others of the machine wait for the file meanwhile."""
TOGETHER_S = 0.02


class _Waiting:
    """A call that waits for the one thread of its store, and what has become of it."""

    def __init__(self, call: Callable[[MetadataStore], Any], settled: asyncio.Future[Any]) -> None:
        self.call = call
        self.settled = settled
        self.result: object = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Give its caller, unless he has gone, what has become of it."""
        if self.settled.done():
            return
        if self.error is None:
            self.settled.set_result(self.result)
        else:
            self.settled.set_exception(self.error)


class _Listing:
    """One look at the bookies, for all who ask before it begins."""

    def __init__(self, calls: MetadataCalls) -> None:
        self.is_begun = False
        self.task = asyncio.get_running_loop().create_task(calls.call(self._look))
        self.task.add_done_callback(self._ended)

    def _look(self, store: MetadataStore) -> list[BookieRegistration]:
        self.is_begun = True
        return store.list_bookies()

    def _ended(self, task: asyncio.Task[list[BookieRegistration]]) -> None:
        self.is_begun = True  # also where it was given up before it could begin
        if not task.cancelled():
            task.exception()  # nobody may be left who asks


class _ClientWatch:
    """A watch whose callback is also called when the client is closed: whoever waits for it looks, and is told so."""

    def __init__(self, watch: Watch, callbacks: dict[_ClientWatch, Callable[[], None]]) -> None:
        self._watch = watch
        self._callbacks = callbacks

    def close(self) -> None:
        """End it."""
        self._callbacks.pop(self, None)
        self._watch.close()


class MetadataCalls:
    """A metadata store as coroutines; opened at its first use. It belongs to the loop it was first used on."""

    def __init__(self, uri: str | MetadataStore, config: ClientConfig) -> None:
        self.closed: str | None = None
        """Why it takes no more calls."""
        self._uri = uri
        self._config = config
        self._store: MetadataStore | None = given_store(uri)
        self._group = _group_of(self._store)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._opening = threading.Lock()
        self._watches: list[Watch] = []
        self._callbacks: dict[_ClientWatch, Callable[[], None]] = {}
        self._waiting: deque[_Waiting] = deque()
        self._is_asked = False
        self._listing: _Listing | None = None
        self._is_single = not (isinstance(uri, str) and (is_zookeeper(uri) or is_gateway(uri)))

    @property
    def place(self) -> str:
        """Where the metadata is, for messages."""
        return self._uri if isinstance(self._uri, str) else "a metadata store"

    @property
    def announces_changes(self) -> bool:
        """Whether a watch reports a change when it happens. Files are only polled."""
        return not self._is_single

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
            count = 1 if self._is_single else CALLS_AT_ONCE
            self._executor = ThreadPoolExecutor(count, thread_name_prefix="fastbk-metadata")
        try:
            async with asyncio.timeout(limit_s):
                if not self._is_single:
                    return await loop.run_in_executor(self._executor, self._call_store, call)
                settled: asyncio.Future[T] = loop.create_future()
                self._waiting.append(_Waiting(call, settled))
                if not self._is_asked:
                    self._is_asked = True
                    loop.call_soon(self._ask, loop)  # behind all that this turn of the loop calls
                return await settled
        except TimeoutError:
            raise self._unanswered(limit_s) from None

    def _unanswered(self, limit_s: float) -> MetadataUnavailable:
        """A store that never answered is more likely to be somewhere else than to be slow."""
        where = self.place
        hint = "what was asked for may be done yet: read again before retrying"
        if self._store is None and is_zookeeper(where):
            hint = "is ZooKeeper running, and are host and port right?"
        return MetadataUnavailable(f"{where} did not answer within {limit_s:g} s: {hint}")

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_asked = False
        if self._executor is not None and self._waiting:
            self._executor.submit(self._call_waiting, loop)

    def _call_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the calls that wait, some of them together; with what they return their callers go on in one turn."""
        while self._waiting:
            made: list[_Waiting] = []
            try:
                self._opened()
                if self._group is not None and len(self._waiting) > 1:
                    with self._group():
                        self._call_some(made, TOGETHER_MAX)
                else:
                    self._call_some(made, 1)
            except BaseException as error:  # noqa: BLE001 -- it is the callers'
                made = made or [self._waiting.popleft()]
                for one in made:
                    one.error = error.copy() if isinstance(error, Error) else error
            if made:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(_settle_all, made)

    def _call_some(self, made: list[_Waiting], most: int) -> None:
        until_s = time.monotonic() + TOGETHER_S
        while self._waiting and len(made) < most and (not made or time.monotonic() < until_s):
            one = self._waiting.popleft()
            if one.settled.cancelled():
                continue
            made.append(one)
            try:
                one.result = self._call_store(one.call)
            except BaseException as error:  # noqa: BLE001 -- it is the caller's
                one.error = error

    def _call_store(self, call: Callable[[MetadataStore], T]) -> T:
        return call(self._opened())

    def _opened(self) -> MetadataStore:
        store = self._store
        if store is None:
            with self._opening:
                store = self._store
                if store is None:
                    assert isinstance(self._uri, str)
                    access = self._access()
                    timeout_s = limit_s = self._config.metadata_timeout
                    if access is not None:
                        timeout_s = max(
                            limit_s / 2, min(limit_s * GATEWAYS_SHARE, limit_s - GATEWAYS_LEFT_S)
                        )
                    store = self._store = open_store(
                        self._uri, timeout_s, may_make=False, access=access
                    )
                    self._group = _group_of(store)
        return store

    def _access(self) -> GatewayAccess | None:
        if not is_gateway(self._uri if isinstance(self._uri, str) else ""):
            return None
        from fastbk.meta.gateway.store import GatewayAccess

        return GatewayAccess(self._config.tls, self._config.credentials)

    async def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now; all who ask before it is looked up are told by one call."""
        listing = self._listing
        if listing is None or listing.is_begun:
            listing = self._listing = _Listing(self)
        try:
            return await asyncio.shield(listing.task)
        except Error as error:
            raise error.copy() from error.__cause__

    async def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata; NoSuchLedger."""
        check_ledger_id(ledger_id)
        return await self.call(lambda store: store.read_ledger(ledger_id))

    async def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Replace a ledger's metadata by compare-and-set; return the new version."""
        return await self.call(
            lambda store: store.update_ledger(ledger_id, metadata, version, if_identity)
        )

    async def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return what is known of a bookie's data, None if nothing."""
        return await self.call(lambda store: store.read_identity(bookie_id))

    async def watch_ledger(self, ledger_id: LedgerId, callback: Callable[[], None]) -> Watch:
        """Call `callback()` on the loop after each change of the ledger, until the watch is closed."""
        check_ledger_id(ledger_id)
        told = self._on_loop(callback)
        watch = await self._watch(lambda store: store.watch_ledger(ledger_id, lambda _: told()))
        return self._kept(watch, callback)

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
        return self._kept(await self._watch(lambda store: begin(store, told)), callback)

    def _kept(self, watch: Watch, callback: Callable[[], None]) -> Watch:
        kept = _ClientWatch(watch, self._callbacks)
        self._callbacks[kept] = callback
        if self.closed is not None:
            callback()
        return kept

    def refuse(self, reason: str) -> None:
        """Take no more calls. Who waits for a watch looks once more, and is told the reason."""
        self.closed = reason
        for callback in list(self._callbacks.values()):
            callback()

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
        self._ask(asyncio.get_running_loop())  # what was called in this turn of the loop
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


def _group_of(store: object) -> Callable[[], AbstractContextManager[None]] | None:
    return store.group if isinstance(store, GroupingStore) else None


def _settle_all(made: list[_Waiting]) -> None:
    for one in made:
        one.settle()


def _end(executor: ThreadPoolExecutor, store: MetadataStore) -> None:
    """Close the store behind all calls that are under way, whoever has given them up."""
    executor.shutdown(wait=True)
    store.close()


# --- locks ----------------------------------------------------------------------------------------
#
# Locks of ledgers for the asyncio client: who copies or changes a ledger's copies holds its lock
# meanwhile.


LOOK_INTERVAL_S = 5.0
"""How often work under a lock looks whether it has it still."""
_RELEASE_PAUSE_MIN_S = 0.1
_RELEASE_PAUSE_MAX_S = 10.0


class LockLost(Error):
    """The session behind a ledger's lock has ended: another process may have the lock."""


class _Taking:
    """One attempt to take a lock, in a thread of the store's. Its caller may give it up before it ends."""

    def __init__(self, ledger_id: LedgerId, holder: str) -> None:
        self._ledger_id = ledger_id
        self._holder = holder
        self._mutex = threading.Lock()
        self._is_given_up = False
        self._lock: LedgerLock | None = None

    def take(self, store: MetadataStore) -> LedgerLock | None:
        """Take the lock, unless another holds it. One that nobody waits for any more is released at once."""
        lock = store.coordination.lock(self._ledger_id, self._holder)
        with self._mutex:
            self._lock = lock
            is_given_up = self._is_given_up
        if is_given_up and lock is not None:
            lock.release()
        return lock

    def give_up(self) -> LedgerLock | None:
        """Return the lock, which is to be released; None: there is none, or `take` releases it."""
        with self._mutex:
            self._is_given_up = True
            return self._lock


class LockCalls:
    """The locks of ledgers in a client's cluster (`fastbk.meta.api`). Errors are the store's."""

    def __init__(self, store: MetadataCalls) -> None:
        self._store = store
        self._releasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def hold(self, ledger_id: LedgerId, holder: str) -> AsyncIterator[LedgerLock | None]:
        """Hold a ledger's lock during the block; None: another process holds it. `holder`: this host's name.

        The lock is released on every way out of the block, also when the call that takes it is cancelled or times out.
        """
        taking = _Taking(ledger_id, holder)
        try:
            yield await self._store.call(taking.take)
        finally:
            lock = taking.give_up()
            if lock is not None:
                tried = asyncio.Event()
                task = asyncio.get_running_loop().create_task(self._release(lock, tried))
                self._releasing.add(task)
                task.add_done_callback(self._releasing.discard)
                await tried.wait()

    async def run(self, lock: LedgerLock, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Raises LockLost and cancels it once the lock is lost.

        Else two processes would copy one ledger for as long as that takes (INV-H2). A store that does not answer says
        nothing, so work goes on meanwhile.
        """
        task = asyncio.get_running_loop().create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=LOOK_INTERVAL_S))[0]:
                if not await self._may_be_held(lock):
                    what = f"the session that held the lock of ledger {lock.ledger_id} has ended"
                    raise LockLost(what, ledger_id=lock.ledger_id, retryable=True)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _may_be_held(self, lock: LedgerLock) -> bool:
        try:
            return await self._store.call(lambda _: lock.is_held())
        except Error:
            return True

    async def _release(self, lock: LedgerLock, tried: asyncio.Event) -> None:
        """Release a lock, however long that takes; `tried` is set once it was tried.

        A call that was given up may never have been made. What one that was made could not do is repeated by the store.
        """
        backoff = Backoff(_RELEASE_PAUSE_MIN_S, _RELEASE_PAUSE_MAX_S)
        try:
            while not await self._is_released(lock):
                tried.set()
                await asyncio.sleep(jittered(backoff.next_s()))
        finally:
            tried.set()

    async def _is_released(self, lock: LedgerLock) -> bool:
        try:
            await self._store.call(lambda _: lock.release())
        except ClientClosed:
            return True  # it ends with the session
        except Error:
            return False
        return True

    async def holder_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock, None if nobody does."""
        return await self._store.call(lambda store: store.coordination.worker_of(ledger_id))

    async def close(self, timeout_s: float) -> None:
        """Wait for releases that are under way; what is left ends with the session."""
        releasing = set(self._releasing)
        if releasing:
            await asyncio.wait(releasing, timeout=timeout_s)
        for one in releasing:
            one.cancel()
