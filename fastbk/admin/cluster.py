"""A whole cluster: who is up, read-only, how full, which ledgers miss copies (`fastbk cluster`), and its events.

Events are read from the pages of its bookies, janitors and healers, and merged by time:

    pages = event_pages(store, uri)
    found = read_cluster_events(pages, Query(since="2026-11-28T03:00:00Z"))
    for event in found.events:
        print(event.time, event.source, event.text())
    later = read_cluster_events(pages, Query(), found.next)      # only what is new

That blocks, for at most `timeout_s`, whatever the pages do; on a loop use `asyncio.to_thread`. Clocks of machines
differ, so events of different machines may stand in another order than they happened in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fastbk.admin.page_client import AdminClient, client_at, client_of
from fastbk.client import Client, LedgerInfo
from fastbk.client.bookie_requests import bookie_info, stored_of, stored_ranges
from fastbk.errors import ConfigError, Error, NotEnoughBookies, QuorumTimeout
from fastbk.meta.api import (
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    VersionedLedger,
)
from fastbk.model.health import accept_loss
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.observe.events import LATEST, Event, EventPage, Query
from fastbk.replication.ack_domains import deciding
from fastbk.replication.copy_check import last_of_fragment
from fastbk.replication.copying import share_of
from fastbk.wire.messages import InfoReply

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore

IDS_LISTED_MAX = 100
MARKS_A_READ = 100
ASKED_TIMEOUT_S = 3.0
SILENT_TIMEOUT_S = 0.25
"""How long a bookie is waited for that did not answer before."""
_Ranges = list[tuple[EntryId, EntryId]]


@dataclass(frozen=True, slots=True)
class BookieState:
    """One bookie as the cluster sees it.

    Attributes:
        state: "up", "read-only", "frozen" (one of its processes stands still), "silent" (registered, does not answer)
            or "down" (known, not registered).
        address: host and port, "" when it is not registered.
        reason: why it takes no adds or does not answer.
        info: its own figures, if it answered.
    """

    bookie_id: BookieId
    state: str
    address: str = ""
    reason: str = ""
    incarnation: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    info: InfoReply | None = None

    @property
    def used_share(self) -> float | None:
        """How full its ledger disk is, 0..1."""
        if self.info is None or not self.info.disk_total_bytes:
            return None
        return 1 - self.info.disk_free_bytes / self.info.disk_total_bytes


async def bookie_states(
    client: Client, identities: Sequence[BookieIdentity | BadIdentity]
) -> list[BookieState]:
    """Return all bookies that are registered or have an identity, by id; each registered one is asked."""
    registered = await client.list_bookies()
    states = await asyncio.gather(*(_asked(client, one) for one in registered))
    alive = {state.bookie_id for state in states}
    down = [
        BookieState(identity.bookie_id, "down", incarnation=identity.incarnation)
        if isinstance(identity, BookieIdentity)
        else BookieState(
            identity.bookie_id, "down", reason=f"its identity cannot be read: {identity.bad.reason}"
        )
        for identity in identities
        if identity.bookie_id not in alive
    ]
    return sorted([*states, *down], key=lambda one: one.bookie_id)


async def _asked(client: Client, found: BookieRegistration) -> BookieState:
    service = found.service
    endpoint = service.client_endpoint()
    address = f"{endpoint.host}:{endpoint.port}" if endpoint is not None else ""
    state, reason, info = "up", "", None
    try:
        info = await bookie_info(client.pool, service.bookie_id, ASKED_TIMEOUT_S)
        if info.frozen:
            state, reason = "frozen", info.frozen
        elif not (found.writable and info.writable):
            state, reason = "read-only", info.reason or "registered as read-only"
    except Error as error:
        state, reason = "silent", str(error)
    known = (service.incarnation, service.properties)
    return BookieState(service.bookie_id, state, address, reason, *known, info)


@dataclass(frozen=True, slots=True)
class MissingCopies:
    """What one bookie lacks of one fragment.

    Attributes:
        first_entry_id: of the fragment.
        reason: why: the bookie is not registered, or does not hold entries.
        count: how many entries are known to be missing there; None: all of its share may be.
        ids: the first of them.
    """

    ledger_id: LedgerId
    first_entry_id: EntryId
    bookie_id: BookieId
    reason: str
    count: int | None = None
    ids: tuple[EntryId, ...] = ()


@dataclass(frozen=True, slots=True)
class Uncloseable:
    """A ledger that cannot be closed while bookies are away. `first_entry_id`: of its last fragment."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    away: tuple[BookieId, ...]

    def copies(self) -> Iterator[MissingCopies]:
        """Yield it as what its bookies lack."""
        reason = f"the bookie is not registered; {_keeps_from_closing(self.ledger_id)}"
        for one in self.away:
            yield MissingCopies(self.ledger_id, self.first_entry_id, one, reason)


