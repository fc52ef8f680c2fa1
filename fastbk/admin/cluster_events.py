"""The events of a whole cluster: read from the pages of its bookies, janitors and healers, and merged by time.

    pages = event_pages(store, uri)
    found = read_cluster_events(pages, Query(since="2026-11-28T03:00:00Z"))
    for event in found.events:
        print(event.time, event.source, event.text())
    later = read_cluster_events(pages, Query(), found.next)      # only what is new

It blocks, for at most `timeout_s`, whatever the pages do; on a loop use `asyncio.to_thread`. Clocks of machines
differ, so events of different machines may stand in another order than they happened in.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fastbk.admin.page_client import AdminClient, client_at, client_of
from fastbk.errors import ConfigError, Error
from fastbk.observe.events import LATEST, Event, EventPage, Query

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore

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
