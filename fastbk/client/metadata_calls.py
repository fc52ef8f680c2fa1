"""The metadata store for the asyncio client: its blocking calls run in threads of the client's own.

One thread where a call is short and only one can be made at a time (a file): what waits for it goes together, with one
commit for all, where the store can do that. Some threads for ZooKeeper, whose calls are several round trips each:
thousands of streams that begin or roll together would wait for one another. A call that hangs is given up at its
deadline and goes on in its thread, so what it does may come after what is asked later: every change is by
compare-and-set, and whoever was given up reads again.

`MetadataCalls` makes any call of a store; `LockCalls`, `RecordCalls` and `MarkCalls` have those of ledgers' locks, of
records (`fastbk.meta.records`) and of marks of under-replicated ledgers (`fastbk.meta.replica_marks`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from fastbk.client.config import ClientConfig
from fastbk.errors import (
    ClientClosed,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
)
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
from fastbk.meta.format_level import LEVEL_PATH, POLL_INTERVAL_S, checked_level
from fastbk.meta.format_level import decode as level_record
from fastbk.meta.records import (
    READ_AT_ONCE,
    READ_BYTES_MAX,
    BadRecord,
    Change,
    VersionedRecord,
    bad_record,
)
from fastbk.meta.replica_marks import FOLDERS_AT_ONCE, LedgerMark, delete_ledger
from fastbk.meta.rollback import HOLD_PATH, raise_if_held
from fastbk.meta.uri import given_store, is_gateway, is_zookeeper
from fastbk.model.ids import BookieId, LedgerId, check_ledger_id
from fastbk.model.ledger import CURSOR_KEY, PLACEHOLDER, STREAM_KEY, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.procedure import MarkReplicas
from fastbk.retry import Backoff, jittered

if TYPE_CHECKING:
    from fastbk.meta.gateway.store import GatewayAccess


T = TypeVar("T")

CALLS_AT_ONCE = 8
"""Maximum calls to ZooKeeper or a gateway at once. More would wait for the interpreter and not for the server."""
GATEWAYS_SHARE = 0.95
"""Share of a call's time after which a store of gateways gives up: it knows which gateway failed, and why."""
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
        self._is_hand_over_due = False
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
        if self._store is None and is_gateway(self.place):
            # It connects to nothing yet, but is imported first. The calls' own limits begin behind that, and so does
            # this one: else a busy machine's import takes the time in which the store says which gateway failed.
            await loop.run_in_executor(self._executor, self._opened)
            if self._executor is None:
                raise ClientClosed(self.closed or "the client is closed")
        try:
            async with asyncio.timeout(limit_s):
                if not self._is_single:
                    return await loop.run_in_executor(self._executor, self._call_store, call)
                settled: asyncio.Future[T] = loop.create_future()
                self._waiting.append(_Waiting(call, settled))
                if not self._is_hand_over_due:
                    self._is_hand_over_due = True
                    loop.call_soon(
                        self._hand_over, loop
                    )  # behind all that this turn of the loop calls
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

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_hand_over_due = False
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
        on_change = self._on_loop(callback)
        watch = await self._watch(
            lambda store: store.watch_ledger(ledger_id, lambda _: on_change())
        )
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
                    ledger = await self.read_ledger(ledger_id)
                except NoSuchLedger:
                    if version is None:
                        raise
                    return
                if ledger.version != version:
                    version = ledger.version
                    yield ledger
                await changed.wait()
        finally:
            watch.close()

    async def watch_bookies(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the loop after bookies came or went, until this is closed."""
        on_change = self._on_loop(callback)
        self._watches.append(await self._watch(lambda store: store.watch_bookies(on_change)))

    async def begin_watch(
        self,
        begin: Callable[[MetadataStore, Callable[[], None]], Watch],
        callback: Callable[[], None],
    ) -> Watch:
        """Begin any watch of the store; `callback` is called on the loop."""
        on_change = self._on_loop(callback)
        return self._kept(await self._watch(lambda store: begin(store, on_change)), callback)

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

        def on_change() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)

        return on_change

    async def close(self, timeout_s: float) -> None:
        """End the threads, and the store if it was opened here."""
        for watch in self._watches:
            watch.close()
        self._hand_over(asyncio.get_running_loop())  # what was called in this turn of the loop
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


CHECK_INTERVAL_S = 5.0
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
            while not (await asyncio.wait([task], timeout=CHECK_INTERVAL_S))[0]:
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


# --- records and marks -----------------------------------------------------------------------------


HOLD_READ_INTERVAL_S = 1.0
FOREIGN_MARKS_MAX = 10_000
_PAGE_TIMEOUT_S = 60.0
_TRIES_MAX = 20
_log = LibraryLog("fastbk.client")
_OF_NO_CURSOR: Mapping[str, bytes | None] = {CURSOR_KEY: None}


class RecordCalls:
    """The records of a client's cluster. Every call ends within `metadata_timeout`; errors are those of the store."""

    def __init__(self, store: MetadataCalls) -> None:
        self._store = store
        self._hold_read_s = self._level_read_s = float("-inf")

    async def read(self, path: str) -> VersionedRecord | None:
        """Return a record, None if there is none."""
        (record,) = await self.read_all([path])
        return record

    async def read_all(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records, in their order; asked for together."""
        return await self._store.call(lambda store: store.records.read(paths))

    async def each(self, paths: Sequence[str]) -> AsyncGenerator[VersionedRecord | None, None]:
        """Yield any number of records, in the order of their paths; few of them are in memory at a time (INV-M18)."""
        offset = 0
        while offset < len(paths):
            some = await self._some(paths[offset : offset + READ_AT_ONCE])
            offset += len(some)
            some.reverse()
            while some:
                yield some.pop()

    async def _some(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return the first of these records, as many as fit."""
        return await self._store.call(lambda store: store.records.read_some(paths, READ_BYTES_MAX))

    async def change(self, *changes: Change) -> list[int]:
        """Do all of it or nothing; return the new versions. MetadataUnavailable: it may have happened."""
        return await self._store.call(lambda store: store.records.change(changes))

    async def children(self, path: str) -> list[str]:
        """Return the names of what lies directly below, sorted."""
        return await self._store.call(lambda store: store.records.children(path))

    async def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names directly below several paths; asked for together."""
        return await self._store.call(lambda store: store.records.children_of(paths))

    async def check_not_held(self) -> None:
        """Raise MetadataOnHold while metadata is on hold (INV-M4), as known since a second at most.

        For changes other than deletions of ledgers, which the store itself refuses.
        """
        if time.monotonic() - self._hold_read_s < HOLD_READ_INTERVAL_S:
            return
        record = await self.read(HOLD_PATH)
        raise_if_held(None if record is None else record.value)
        self._hold_read_s = time.monotonic()

    async def format_level(self) -> int:
        """Return the cluster's format level as it is now. Raises LevelLacking, StorageError, MetadataUnavailable."""
        record = await self.read(LEVEL_PATH)
        return checked_level(level_record(None if record is None else record.value))

    async def check_level(self) -> None:
        """Raise LevelLacking if this version lacks the cluster's format level, as known since ten seconds at most.

        For processes that work for the whole cluster (INV-U5). A level that nobody can read stops none of them
        (INV-M17). Raises MetadataUnavailable.
        """
        now_s = time.monotonic()
        if now_s - self._level_read_s < POLL_INTERVAL_S:
            return
        try:
            await self.format_level()
        except StorageError as error:
            bad_record(LEVEL_PATH, error)
        self._level_read_s = now_s

    async def follow_level(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set. Raises LevelLacking once the level has risen above those of this version (INV-U5).

        Without metadata all goes on as before.
        """
        while not stop.is_set():
            with suppress(MetadataUnavailable):
                await self.check_level()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await stop.wait()

    async def draw_ledger_id(self) -> LedgerId:
        """Return a ledger id that nobody had or will get, to be named somewhere before its ledger is created."""
        return await self._store.call(lambda store: store.next_ledger_id())

    async def draw_and_change(self, named: Callable[[LedgerId], Change]) -> tuple[LedgerId, int]:
        """Draw a ledger id and name it by the change that `named` makes of it, in one call; return it and the version.

        `named` runs in a thread of the store's; what it raises is raised. A change that fails leaves an id that nobody
        gets: MetadataConflict, MetadataUnavailable (then it may be named).
        """

        def call(store: MetadataStore) -> tuple[LedgerId, int]:
            ledger_id = store.next_ledger_id()
            (version,) = store.records.change([named(ledger_id)])
            return ledger_id, version

        return await self._store.call(call)

    async def retire_ledger_id(
        self,
        ledger_id: LedgerId,
        owner_id: str,
        custom: Mapping[str, bytes | None] = _OF_NO_CURSOR,
        *,
        is_segment: bool = False,
        owner_key: str = STREAM_KEY,
    ) -> None:
        """Delete a ledger of a stream; where it was not created yet, see to it that it never will be.

        One that is not the stream's stays (INV-W4): a record that names it for deletion does not make it so.
        `custom`: what else its custom metadata has to have; None: no such key. `is_segment`: its chain had it as a
        segment; then it need not say whose it is. `owner_key`: of what else than a stream it is.
        """
        owner = owner_id.encode()

        def is_own(metadata: LedgerMetadata) -> bool:
            found = metadata.custom
            is_known = found.get(owner_key, owner if is_segment else None) == owner
            return is_known and all(found.get(key) == value for key, value in custom.items())

        is_gone = await self._store.call(lambda store: _retire(store, ledger_id, is_own))
        if not is_gone:
            why = "it is not the stream's, or cannot be read, so it was left"
            _log.warning(
                "stream.foreign_ledger_left", stream=owner_id, ledger_id=ledger_id, reason=why
            )

    async def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call `callback()` on the loop after each change of a record, until the watch is closed."""
        return await self._store.begin_watch(
            lambda store, on_change: store.records.watch(path, on_change), callback
        )

    async def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call `callback()` on the loop after names came or went below a path, until the watch is closed."""
        return await self._store.begin_watch(
            lambda store, on_change: store.records.watch_children(path, on_change), callback
        )

    async def follow(self, path: str) -> AsyncGenerator[VersionedRecord | None, None]:
        """Yield a record as it is now and after changes, of which several may be told as one; None where it is not."""
        changed = asyncio.Event()
        watch = await self.watch(path, changed.set)
        seen: VersionedRecord | None = None
        is_first = True
        try:
            while True:
                changed.clear()
                record = await self.read(path)
                if is_first or record != seen:
                    is_first, seen = False, record
                    yield record
                await changed.wait()
        finally:
            watch.close()


def _retire(
    store: MetadataStore, ledger_id: LedgerId, is_own: Callable[[LedgerMetadata], bool]
) -> bool:
    """Return whether the ledger is gone for good; False: it is another's, or cannot be read."""
    for _ in range(_TRIES_MAX):
        (found,) = store.read_ledgers([ledger_id])
        if found is None:
            # A store never forgets the id of a ledger that was deleted, so make one.
            try:
                store.create_ledger(ledger_id, PLACEHOLDER)
            except MetadataConflict:
                if store.read_ledgers([ledger_id]) == [None]:
                    return True  # it was deleted before
            continue
        if isinstance(found, BadRecord):
            return False  # whose it is, nobody can tell: it stays (INV-M17)
        if not (found.metadata.is_placeholder or is_own(found.metadata)):
            return False
        try:
            delete_ledger(store, ledger_id, found.version)
        except NoSuchLedger:
            return True
        except MetadataConflict:
            continue  # somebody has just closed it
        return True
    raise MetadataConflict(
        f"ledger {ledger_id} changes again and again", ledger_id=ledger_id, retryable=True
    )


class MarkCalls:
    """The marks of a client's cluster. Every call to the store ends within `metadata_timeout`; errors are the store's.

    Changes of one ledger's mark take effect in the order of the calls. So a change that its caller gave up is never
    done behind a later one: a writer that closes its ledger gives up the change that is under way, then makes its own.
    """

    def __init__(self, store: MetadataCalls) -> None:
        self._store = store
        self._last: dict[LedgerId, asyncio.Task[LedgerMark]] = {}

    async def list(self) -> list[LedgerMark]:
        """Return all marks: which bookie may lack which entries."""
        return [mark async for page in self.pages() for mark in page]

    async def pages(self, turn: int = 0) -> AsyncGenerator[Sequence[LedgerMark], None]:
        """Yield all marks in pages of about a 16th. Of those that only Apache's AutoRecovery made, 10,000 at most.

        Those that nobody can read are left out (INV-M17). `turn`: of the folder to begin with.
        """
        folders = await self._store.call(lambda store: store.marks.folders())
        index = turn % len(folders) if folders else 0
        turned = (*folders[index:], *folders[:index])
        for first in range(0, len(turned), FOLDERS_AT_ONCE):
            some = turned[first : first + FOLDERS_AT_ONCE]
            yield await self._store.call(
                lambda store: list(store.marks.list_folders(some)),  # noqa: B023
                _PAGE_TIMEOUT_S,
            )
        yield await self._store.call(
            lambda store: list(islice(store.marks.foreign(), FOREIGN_MARKS_MAX)), _PAGE_TIMEOUT_S
        )

    async def read(self, ledger_id: LedgerId) -> LedgerMark:
        """Return the mark of a ledger."""
        return await self._store.call(lambda store: store.marks.read(ledger_id))

    async def update(
        self,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica] = (),
        remove: Sequence[MissingReplica] = (),
    ) -> LedgerMark:
        """Change the mark of a ledger; remove only entries whose copies were verified.

        A cancelled call may have changed it, or may still do so, but before any later call does.
        """
        before = self._last.get(ledger_id)
        task = asyncio.get_running_loop().create_task(self._update(before, ledger_id, add, remove))
        self._last[ledger_id] = task

        def ended(_: asyncio.Task[LedgerMark]) -> None:
            if self._last.get(ledger_id) is task:
                del self._last[ledger_id]
            if not task.cancelled():
                task.exception()  # its caller may have given it up

        task.add_done_callback(ended)
        return await asyncio.shield(task)

    async def _update(
        self,
        before: asyncio.Task[LedgerMark] | None,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica],
        remove: Sequence[MissingReplica],
    ) -> LedgerMark:
        if before is not None:
            await asyncio.wait([before])
        return await self._store.call(lambda store: store.marks.update(ledger_id, add, remove))

    async def close(self, timeout_s: float) -> None:
        """Wait for changes that are under way, and give up those that take longer."""
        if self._last:
            _, late = await asyncio.wait(self._last.values(), timeout=timeout_s)
            for one in late:
                one.cancel()
            if late:
                await asyncio.wait(late)

    async def perform(self, ledger_id: LedgerId, action: MarkReplicas) -> None:
        """Do what a procedure asks for."""
        await self.update(ledger_id, action.add, action.remove)