def _keeps_from_closing(ledger_id: LedgerId) -> str:
    return f"the ledger is open, and too few bookies answer to close it: {accept_loss(ledger_id)}"


def uncloseable_of(
    ledger_id: LedgerId, metadata: LedgerMetadata, registered: Collection[BookieId]
) -> Uncloseable | None:
    """Return why a ledger cannot be closed, by the bookies that are registered; None: it can be, or it is closed."""
    if metadata.is_closed:
        return None
    fragment = metadata.fragments[-1]
    there = {index for index, bookie_id in enumerate(fragment.ensemble) if bookie_id in registered}
    if deciding(metadata).none_without(there):
        return None
    away = tuple(
        sorted({bookie_id for bookie_id in fragment.ensemble if bookie_id not in registered})
    )
    return Uncloseable(ledger_id, fragment.first_entry_id, away)


async def uncloseable(client: Client) -> AsyncGenerator[Uncloseable, None]:
    """Yield the ledgers that cannot be closed since bookies are away.

    Metadata is all that it reads: of all ledgers while a bookie is away, else only who is registered.
    """
    registered = {bookie.service.bookie_id for bookie in await client.list_bookies()}
    known = await client.call_store(
        lambda store: {identity.bookie_id for identity in store.list_identities()}
    )
    if known <= registered:
        return
    async for info in client.list_ledgers():
        found = uncloseable_of(info.ledger_id, info.metadata, registered)
        if found is not None:
            yield found


async def marked(client: Client) -> AsyncGenerator[MissingCopies, None]:
    """Yield what marks say: what writers left, and what AutoRecovery has found. No bookie is asked."""
    async for page in client.marks.pages():
        for start in range(0, len(page), MARKS_A_READ):
            some = page[start : start + MARKS_A_READ]
            ids = [one.ledger_id for one in some]
            read = await client.call_store(lambda store: store.read_ledgers(ids))  # noqa: B023
            for mark, found in zip(some, read, strict=True):
                if isinstance(found, VersionedLedger):
                    info = LedgerInfo(mark.ledger_id, found.metadata, found.version)
                    for copy in marked_copies(info, mark.missing):
                        yield copy


async def under_replicated(
    client: Client, *, timeout_s: float = 10.0, unlisted: set[BookieId] | None = None
) -> AsyncGenerator[MissingCopies, None]:
    """Yield what misses copies: every bookie is asked which entries it holds of each ledger, and marks count, too.

    unlisted: gets those of Apache's bookies that give no list of their entries, as with DbLedgerStorage: they do not
        answer, which takes `timeout_s` once. Of them the first and the last entry of each share is read.
    """
    registered = [bookie.service for bookie in await client.list_bookies()]
    alive = {one.bookie_id for one in registered}
    holdings = _Holdings(client, registered, timeout_s, set() if unlisted is None else unlisted)
    marks = {one.ledger_id: one.missing for one in await client.marks.list()}
    async for info in client.list_ledgers():
        for copy in marked_copies(info, marks.get(info.ledger_id, ())):
            yield copy
        for at, fragment in enumerate(info.metadata.fragments):
            last = last_of_fragment(info.metadata, at)
            for index, bookie_id in enumerate(fragment.ensemble):
                first = fragment.first_entry_id
                if bookie_id not in alive:
                    if last is None or last >= first:
                        reason = "the bookie is not registered"
                        yield MissingCopies(info.ledger_id, first, bookie_id, reason)
                elif last is not None and last >= first:
                    missing = await holdings.missing(info, at, index, last)
                    if missing is not None:
                        yield missing
        if not info.metadata.is_closed:
            for missing in await holdings.keep_from_closing(info, alive):
                yield missing


def marked_copies(info: LedgerInfo, missing: Iterable[MissingReplica]) -> Iterator[MissingCopies]:
    """Yield the copies that a ledger's mark says are missing, as far as metadata still names their bookies."""
    for at, fragment in enumerate(info.metadata.fragments):
        end = last_of_fragment(info.metadata, at)
        for one in missing:
            if one.bookie_id not in fragment.ensemble:
                continue
            first = max(one.first_entry_id, fragment.first_entry_id)
            lasts = [last for last in (one.last_entry_id, end) if last is not None]
            last = min(lasts, default=None)
            reason = f"marked: {one.reason or 'its copies may be missing'}"
            if last is None:
                yield MissingCopies(info.ledger_id, first, one.bookie_id, reason)
                continue
            index = fragment.ensemble.index(one.bookie_id)
            runs = list(share_of(index, info.metadata, first, last))
            count, ids = missing_of(runs, [])
            if count:
                yield MissingCopies(info.ledger_id, first, one.bookie_id, reason, count, tuple(ids))


