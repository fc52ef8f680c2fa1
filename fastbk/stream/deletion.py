"""Deleting a stream's old segments, in two steps (INV-S9), its doomed ledgers (INV-S8), pages nobody names, and whole
streams. Each deletion is a line of the audit log first.

Every step may be repeated by anybody after a crash of whoever began it: the chain names a ledger until it is deleted,
and a page's record goes when no chain can name it any more.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from fastbk.client.client import Client
from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import Error, MetadataConflict, StorageError, StreamNotFound
from fastbk.limits import RateLimit
from fastbk.meta.records import Change
from fastbk.model.ledger import STREAM_KEY
from fastbk.observe.library_log import LibraryLog
from fastbk.safe_files import opener, sync_directory
from fastbk.stream.chain import (
    CONDEMNED,
    NONE,
    Chain,
    Segment,
    condemn,
    drop_condemned,
    drop_deleted,
    forget_deleted,
    mark_deleting,
    put_chain,
)
from fastbk.stream.chain_store import ChainStore, VersionedChain, page_name, page_path
from fastbk.stream.context import gathered
from fastbk.stream.cursor.store import delete_cursor
from fastbk.stream.drafts import drafts_of, give_up
from fastbk.stream.namespace.tree import StreamRecord, get
from fastbk.stream.paths import (
    coordination_path,
    cursors_path,
    drafts_path,
    number_of_page,
    pages_path,
    producers_path,
    stream_path,
)
from fastbk.stream.retention import Item, first_number, last_number
from fastbk.stream.segment_contents import holds_byte
from fastbk.units import MIB

# --- the audit log --------------------------------------------------------------------------------
#
# The audit log of streams: one JSON line for each ledger, cursor and stream that is deleted, with
# the reason.


SIZE_BYTES_MAX = 64 * MIB
"""A longer file becomes `<name>.1`, in place of the one before it."""
Event = dict[str, object]
Sink = Callable[[Sequence[Event]], None]
"""Keeps events before it returns; raises OSError."""


def log_lines(events: Sequence[Event]) -> None:
    """Write events to the process's log: where no file is named."""
    for event in events:
        _log.info("janitor.deletes", **event)


