"""The janitor of all streams: ends what is idle, applies retention, deletes what is not needed any more.

Any number may run, and be killed at any moment: all they do are compare-and-sets and deletions that may be repeated.
A stream that cannot be worked on is counted and passed by until the next pass; without metadata the pass ends.

Decisions 73 and 151.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

from fastbk.client.client import Client
from fastbk.client.ledger_reader import Entry, LedgerReader
from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    MetadataOnHold,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
    StreamNotFound,
)
from fastbk.limits import RateLimit
from fastbk.meta.format_level import LevelLacking
from fastbk.meta.records import Change
from fastbk.observe.library_log import LibraryLog
from fastbk.stream import retention
from fastbk.stream.chain import CONDEMNED, Chain, Segment
from fastbk.stream.chain_store import ChainStore, VersionedChain
from fastbk.stream.context import clock_us, gathered
from fastbk.stream.cursor.backlog import CursorGauges
from fastbk.stream.cursor.store import cursors_of, delete_cursor
from fastbk.stream.deletion import (
    Audit,
    Deleter,
    HeldSizes,
    Sink,
    delete_below,
    delete_coordination,
    delete_leftovers,
    delete_pending,
    delete_stream,
    delete_unnamed_pages,
    finish_deleting,
    log_lines,
)
from fastbk.stream.drafts import KEPT_S, drafts_of, give_up
from fastbk.stream.namespace.catalog import records_at
from fastbk.stream.namespace.listing import (
    Namespaces,
    StreamSnapshot,
    all_streams,
    chains_at_once,
    ids_below,
    kept_bytes,
)
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    NamespaceRecord,
    StoredRecord,
    StreamRecord,
    Versioned,
    get_or,
    put,
)
from fastbk.stream.object_records import all_object_counts, old_uploads
from fastbk.stream.object_records import give_up as give_up_upload
from fastbk.stream.opening import new_owner, open_stream
from fastbk.stream.paths import COORDINATION, STORED, namespace_path, stored_path
from fastbk.stream.pattern.store import PatternHolds, delete_pattern_cursor, gone_cursors
from fastbk.stream.policy import DEFAULT_POLICY, StreamPolicy
from fastbk.stream.positions import CARRIED_US_MAX, DLSN
from fastbk.stream.retention import items_of
from fastbk.stream.segment_contents import head_of

T = TypeVar("T")

_log = LibraryLog("fastbk.stream.janitor")


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorOptions:
    """How a janitor works."""

    interval_s: float = 60.0
    """Pause from the end of a pass to the next one, 0.1 to 86,400."""
    roll_grace_s: float = 60.0
    """How much older than its age a segment has to be before it is ended for its writer. More than clocks differ."""
    thorough_every: int = 10
    """Cursors that expire, and pages that nobody names, are looked for in this share of the streams each pass."""
    left_check_s: float = 10.0
    """Pause between two checks of what dead writers left above their LAC, 0.05 to 3,600."""
    left_after_s: float = 18.0
    """How long a LAC has to stand still below entries, by these looks, until the segment's ledger is closed."""
    streams_at_once: int = 8
    """Worked on together, 1 to 1,000."""
    ledgers_per_s: float = 500.0
    """Deleted at most."""
    cursor_gauges_max: int = 0
    """Cursors of which is found out how far they are behind, for `gauges`; 0: none."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.interval_s <= 86_400:
            raise ConfigError("a janitor's interval must be from 0.1 to 86400 seconds")
        if not 0.05 <= self.left_check_s <= 3600 or not 0 <= self.left_after_s <= 86_400:
            raise ConfigError(
                "left_check_s must be from 0.05 to 3600 seconds, left_after_s from 0 to 86400"
            )
        if self.roll_grace_s < 0 or self.ledgers_per_s <= 0 or self.thorough_every < 1:
            raise ConfigError(
                "roll_grace_s must be 0 or more, ledgers_per_s and thorough_every above 0"
            )
        if not 0 <= self.cursor_gauges_max <= 1_000_000:
            raise ConfigError("cursor_gauges_max must be from 0 to 1000000")
        if not 1 <= self.streams_at_once <= 1000:
            raise ConfigError("streams_at_once must be from 1 to 1000")


@dataclass(slots=True)
class Counts:
    """What a pass, or all of them, did."""

    passes: int = 0
    streams: int = 0
    """Looked at."""
    rolled: int = 0
    """Taken over, as nobody wrote to them any more."""
    left_closed: int = 0
    """Segments whose ledger was closed as a dead writer had left entries above the LAC."""
    segments_deleted: int = 0
    ledgers_deleted: int = 0
    orphans_deleted: int = 0
    """Ledgers among them that were no segment: reserved or made, and never needed."""
    reclaimed_bytes: int = 0
    """Bytes of the entries of deleted segments; bookies give the space back when their gc runs."""
    cursors_expired: int = 0
    uploads_ended: int = 0
    """Ledgers of objects that never got their name, or have lost it."""
    streams_deleted: int = 0
    errors: int = 0
    """Streams that could not be worked on."""

    def add(self, other: Counts) -> None:
        """Count another pass in."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def as_dict(self) -> dict[str, int]:
        """Return all of it by name."""
        return asdict(self)