class _Holdings:
    """Asks bookies which entries they hold."""

    def __init__(
        self,
        client: Client,
        registered: Iterable[BookieService],
        timeout_s: float,
        unlisted: set[BookieId],
    ) -> None:
        self._pool = client.pool
        self._timeout_s = timeout_s
        self._unlisted = unlisted
        self._silent: set[BookieId] = set()
        self._apaches = {one.bookie_id for one in registered if one.endpoint() is None}

    async def keep_from_closing(
        self, info: LedgerInfo, alive: set[BookieId]
    ) -> list[MissingCopies]:
        """Return the bookies for want of whose answers an open ledger could not be closed; none: it could be."""
        metadata = info.metadata
        fragment = metadata.fragments[-1]
        answered: set[int] = set()
        reasons: dict[BookieId, str] = {}
        for index, bookie_id in enumerate(fragment.ensemble):
            if bookie_id not in alive:
                reasons[bookie_id] = "the bookie is not registered"
                continue
            is_silent = bookie_id in self._silent
            timeout_s = min(self._timeout_s, SILENT_TIMEOUT_S) if is_silent else self._timeout_s
            try:
                await self._held(
                    bookie_id, info, [(fragment.first_entry_id, fragment.first_entry_id)], timeout_s
                )
                answered.add(index)
            except Error as error:
                reasons[bookie_id] = str(error)
        if deciding(metadata).none_without(answered):
            return []
        keeps = _keeps_from_closing(info.ledger_id)
        return [
            MissingCopies(info.ledger_id, fragment.first_entry_id, bookie_id, f"{reason}; {keeps}")
            for bookie_id, reason in reasons.items()
        ]

    async def missing(
        self, info: LedgerInfo, at: int, index: int, last: EntryId
    ) -> MissingCopies | None:
        """Return what one bookie lacks of its share of a fragment, or why that is not known."""
        fragment = info.metadata.fragments[at]
        bookie_id, first = fragment.ensemble[index], fragment.first_entry_id
        wanted = list(share_of(index, info.metadata, first, last))
        if not wanted:
            return None
        # A frozen bookie is waited for once, not once for each fragment that names it.
        is_silent = bookie_id in self._silent
        timeout_s = min(self._timeout_s, SILENT_TIMEOUT_S) if is_silent else self._timeout_s
        try:
            wanted, held = await self._held(bookie_id, info, wanted, timeout_s)
            self._silent.discard(bookie_id)
        except Error as error:
            if isinstance(error, QuorumTimeout | NotEnoughBookies):
                self._silent.add(bookie_id)
            return MissingCopies(info.ledger_id, first, bookie_id, str(error))
        count, ids = missing_of(wanted, held)
        if not count:
            return None
        reason = "entries are not there"
        return MissingCopies(info.ledger_id, first, bookie_id, reason, count, tuple(ids))

    async def _held(
        self, bookie_id: BookieId, info: LedgerInfo, wanted: _Ranges, timeout_s: float
    ) -> tuple[_Ranges, _Ranges]:
        """Return what was asked for, all that is wanted or a part of it, and what is there."""
        if bookie_id not in self._unlisted:
            try:
                held = await stored_ranges(
                    self._pool, bookie_id, info.ledger_id, timeout_s, info.metadata.creation_token
                )
            except QuorumTimeout:
                if bookie_id not in self._apaches:
                    raise
            else:
                return wanted, held
        ends = sorted({wanted[0][0], wanted[-1][1]})
        token = info.metadata.creation_token
        stored = await stored_of(self._pool, bookie_id, info.ledger_id, ends, timeout_s, token)
        self._unlisted.add(bookie_id)  # it reads, so it is there
        return [(end, end) for end in ends], [(one, one) for one in stored]


def missing_of(
    wanted: list[tuple[EntryId, EntryId]], held: list[tuple[EntryId, EntryId]]
) -> tuple[int, list[EntryId]]:
    """Return how many ids of the ranges `wanted` are in none of `held`, and the first 100; both ascend."""
    count = 0
    ids: list[EntryId] = []
    offset = 0
    for first, last in wanted:
        position = first
        while position <= last:
            while offset < len(held) and held[offset][1] < position:
                offset += 1
            if offset < len(held) and held[offset][0] <= position:
                position = held[offset][1] + 1
                continue
            end = min(last, held[offset][0] - 1) if offset < len(held) else last
            count += end - position + 1
            ids += range(position, min(end, position + IDS_LISTED_MAX - len(ids) - 1) + 1)
            position = end + 1
    return count, ids


# The events of a whole cluster.

