"""Records of the metadata store (`fastbk.meta.records`) and marks of under-replicated ledgers
(`fastbk.meta.replica_marks`) as coroutines of a client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from fastbk.client.metadata_calls import MetadataCalls
from fastbk.errors import MetadataConflict, MetadataUnavailable, NoSuchLedger, StorageError
from fastbk.meta.api import MetadataStore, Watch
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
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import CURSOR_KEY, PLACEHOLDER, STREAM_KEY, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.actions import MarkReplicas

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
        (found,) = await self.read_all([path])
        return found

    async def read_all(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records, in their order; asked for together."""
        return await self._store.call(lambda store: store.records.read(paths))

    async def each(self, paths: Sequence[str]) -> AsyncGenerator[VersionedRecord | None, None]:
        """Yield any number of records, in the order of their paths; few of them are in memory at a time (INV-M18)."""
        at = 0
        while at < len(paths):
            some = await self._some(paths[at : at + READ_AT_ONCE])
            at += len(some)
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
        found = await self.read(HOLD_PATH)
        raise_if_held(None if found is None else found.value)
        self._hold_read_s = time.monotonic()

    async def format_level(self) -> int:
        """Return the cluster's format level as it is now. Raises LevelLacking, StorageError, MetadataUnavailable."""
        found = await self.read(LEVEL_PATH)
        return checked_level(level_record(None if found is None else found.value))

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
        stream_id: str,
        custom: Mapping[str, bytes | None] = _OF_NO_CURSOR,
        *,
        is_segment: bool = False,
    ) -> None:
        """Delete a ledger of a stream; where it was not created yet, see to it that it never will be.

        One that is not the stream's stays (INV-W4): a record that names it for deletion does not make it so.
        `custom`: what else its custom metadata has to have; None: no such key. `is_segment`: its chain had it as a
        segment; then it need not say whose it is.
        """
        owner = stream_id.encode()

        def is_own(metadata: LedgerMetadata) -> bool:
            found = metadata.custom
            is_known = found.get(STREAM_KEY, owner if is_segment else None) == owner
            return is_known and all(found.get(key) == value for key, value in custom.items())

        is_gone = await self._store.call(lambda store: _retire(store, ledger_id, is_own))
        if not is_gone:
            why = "it is not the stream's, or cannot be read, so it was left"
            _log.warning(
                "stream.foreign_ledger_left", stream=stream_id, ledger_id=ledger_id, reason=why
            )

    async def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call `callback()` on the loop after each change of a record, until the watch is closed."""
        return await self._store.begin_watch(
            lambda store, told: store.records.watch(path, told), callback
        )

    async def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call `callback()` on the loop after names came or went below a path, until the watch is closed."""
        return await self._store.begin_watch(
            lambda store, told: store.records.watch_children(path, told), callback
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
                found = await self.read(path)
                if is_first or found != seen:
                    is_first, seen = False, found
                    yield found
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
        at = turn % len(folders) if folders else 0
        turned = (*folders[at:], *folders[:at])
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