class Janitor:
    """Looks at all streams of a client's cluster, again and again; beside that, at their open segments.

    Attributes:
        counts: of all passes so far; a pass that metadata ended early counts, too.
        early_ends: passes that something ended before they had looked at everything.
        last_pass_s: how long the last whole pass took, None before the first.
        last_pass_ended_s: when it ended, by the monotonic clock.
        gauges: how far cursors are behind.
        streams_ahead: whose last record has a time far ahead of this machine's clock, by the last whole pass.
    """

    def __init__(
        self, client: Client, options: JanitorOptions | None = None, sink: Sink = log_lines
    ) -> None:
        """`sink`: keeps the lines of the audit log."""
        self.options = options or JanitorOptions()
        self.counts = Counts()
        self.early_ends = 0
        self.last_pass_s: float | None = None
        self.last_pass_ended_s: float | None = None
        self.streams_ahead = self._streams_ahead = 0
        self._patterns = PatternHolds(client.records)
        self.gauges = CursorGauges(client, self.options.cursor_gauges_max, self._patterns)
        self._client = client
        self._deleter = Deleter(client, Audit(sink), RateLimit(self.options.ledgers_per_s))
        self._sizes = HeldSizes(client)
        self._rolls = IdleRolling(client, self.options.roll_grace_s)
        self._left = LeftSegments(client, self.options.left_after_s)
        self._pass = 0

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Pass until `stop` is set, or for ever. Without metadata it waits for the next pass. Raises LevelLacking."""
        stop = stop or asyncio.Event()
        looking = asyncio.get_running_loop().create_task(self._look_for_left(stop))
        try:
            await self._pass_again(stop)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look_for_left(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.close_left_segments()
            except Error as error:
                _log.info("janitor.look_ended_early", reason=str(error))
            await asyncio.sleep(self.options.left_check_s * random.uniform(0.9, 1.1))

    async def close_left_segments(self) -> int:
        """Look once at all open segments; close the ledgers of those whose writer is dead and left entries unseen.

        Returns how many. Two looks are needed at least. Raises MetadataUnavailable, MetadataOnHold, LevelLacking.
        """
        await self._check_may_change()
        self._left.begin()
        before, loop = self.counts.left_closed, asyncio.get_running_loop()

        async def look(chain: Chain) -> None:
            try:
                self.counts.left_closed += await self._left.close_left(chain, loop.time())
            except (Error, TimeoutError) as error:
                _log.info("janitor.look_failed", stream=chain.stream_id, reason=str(error))

        async for chains in chains_at_once(self._client.records):
            open_ones = [chain for chain in chains if chain.open_rows]
            await gathered(look, open_ones, self.options.streams_at_once)
        return self.counts.left_closed - before

    async def _pass_again(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.pass_once()
            except LevelLacking:
                raise
            except Error as error:
                self.early_ends += 1
                _log.warning("janitor.pass_ended_early", reason=str(error))
            # Several janitors should not go in step.
            wait_s = self.options.interval_s * random.uniform(0.9, 1.1)
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def pass_once(self, *, thorough: bool = False) -> Counts:
        """Look at every stream once; return what was done. `thorough`: at everything of each, as seldom as it changes.

        Raises MetadataUnavailable, MetadataOnHold, LevelLacking: nothing was done then, or no more.
        """
        counts, began_s, deleter = Counts(passes=1), time.monotonic(), self._deleter
        before = (deleter.ledgers, deleter.orphans, deleter.size_bytes)
        every = 1 if thorough else self.options.thorough_every
        try:
            await self._check_may_change()
            self.gauges.begin()
            self._streams_ahead = 0
            sizes = ByteCounts(self._client, self._sizes)
            async for some in all_streams(self._client.records):
                await self._process_all(some, counts, every, sizes)
            await self._delete_gone_cursors(counts)
            await self._delete_gone_coordination()
            await self._end_old_uploads(counts)
            await sizes.add_objects()
            await sizes.write()
            self.gauges.end()
            self.streams_ahead = self._streams_ahead
        finally:
            self._pass += 1
            counts.ledgers_deleted = deleter.ledgers - before[0]
            counts.orphans_deleted = deleter.orphans - before[1]
            counts.reclaimed_bytes = deleter.size_bytes - before[2]
            self.counts.add(counts)
        self.last_pass_s = time.monotonic() - began_s
        self.last_pass_ended_s = time.monotonic()
        done = counts.as_dict()
        if any(done[name] for name in done if name not in ("passes", "streams")):
            _log.info("janitor.passed", seconds=round(time.monotonic() - began_s, 3), **done)
        return counts

    async def _check_may_change(self) -> None:
        """Raise MetadataOnHold, LevelLacking, and whatever keeps this from being known."""
        await self._client.records.check_not_held()
        await self._client.records.check_level()

    async def _process_all(
        self, some: list[StreamSnapshot], counts: Counts, every: int, sizes: ByteCounts
    ) -> None:
        """Look at these streams, some at once; raise what they all would meet, as MetadataUnavailable."""
        away: list[Error] = []

        async def process(found: StreamSnapshot) -> None:
            if away:
                return
            counts.streams += 1
            turn = zlib.crc32(found.stream_id.encode()) + self._pass
            chain = None if found.known is None else found.known.chain
            try:
                await self._check_may_change()
            except Error as error:
                away.append(error)
                return
            try:
                try:
                    chain = await self._process(found, counts, turn, every)
                except StreamNotFound:
                    chain = None  # somebody else has deleted it meanwhile
                finally:
                    await sizes.add(found, chain)
            except (MetadataUnavailable, MetadataOnHold) as error:
                away.append(error)
            except Exception as error:  # noqa: BLE001 - of one stream; the others go on
                counts.errors += 1
                _log.warning(
                    "janitor.stream_failed",
                    stream=found.stream_id,
                    name=found.record.name if found.record else "",
                    reason=f"{type(error).__name__}: {error}",
                )

        await gathered(process, some, self.options.streams_at_once)
        if away:
            raise away[0]

    async def _process(
        self, found: StreamSnapshot, counts: Counts, turn: int, every: int
    ) -> Chain | None:
        """Do what is to be done for one stream; return its chain as it is then, None if it is gone.

        `turn` rises with each pass; what is seldom done is done when it can be divided by `every`.
        """
        is_thorough = turn % every == 0
        record, known = found.record, found.known
        is_deleted = record is not None and record.deleting
        if is_deleted or (known is not None and known.chain.owner == CONDEMNED):
            await delete_stream(self._client, found.stream_id, self._deleter)
            counts.streams_deleted += 1
            return None
        if found.trouble is not None:
            raise found.trouble
        if known is None:
            # ids are never used again: it was deleted, and somebody slow wrote below it
            if record is None:
                await delete_leftovers(self._deleter, found.stream_id)
                return None
            raise Error(f"stream {record.name} has no chain")
        store = ChainStore(
            self._client.records, found.stream_id, self._client.config.metadata_timeout
        )
        head = known.chain.head
        known = await delete_pending(self._deleter, store, known)
        known = await finish_deleting(self._deleter, store, known, "was marked before")
        if found.policy is not None:
            known = await self._roll(store, known, found.policy, counts)
        if is_thorough and known.chain.next_page:
            await delete_unnamed_pages(self._client, store, known)
        # Drafts wait for a week, so they are looked for ten times as seldom as cursors.
        if is_thorough and (every == 1 or turn % (10 * every) == 0):
            await self._give_up_old_drafts(found.stream_id)
        known = await self._retain(store, known, found, counts, is_thorough=is_thorough)
        await self.gauges.measure(found, is_thorough=is_thorough)
        counts.segments_deleted += known.chain.head - head
        self._streams_ahead += known.chain.newest_time_us - clock_us() > CARRIED_US_MAX
        return known.chain

    async def _give_up_old_drafts(self, stream_id: str) -> None:
        """Give up drafts of whoever did not come back in a week; who does is told by a conflict, and begins anew."""
        kept_from_us = clock_us() - int(KEPT_S * 1e6)
        drafts = await drafts_of(self._client, stream_id)
        old = [draft for draft in drafts if draft.made_us < kept_from_us]
        for draft in old:
            await self._deleter.audit.record("nobody attached it", draft.event())
        await give_up(self._client, old)

    async def _roll(
        self, store: ChainStore, known: VersionedChain, policy: StreamPolicy, counts: Counts
    ) -> VersionedChain:
        epoch = known.chain.epoch
        known = await self._rolls.roll_if_idle(store, known, policy, clock_us())
        if known.chain.epoch != epoch:
            counts.rolled += 1
            _log.info("janitor.rolled", stream=store.stream_id)
            known = await delete_pending(self._deleter, store, known)
        return known

    # --- retention ----------------------------------------------------------------------------------------------

    async def _retain(
        self,
        store: ChainStore,
        known: VersionedChain,
        found: StreamSnapshot,
        counts: Counts,
        *,
        is_thorough: bool,
    ) -> VersionedChain:
        """Delete the segments that end before T (INV-S9); look at cursors where something depends on them."""
        chain, now_us = known.chain, clock_us()
        policy = found.policy or DEFAULT_POLICY  # not known: only what was cut off explicitly goes
        if is_thorough:
            await self._cursor_marks(store.stream_id, now_us, counts)
        points, below, items = await self._points(store, chain, policy, (), now_us)
        if below <= chain.deleting or len(items) == 0:
            return known
        marks: list[DLSN] = []
        if policy.hold_for_cursors:
            own = await self._cursor_marks(store.stream_id, now_us, counts)
            for is_fresh in (False, True):
                marks = own + await self._pattern_marks(
                    store.stream_id, found.record, is_fresh=is_fresh
                )
                points, below, items = await self._points(store, chain, policy, marks, now_us)
                if below <= chain.deleting:
                    return known
        by_age = retention.without_sizes(policy)
        while policy != by_age and below > chain.deleting:
            # By size only what bookies hold counts: who may append says how much there is behind.
            aged = await self._points(store, chain, by_age, marks, now_us)
            if below <= aged[1]:
                break
            kept = [item for item in items if retention.first_number(item) >= below]
            try:
                if await self._sizes.prove(store, kept):
                    break
            except (Error, TimeoutError) as error:
                _log.warning(
                    "janitor.size_not_proven",
                    stream=store.stream_id,
                    reason=str(error) or "it took too long",
                )
                policy = by_age
            points, below, items = await self._points(store, chain, policy, marks, now_us)
        reason = f"all of it lies before {points.target}: {_why(chain, points)}"
        return await delete_below(self._deleter, store, known, below, reason)

    async def _points(
        self,
        store: ChainStore,
        chain: Chain,
        policy: StreamPolicy,
        marks: Sequence[DLSN],
        now_us: int,
    ) -> tuple[retention.Points, int, list[retention.Item]]:
        """Return what retention comes to, the number below which segments may go, and the items that say so."""
        items = self._sizes.corrected(store.stream_id, retention.items_of(chain))
        while page := retention.page_needed(items, policy, now_us):
            rows = self._sizes.corrected(store.stream_id, await store.page(page))
            items = retention.opened(items, page, rows, chain.deleting)
        points = retention.points(chain, items, policy, marks, now_us)
        return points, await _below(store, chain, points), items

    async def _cursor_marks(self, stream_id: str, now_us: int, counts: Counts) -> list[DLSN]:
        """Return the marks of the cursors that hold; delete those that have expired."""
        marks = []
        for cursor in await cursors_of(self._client.records, stream_id):
            if cursor.is_expired(now_us) or cursor.is_deleting:
                event: dict[str, object] = {"stream": stream_id, "cursor": cursor.name}
                await self._deleter.audit.record("nobody used it any more", event)
                if await delete_cursor(self._client, stream_id, cursor.name, expected=cursor):
                    counts.cursors_expired += 1
                    continue
            if cursor.fault:
                _log.warning(
                    "janitor.bad_cursor", stream=stream_id, cursor=cursor.name, reason=cursor.fault
                )
            if cursor.holds:
                marks.append(cursor.mark)
        return marks

    async def _pattern_marks(
        self, stream_id: str, record: StreamRecord | None, *, is_fresh: bool
    ) -> list[DLSN]:
        """Return the marks in a stream of the cursors of patterns that hold it (INV-S20)."""
        return (
            []
            if record is None
            else await self._patterns.marks(record, stream_id, is_fresh=is_fresh)
        )

    async def _delete_gone_cursors(self, counts: Counts) -> None:
        """Delete the cursors of patterns that have expired, or whose namespace is gone."""
        records = self._client.records
        async for namespace_id, one in gone_cursors(records, ids_below, clock_us()):
            event: dict[str, object] = {
                "namespace": namespace_id,
                "cursor": one.name,
                "pattern": one.pattern,
            }
            await self._deleter.audit.record("nobody used it any more", event)
            if await delete_pattern_cursor(records, namespace_id, one.name, expected=one):
                counts.cursors_expired += 1

    async def _delete_gone_coordination(self) -> None:
        """Delete the leases, counters and configuration of namespaces that are gone."""
        records = self._client.records
        async for namespace_ids in ids_below(records, COORDINATION):
            spaces = await records.read_all(
                [namespace_path(space_id) for space_id in namespace_ids]
            )
            for namespace_id, space in zip(namespace_ids, spaces, strict=True):
                if space is None and namespace_id != ROOT_ID:
                    await delete_coordination(records, namespace_id)

    async def _end_old_uploads(self, counts: Counts) -> None:
        """Delete the ledgers of objects that were deleted, and of uploads whose client did not come back."""
        async for namespace_id, upload_id, upload in old_uploads(self._client):
            event: dict[str, object] = {
                "namespace": namespace_id,
                "object": upload.name,
                "ledger": upload.ledger,
            }
            why = "its object was deleted" if upload.is_given_up else "its upload was interrupted"
            await self._deleter.audit.record(why, event)
            try:
                counts.uploads_ended += await give_up_upload(self._client, namespace_id, upload_id)
            except (MetadataUnavailable, MetadataOnHold):
                raise
            except Error as error:
                counts.errors += 1
                _log.warning("janitor.upload_failed", upload=upload_id, reason=str(error))


async def _below(store: ChainStore, chain: Chain, points: retention.Points) -> int:
    """Return the number below which segments may go, the newest closed one and open ones left."""
    newest = chain.next_number - 1 - len(chain.open_rows)
    row = None
    if chain.deleting <= points.target.segment < newest:
        row = await store.row(chain, points.target.segment)
    return min(retention.deletable_below(points.target, row), newest)


def _why(chain: Chain, points: retention.Points) -> str:
    if points.target == chain.trim:
        return "it was truncated"
    is_hard = points.target == DLSN(points.hard, 0, 0) and points.hard != points.policy
    return "beyond the hard limits" if is_hard else "beyond what retention keeps"


# --- byte counts ----------------------------------------------------------------------------------
#
# How many bytes namespaces with a quota have: counted by each pass of a janitor, looked at by
# writers.
#
# A count is written when a pass has met every stream, by compare-and-set, and only over one that
# began earlier. No record is written by a roll: what has been appended since the last pass is not
# in it, nor what open segments hold.


COUNTS_AT_ONCE = 200


class ByteCounts:
    """What one pass has counted so far, by the ids of namespaces."""

    def __init__(self, client: Client, sizes: HeldSizes) -> None:
        self._client = client
        self._records = client.records
        self._sizes = sizes
        self._began_us = clock_us()
        self._counts: Counter[str] = Counter()

    async def add(self, found: StreamSnapshot, chain: Chain | None) -> None:
        """Count a stream as it is now; None: it is gone. Raises MetadataUnavailable."""
        size_bytes = 0
        if found.counted_in and chain is not None:
            (size_bytes,) = await kept_bytes(self._records, [chain])
            # What a stream's writers say of its size must not use up the quota of others.
            store = ChainStore(self._records, found.stream_id, self._client.config.metadata_timeout)
            items = items_of(chain)
            held = await self._sizes.prove_new(store, items)
            size_bytes -= sum(item.size_bytes for item in items) - sum(
                one.size_bytes for one in held
            )
        for namespace_id in found.counted_in:
            self._counts[namespace_id] += size_bytes

    async def add_objects(self) -> None:
        """Count the objects of all namespaces. Raises MetadataUnavailable."""
        spaces = Namespaces(self._records)
        async for namespace_id, counts in all_object_counts(self._records):
            try:
                counted = (await spaces.of(namespace_id)).counted
            except StorageError:
                continue  # whether it is below a quota nobody can tell
            for one in counted:
                self._counts[one] += counts.size_bytes

    async def write(self) -> None:
        """Write all counts, those of namespaces too that have no stream any more; all streams must have been met."""
        async for known in ids_below(self._records, STORED):
            missing = [one for one in known if one not in self._counts]
            for offset in range(0, len(missing), COUNTS_AT_ONCE):
                await self._without_streams(missing[offset : offset + COUNTS_AT_ONCE])
        counted = list(self._counts)
        for offset in range(0, len(counted), COUNTS_AT_ONCE):
            some = counted[offset : offset + COUNTS_AT_ONCE]
            paths = {one: stored_path(one) for one in some}
            records = await records_at(self._records, StoredRecord, paths, lambda _: StoredRecord())
            for namespace_id, where in paths.items():
                before = records.get(namespace_id, Versioned(StoredRecord(), None))
                size_bytes = self._counts[namespace_id]
                is_same = before.version is not None and before.value.size_bytes == size_bytes
                if not is_same and before.value.counted_us < self._began_us:
                    value = put(StoredRecord(size_bytes, self._began_us))
                    with suppress(MetadataConflict):  # another janitor has counted, too
                        await self._records.change(Change(where, value, before.version))

    async def _without_streams(self, namespace_ids: list[str]) -> None:
        """Count 0 for namespaces without streams; the record goes where there is no quota any more."""
        spaces = await self._records.read_all([*map(namespace_path, namespace_ids)])
        found = await self._records.read_all([*map(stored_path, namespace_ids)])
        for namespace_id, space, raw in zip(namespace_ids, spaces, found, strict=True):
            where = namespace_path(namespace_id)
            record = None if space is None else get_or(NamespaceRecord, space.value, where, None)
            if record is not None and record.policy.bytes_max:
                self._counts[namespace_id] += 0
            elif space is not None and record is None:
                continue  # whether it has a quota nobody can tell
            elif raw is not None:
                with suppress(MetadataConflict):
                    await self._records.change(Change(stored_path(namespace_id), None, raw.version))


# --- idle segments --------------------------------------------------------------------------------
#
# Ending segments that nobody writes to any more: their writer is gone, and they are past their age.
#
# A writer that lives ends its segments by age itself. So who finds records in an open segment, and
# nothing newer than its age and a grace, takes the stream over, and leaves it closed. A segment
# without records is left alone, whoever has it: there is nothing to end. The clock of the writer
# counts against ours: the grace has to be more than they differ. A time that lies ahead of ours
# says nothing: then it counts when this janitor saw that entry first (INV-S22). A ledger that is
# reserved and not made stays named until then, too: its writer may live, and only a takeover tells
# it.
#
# A stream of producers is taken over as any other, and stays one (INV-S28): the table of producers
# lies in its log. A service that was frozen and is fenced so takes the stream over again, as it
# does with a chain whose owner is no service.
#
# A writer that died may not have sent its last LAC. Readers see nothing above the LAC, since only a
# fence or a close proves that it stays (INV-S18). So much sooner than by age, the ledger of a
# segment with entries above a LAC that stands still is closed, and the chain is left as it is: a
# writer that lives after all goes on in another segment (INV-S16).


READERS_MAX = 10_000
"""Maximum readers of open segments that are kept; more of them are opened anew each time."""
READ_TIMEOUT_S = 5.0
REMEMBERED_MAX = 100_000
"""Open segments of which it is remembered when to look again; others are looked at in every pass."""
UNCONFIRMED_READ = 16
"""Entries behind the LAC that are looked at: a writer that died may not have told of its last ones."""


class IdleRolling:
    """Remembers when each open segment can be due at the earliest."""

    def __init__(self, client: Client, grace_s: float) -> None:
        self._client = client
        self._grace_s = grace_s
        self._due_us: OrderedDict[int, int] = OrderedDict()
        self._ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()

    async def roll_if_idle(
        self, store: ChainStore, known: VersionedChain, policy: StreamPolicy, now_us: int
    ) -> VersionedChain:
        """Take the stream over if its last records are older than a segment may be; return what holds then.

        Raises what reading and recovery raise.
        """
        open_rows = known.chain.open_rows
        if not open_rows or not policy.roll_age_s:
            return known
        limit_us = int((policy.roll_age_s + self._grace_s) * 1e6)
        newest = open_rows[-1].ledger_id
        made_us = open_rows[0].created_us
        if now_us < max(
            limit_us + made_us if made_us <= now_us else 0, self._due_us.get(newest, 0)
        ):
            return known
        last = await last_written(self._client, known.chain)
        due_us = limit_us + (now_us if last is None else self._written_us(last, now_us))
        if due_us > now_us:
            _remember(self._due_us, newest, due_us)
            return known
        self._due_us.pop(newest, None)
        self._ahead.pop(newest, None)
        return await open_stream(self._client, store, f"janitor {new_owner()}", None)

    def _written_us(self, last: Entry, now_us: int) -> int:
        """Return when an open segment's last entry was written at the latest."""
        time_us = head_of(last).time_us
        if time_us <= now_us:
            return time_us
        entry_id, seen_us = self._ahead.get(last.ledger_id, (-1, 0))
        if entry_id != last.entry_id or seen_us > now_us:
            seen_us = now_us
            _remember(self._ahead, last.ledger_id, (last.entry_id, seen_us))
        return seen_us