@dataclass(frozen=True, slots=True)
class AuditFile:
    """A file that events are appended to, durably. Several processes may write to the same one."""

    _path: Path

    def __call__(self, events: Sequence[Event]) -> None:
        """Append a line an event. Raises OSError: then what they announce must not be done."""
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        is_new = self._set_aside()
        file = opener(os.fspath(self._path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # a crash cut a line short
            if os.write(file, lines) != len(lines):
                raise OSError(f"{self._path}: a line was written in part")
            os.fsync(file)
        finally:
            os.close(file)
        if is_new:
            sync_directory(self._path.parent)

    def _set_aside(self) -> bool:
        try:
            if self._path.stat().st_size <= SIZE_BYTES_MAX:
                return False
            self._path.rename(self._path.with_name(f"{self._path.name}.1"))
        except FileNotFoundError:
            pass
        return True


class Audit:
    """Tells a sink of deletions, off the event loop, one call at a time."""

    def __init__(self, sink: Sink = log_lines) -> None:
        self._sink = sink
        self._turn = asyncio.Lock()

    async def record(self, reason: str, *events: Event) -> None:
        """Return when these deletions are noted. Raises StorageError: then nothing may be deleted."""
        if not events:
            return
        now_s = int(time.time())
        lines = [{"time_s": now_s, "reason": reason, **event} for event in events]
        async with self._turn:
            try:
                if self._sink is log_lines:
                    self._sink(lines)
                else:
                    await asyncio.to_thread(self._sink, lines)
            except OSError as error:
                raise StorageError(f"the audit log cannot be written: {error}") from error


# --- segments -------------------------------------------------------------------------------------

_log = LibraryLog("fastbk.stream.janitor")

TOGETHER = 16
"""Ledgers that are deleted at once."""
DROPPED_AT_ONCE = 256
"""Segments that leave the chain by one change."""
PAGES_AT_ONCE = 50


@dataclass(slots=True)
class Deleter:
    """Deletes ledgers, with a line of the audit log before, so many a second."""

    client: Client
    audit: Audit = field(default_factory=Audit)
    pace: RateLimit = field(default_factory=lambda: RateLimit(1000.0))
    ledgers: int = 0
    """Deleted so far."""
    orphans: int = 0
    """How many of these were no segment: made or reserved, and never needed."""
    size_bytes: int = 0
    """Bytes of the entries of deleted segments, each once; bookies give them back when their gc runs."""

    async def ledgers_of(
        self, stream_id: str, rows: Sequence[Segment], others: Sequence[int], reason: str
    ) -> None:
        """Delete ledgers that the stream's chain names: of segments, and others; those that are gone already are fine.

        One that was never made will never be made, however slow its writer is.
        """
        segments = {row.ledger_id for row in rows}
        ledger_ids = [*(row.ledger_id for row in rows), *others]
        for offset in range(0, len(ledger_ids), TOGETHER):
            some = ledger_ids[offset : offset + TOGETHER]
            await self.audit.record(
                reason, *({"stream": stream_id, "ledger": ledger_id} for ledger_id in some)
            )
            retire = self.client.records.retire_ledger_id
            retiring = (retire(one, stream_id, is_segment=one in segments) for one in some)
            ends = await asyncio.gather(*retiring, return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise end
            self.ledgers += len(some)
            await asyncio.sleep(self.pace.take(len(some)))
        self.orphans += len(others)
        self.size_bytes += sum(row.size_bytes for row in rows)


async def delete_pending(
    deleter: Deleter, store: ChainStore, known: VersionedChain
) -> VersionedChain:
    """Delete the ledgers that the chain names and does not need."""
    doomed = known.chain.doomed
    if not doomed:
        return known
    await deleter.ledgers_of(store.stream_id, (), doomed, "doomed: no record is in it")
    return await store.change(lambda chain: forget_deleted(chain, doomed), known)


async def delete_below(
    deleter: Deleter, store: ChainStore, known: VersionedChain, below: int, reason: str
) -> VersionedChain:
    """Delete closed segments below this number, but for the newest closed one."""
    known = await store.change(lambda chain: mark_deleting(chain, below), known)
    return await finish_deleting(deleter, store, known, reason)


async def finish_deleting(
    deleter: Deleter, store: ChainStore, known: VersionedChain, reason: str
) -> VersionedChain:
    """Delete what is marked: ledgers, then rows, then pages."""
    while known.chain.head < known.chain.deleting:
        chain = known.chain
        try:
            some = [row async for row in _marked(store, chain)]
        except StorageError:
            known = await store.read()
            if known.chain.head == chain.head:
                raise
            continue  # another janitor was faster: the page is gone with its segments
        await deleter.ledgers_of(store.stream_id, some, (), reason)
        last = some[-1]
        dropped = partial(drop_deleted, below=last.number + 1, head_seq=last.end_seq)
        known = await store.change(dropped, known)
        gone = {page.page for page in chain.pages} - {page.page for page in known.chain.pages}
        if gone:
            await delete_unnamed_pages(deleter.client, store, known)
    return known


async def _marked(store: ChainStore, chain: Chain) -> AsyncGenerator[Segment, None]:
    """Yield the next rows that are marked, some of them."""
    end = min(chain.deleting, chain.head + DROPPED_AT_ONCE)
    async for row in store.rows_from(chain, chain.head):
        if row.number >= end:
            return
        yield row


class HeldSizes:
    """Which segments have as many bytes as their chain says, as far as bookies were asked (INV-W8).

    Who may append to a stream says how large its segments are. So positions of their bytes are drawn, and looked for:
    with `SAMPLES` of them, all are found only if nearly all of the bytes are there. A segment that lies counts nothing.
    """

    SAMPLES = 24
    PROOF_S = 60.0
    REMEMBERED_MAX = 100_000

    def __init__(self, client: Client) -> None:
        self._client = client
        # by ledger: stream, number, bytes
        self._lying: OrderedDict[int, tuple[str, int, int]] = OrderedDict()
        # by stream: the last segment that was looked at
        self._proven: OrderedDict[str, int] = OrderedDict()

    def corrected(self, stream_id: str, items: Sequence[Item]) -> list[Item]:
        """Return these items with what their lying segments say taken off."""
        lies = [
            (number, size) for stream, number, size in self._lying.values() if stream == stream_id
        ]
        if not lies:
            return [*items]
        return [
            replace(item, size_bytes=item.size_bytes - sum(
                size for number, size in lies if first_number(item) <= number <= last_number(item)
            ))
            for item in items
        ]  # fmt: skip

    async def prove(self, store: ChainStore, items: Sequence[Item], samples: int = SAMPLES) -> bool:
        """Return whether positions in these items were all found. Raises what reads raise, TimeoutError."""
        total = sum(item.size_bytes for item in items)
        async with asyncio.timeout(self.PROOF_S):
            for _ in range(samples if total else 0):
                row, position = await self._row_at(store, items, random.randrange(total))
                if row.ledger_id not in self._lying and not await self._holds(row, position):
                    self._note(store.stream_id, row)
                    return False
        return True

    async def prove_new(
        self, store: ChainStore, items: Sequence[Item], samples: int = 4
    ) -> list[Item]:
        """Look at what has come to a stream since the last call; return the items, corrected.

        Where bookies do not answer, what they have is taken for what the chain says.
        """
        last = self._proven.get(store.stream_id, 0)
        fresh = [item for item in items if last_number(item) > last]
        with suppress(Error, TimeoutError):
            while fresh and not await self.prove(
                store, self.corrected(store.stream_id, fresh), samples
            ):
                pass
            if items:
                self._proven[store.stream_id] = last_number(items[-1])
                self._proven.move_to_end(store.stream_id)
                if len(self._proven) > self.REMEMBERED_MAX:
                    self._proven.popitem(last=False)
        return self.corrected(store.stream_id, items)

    async def _row_at(
        self, store: ChainStore, items: Sequence[Item], position: int
    ) -> tuple[Segment, int]:
        for item in items:
            if position < item.size_bytes:
                if isinstance(item, Segment):
                    return item, position
                rows = self.corrected(store.stream_id, await store.page(item))
                return await self._row_at(store, rows, position)
            position -= item.size_bytes
        raise StorageError(f"stream {store.stream_id}: a page has other sizes than its chain says")

    async def _holds(self, row: Segment, position: int) -> bool:
        reader = await self._client.open_ledger(row.ledger_id, recovery=False)
        async with reader:
            is_whole = reader.metadata.is_closed and row.size_bytes <= (reader.metadata.length or 0)
            return is_whole and await holds_byte(reader, position)

    def _note(self, stream_id: str, row: Segment) -> None:
        self._lying[row.ledger_id] = stream_id, row.number, row.size_bytes
        if len(self._lying) > self.REMEMBERED_MAX:
            self._lying.popitem(last=False)
        why = (
            f"it says {row.size_bytes} bytes, and its ledger does not have them: it counts nothing"
        )
        _log.warning(
            "janitor.segment_size_refused",
            stream=stream_id,
            segment=row.number,
            ledger_id=row.ledger_id,
            reason=why,
        )


async def delete_unnamed_pages(client: Client, store: ChainStore, known: VersionedChain) -> None:
    """Delete records of pages that no chain names, nor ever will: segments are gone, or another one was faster.

    One whose number is not below the chain's `next_page` may be written for a change that is under way.
    """
    parent = pages_path(store.stream_id)
    named = {page_name(page) for page in known.chain.pages}
    unnamed = [
        name
        for name in await client.records.children(parent)
        if name not in named and number_of_page(name) < known.chain.next_page
    ]
    await delete_records(client, [f"{parent}/{name}" for name in unnamed])


async def delete_records(client: Client, paths: Sequence[str]) -> None:
    """Delete records that nobody changes; those that are gone already are fine."""
    for offset in range(0, len(paths), PAGES_AT_ONCE):
        some = paths[offset : offset + PAGES_AT_ONCE]
        for path, found in zip(some, await client.records.read_all(some), strict=True):
            if found is not None:
                with suppress(MetadataConflict):  # somebody else has deleted it
                    await client.records.change(Change(path, None, found.version))


# --- whole streams --------------------------------------------------------------------------------
#
# Deleting a whole stream: cursors, ledgers, pages, and last its chain and record, in one change.
#
# Its name has gone before (`namespace.py`), together with a mark in its record. Every step may be
# repeated by anybody after a crash of whoever began it; the janitor does that for every record with
# the mark. Nobody's help is needed: the chain shuts writers and readers out, and the ledgers of
# open segments are fenced before they are deleted, so that a writer's next append fails and finds
# the stream gone. What it has under way then is lost with the stream (INV-S19).


REASON = "the stream was deleted"
FENCED_TOGETHER = 16
TRIES_MAX = 20
"""How often the last change is tried while others, slow ones, still write below the stream."""


async def delete_stream(client: Client, stream_id: str, deleter: Deleter | None = None) -> None:
    """Delete a stream that has no name any more. Nothing happens where there is none.

    Raises MetadataConflict for a stream that has a name, MetadataOnHold, MetadataUnavailable and what deleting raises;
    the same call, or a janitor, goes on then.
    """
    await client.records.check_not_held()
    deleter = deleter or Deleter(client, Audit())
    where = stream_path(stream_id)
    raw = await client.records.read(where)
    if raw is not None and not get(StreamRecord, raw.value, where).deleting:
        raise MetadataConflict(f"stream {stream_id} has a name: nothing of it is deleted")
    store = ChainStore(client.records, stream_id, client.config.metadata_timeout, is_deleter=True)
    try:
        known = await _condemned(deleter, store)
    except StreamNotFound:
        await delete_leftovers(deleter, stream_id)
        return
    await _fence(client, [row.ledger_id for row in known.chain.open_rows])
    known = await _delete_ledgers(deleter, store, known)
    for _ in range(TRIES_MAX):
        await delete_leftovers(deleter, stream_id)
        try:
            await _delete_chain_and_record(client, store)
            break
        except MetadataConflict:
            continue  # a slow writer has put something below it, or another one deletes it as well
    else:
        raise MetadataConflict(
            f"stream {stream_id} cannot be deleted: somebody goes on writing below its record",
            retryable=True,
        )
    await delete_leftovers(deleter, stream_id)


async def _condemned(deleter: Deleter, store: ChainStore) -> VersionedChain:
    """Shut writers out; return the chain. One that cannot be read goes with all ledgers that say they are its stream's.

    Raises StreamNotFound, MetadataConflict.
    """
    try:
        return await store.change(condemn)
    except StorageError as error:
        client, stream_id = deleter.client, store.stream_id
        raw = await client.records.read(store.path)
        if raw is None:
            raise StreamNotFound(f"there is no stream {stream_id}") from None
        _log.warning("stream.bad_record", path=store.path, reason=str(error))
        # Nobody can change such a chain, so no ledger comes to it; one page of a damaged chain is as bad as the chain.
        owner = stream_id.encode()
        mine = [
            ledger.ledger_id
            async for ledger in client.list_ledgers()
            if ledger.metadata.custom.get(STREAM_KEY) == owner
        ]
        await _fence(client, mine)
        await deleter.ledgers_of(stream_id, (), mine, REASON)
        empty = Chain(stream_id, owner=CONDEMNED, is_sealed=True)
        (version,) = await client.records.change(Change(store.path, put_chain(empty), raw.version))
        return VersionedChain(empty, version)


async def _fence(client: Client, ledger_ids: Sequence[int]) -> None:
    """Fence ledgers, as far as their bookies answer; a closed one costs a look at its metadata."""
    await gathered(client.fence, ledger_ids, FENCED_TOGETHER)


async def _delete_ledgers(
    deleter: Deleter, store: ChainStore, known: VersionedChain
) -> VersionedChain:
    """Delete all ledgers that the chain names: those of pages first, page by page, as they are the oldest."""
    while known.chain.pages:
        page = known.chain.pages[0]
        rows: list[Segment] = []
        try:
            rows = [row for row in await store.page(page) if row.number >= known.chain.head]
        except (
            StorageError
        ) as error:  # its ledgers stay, and `fastbk doctor` names ledgers that no chain does
            _log.warning(
                "stream.bad_record", path=page_path(store.stream_id, page), reason=str(error)
            )
        await deleter.ledgers_of(store.stream_id, rows, (), REASON)
        known = await store.change(partial(drop_condemned, below=page.last + 1), known)
    while (others := _other_ledgers(known.chain)) or known.chain.rows:
        rows_end, doomed = known.chain.next_number, known.chain.doomed
        await deleter.ledgers_of(store.stream_id, known.chain.rows, others, REASON)

        def empty(chain: Chain, end: int = rows_end, gone: tuple[int, ...] = doomed) -> Chain:
            return forget_deleted(drop_condemned(chain, end), gone)

        known = await store.change(empty, known)
        if known.chain.reserved != NONE and not known.chain.rows and not known.chain.doomed:
            break  # it stays named, and is retired
    return known


def _other_ledgers(chain: Chain) -> list[int]:
    return [*chain.doomed, *([] if chain.reserved == NONE else [chain.reserved])]


async def _delete_chain_and_record(client: Client, store: ChainStore) -> None:
    paths = [store.path, stream_path(store.stream_id)]
    found = await client.records.read_all(paths)
    changes = [
        Change(path, None, one.version) for path, one in zip(paths, found, strict=True) if one
    ]
    if changes:
        await client.records.change(*changes)


async def delete_leftovers(deleter: Deleter, stream_id: str) -> None:
    """Delete the cursors, drafts and pages of a stream that is deleted, or that one who was slow wrote after it was."""
    client = deleter.client
    cursors = await client.records.children(cursors_path(stream_id))
    if cursors:
        for name in cursors:
            await deleter.audit.record(REASON, {"stream": stream_id, "cursor": name})
            await delete_cursor(client, stream_id, unquote(name))
    drafts = await drafts_of(client, stream_id)
    for draft in drafts:
        await deleter.audit.record(REASON, draft.event())
    await give_up(client, drafts)
    # Pages, and what no cursor or draft can be: it has no ledgers that anybody knows of.
    folders = (pages_path, producers_path, cursors_path, drafts_path)
    for below in (folder(stream_id) for folder in folders):
        rest = await client.records.children(below)
        await delete_records(client, [f"{below}/{name}" for name in rest])


# --- records of a namespace that is gone ------------------------------------------------------------


async def delete_coordination(records: RecordCalls, namespace_id: str) -> int:
    """Delete the records of coordination of a namespace that is gone; return how many."""
    folder = coordination_path(namespace_id)
    paths = [f"{folder}/{part}" for part in await records.children(folder)]
    count = 0
    for path in (*paths, folder):
        record = await records.read(path)
        if record is not None:
            with suppress(
                MetadataConflict
            ):  # its holder has just renewed it: the next pass deletes it
                await records.change(Change(path, None, record.version))
                count += 1
    return count