TIMEOUT_S = 5.0
PAGES_AT_ONCE = 32
PATH = "/events"
DOWN = "it is not registered: it is down; events.jsonl in its first ledger directory has them"


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where the events of one process are.

    Attributes:
        name: a bookie's id, or the address of a janitor's or healer's page.
        client: of its page; None: there is none. reason: why.
    """

    name: str
    client: AdminClient | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterEvents:
    """Events of several processes.

    Attributes:
        events: oldest first.
        silent: those that did not answer, with the reason.
        next: by source, what to give for the next reading to go on behind these events.
        is_complete: no page that answered has more at the moment.
        dropped: events that were too many at once, over all sources, since their processes started.
    """

    events: Sequence[Event] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    next: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = True
    dropped: int = 0


def event_pages(
    store: MetadataStore,
    uri: str,
    *,
    bookie_ids: Iterable[str] = (),
    more: Iterable[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> list[EventSource]:
    """Return where the events of a cluster's bookies are; blocking. Raises ConfigError, Error.

    Args:
        store, uri: of the cluster's metadata. bookie_ids: only these; none: all that are known.
        more: HOST:PORT, http:// or https:// before it, of further pages: janitors and healers are not in metadata.
    """
    wanted = set(bookie_ids)
    registered = {bookie.service.bookie_id: bookie for bookie in store.list_bookies()}
    known = {identity.bookie_id for identity in store.list_identities()} | set(registered)
    if unknown := sorted(wanted - known):
        raise ConfigError(
            f"{uri} knows no bookie {unknown[0]}; it knows {', '.join(sorted(known)) or 'none'}"
        )
    sources = []
    for bookie_id in sorted(wanted or known):
        try:
            client = client_of(registered[bookie_id], uri, timeout_s)
        except KeyError:
            sources.append(EventSource(bookie_id, None, DOWN))
        except ConfigError as error:
            sources.append(EventSource(bookie_id, None, str(error)))
        else:
            sources.append(EventSource(bookie_id, client))
    return sources + further_pages(more, timeout_s)


def further_pages(addresses: Iterable[str], timeout_s: float = TIMEOUT_S) -> list[EventSource]:
    """Return where the events of these pages are (`more` of `event_pages`); no metadata is read. Raises ConfigError."""
    return [EventSource(address, client_at(address, "--page", timeout_s)) for address in addresses]


def read_cluster_events(
    sources: Sequence[EventSource],
    query: Query,
    after: Mapping[str, int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> ClusterEvents:
    """Return the events of all sources that answer within `timeout_s`.

    `query.limit` counts for each source, and for all: of more, the oldest (`is_newest`: the newest) are returned, and
    `next` goes on behind those. `after`: `next` of the reading before, in place of `query.after`.
    """
    after = after or {}
    silent = {source.name: source.reason for source in sources if source.client is None}
    asked = {source.name: source.client for source in sources if source.client is not None}
    pages: dict[str, EventPage] = {}

    def read(name: str, client: AdminClient) -> EventPage:
        mine = msgspec.structs.replace(query, after=after.get(name, query.after))
        return msgspec.convert(client.get(PATH, mine.parameters()), EventPage)

    end_s = time.monotonic() + timeout_s
    pool = ThreadPoolExecutor(PAGES_AT_ONCE, "fastbk events")
    futures = {name: pool.submit(read, name, client) for name, client in asked.items()}
    for name, future in futures.items():
        try:
            pages[name] = future.result(max(0.0, end_s - time.monotonic()))
        except TimeoutError:
            silent[name] = f"no answer within {timeout_s:g} s"
        except msgspec.ValidationError as error:
            silent[name] = f"its answer is no page of events: {error}"
        except Error as error:
            silent[name] = str(error)
    pool.shutdown(wait=False, cancel_futures=True)
    return _merged(pages, query, silent, after)


def _merged(
    pages: Mapping[str, EventPage], query: Query, silent: dict[str, str], after: Mapping[str, int]
) -> ClusterEvents:
    rows = [(event.time, name, event) for name, page in pages.items() for event in page.events]
    rows.sort(key=lambda row: (row[0], row[1], row[2].number))
    following = {**after, **{name: page.next for name, page in pages.items()}}
    if query.is_newest:
        shown = rows[-query.limit :]
    else:
        # Behind the last event of a page that has more, others may be missing.
        known_until = min(
            (page.events[-1].time for page in pages.values() if not page.is_complete),
            default=LATEST,
        )
        shown = [row for row in rows if row[0] <= known_until][: query.limit]
        for _, name, event in rows[len(shown) :]:  # the next reading begins before it
            following[name] = min(following[name], event.number - 1)
    return ClusterEvents(
        events=[event for _, _, event in shown],
        silent=silent,
        next=following,
        is_complete=len(shown) == len(rows) and all(page.is_complete for page in pages.values()),
        dropped=sum(page.dropped for page in pages.values()),
    )