def _remember(known: OrderedDict[int, T], ledger_id: int, value: T) -> None:
    known[ledger_id] = value
    known.move_to_end(ledger_id)
    if len(known) > REMEMBERED_MAX:
        known.popitem(last=False)


async def last_written(client: Client, chain: Chain) -> Entry | None:
    """Return the last entry in the open segments, None if there is none."""
    for row in reversed(chain.open_rows):
        reader = await client.open_ledger(row.ledger_id, recovery=False)
        async with reader:
            last = await _last_entry(reader)
        if last is not None:
            return last
    return None


async def _last_entry(reader: LedgerReader) -> Entry | None:
    last_entry_id = await reader.last_add_confirmed()
    if not reader.is_closed:
        first = last_entry_id + 1
        untold = await reader.read_unconfirmed(first, first + UNCONFIRMED_READ - 1)
        if untold:
            return untold[-1]
    if last_entry_id < 0:
        return None
    (entry,) = [one async for one in reader.read(last_entry_id, last_entry_id)]
    return entry


class LeftSegments:
    """Closes ledgers of open segments whose writer left entries above the LAC, and remembers which may be such.

    A segment without such entries costs one read of an entry that is not there, and no call of metadata.
    """

    def __init__(self, client: Client, after_s: float) -> None:
        """`after_s`: for how long a LAC has to stand still below entries."""
        self._client = client
        self._after_s = after_s
        self._readers: dict[int, LedgerReader] = {}
        self._stuck: dict[
            int, tuple[int, float]
        ] = {}  # by ledger: its LAC, and since when it is known
        self._open: set[int] = set()

    def begin(self) -> None:
        """Another look at all chains begins: forget what the last one did not find open any more."""
        for ledger_id in [reader for reader in self._readers if reader not in self._open]:
            del self._readers[ledger_id]
        for ledger_id in [one for one in self._stuck if one not in self._open]:
            del self._stuck[ledger_id]
        self._open.clear()

    async def close_left(self, chain: Chain, now_s: float) -> int:
        """Look at a chain's open segments; return how many ledgers were closed. Raises what reading and recovery do."""
        closed = 0
        for row in chain.open_rows:
            self._open.add(row.ledger_id)
            try:
                closed += await self._close_if_left(chain, row, now_s)
            except NoSuchLedger:
                continue  # it was deleted meanwhile
        return closed

    async def _close_if_left(self, chain: Chain, row: Segment, now_s: float) -> bool:
        reader = await self._reader(row.ledger_id)
        if not await _is_stuck(reader):
            self._stuck.pop(row.ledger_id, None)
            return False
        known, lac = self._stuck.get(row.ledger_id), reader.last_known
        if known is None or known[0] != lac:
            self._stuck[row.ledger_id] = lac, now_s
            return False
        since_s = known[1]
        if now_s - since_s < self._after_s:
            return False
        async with await self._client.open_ledger(row.ledger_id, recovery=True) as recovered:
            last_entry_id = recovered.last_known
        _log.info(
            "janitor.closed_left_segment",
            stream=chain.stream_id,
            segment=row.number,
            ledger_id=row.ledger_id,
            lac=lac,
            last_entry_id=last_entry_id,
        )
        self._readers.pop(row.ledger_id, None)
        return True

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._client.open_ledger(ledger_id, recovery=False)
            if len(self._readers) < READERS_MAX:
                self._readers[ledger_id] = reader
        return reader


async def _is_stuck(reader: LedgerReader) -> bool:
    """Return whether an open ledger has an entry above the LAC that its bookies say now."""
    for _ in range(2):
        if reader.is_closed:
            return False
        above = reader.last_known + 1
        if not await reader.read_unconfirmed(above, above, timeout=READ_TIMEOUT_S):
            return False
        await reader.try_last_add_confirmed(timeout=READ_TIMEOUT_S)
        if reader.last_known < above:
            return not reader.is_closed
    return False  # the LAC moves: somebody writes
