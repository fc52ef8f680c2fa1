"""The events of several processes: read from real pages, merged, and gone on with."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.admin.cluster import DOWN, EventSource, event_pages, read_cluster_events
from fastbk.admin.page_client import AdminClient
from fastbk.errors import ConfigError
from fastbk.meta import open_store
from fastbk.meta.api import HTTP_NAME, HTTP_PROTOCOL, BookieService, Endpoint
from fastbk.model.ids import BookieId
from fastbk.observe.event_log import EventLog
from fastbk.observe.events import Event, Query
from fastbk.web.page_server import PageServer, Request, Response, add_event_page
from tests.fixtures.wait import wait_until


class Clock:
    s = 1_800_000_000.0

    def now(self) -> float:
        return self.s


class Pages:
    """Processes with pages of events, on one loop in a thread."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.logs: list[EventLog] = []
        self.servers: list[PageServer] = []
        self.sources: list[EventSource] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def add(self, name: str, *, hangs: bool = False) -> EventLog:
        log = EventLog(name, "supervisor", self.clock.now, self.clock.now)
        server = PageServer()

        async def hang(_: Request) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        if hangs:
            server.add_page("/events", hang)
        else:
            add_event_page(server, log)
        self.run(server.open("127.0.0.1", 0))
        self.logs.append(log)
        self.servers.append(server)
        self.sources.append(EventSource(name, AdminClient("127.0.0.1", server.port, timeout_s=2.0)))
        return log

    def write(self, log: EventLog, count: int = 1) -> None:
        for _ in range(count):
            self.clock.s += 1
            log.take("warning", "disk.slow", {"reason": f"{self.clock.s:.0f}"})

    def run(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self.loop).result(10)  # type: ignore[arg-type]

    def close(self) -> None:
        for server in self.servers:
            self.run(server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        wait_until(lambda: not self.loop.is_running(), "the end of the pages' loop")
        self.loop.close()


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.close()


def test_events_of_all_are_merged_by_time_and_each_is_read_once(pages: Pages) -> None:
    first, second, third = pages.add("b-1"), pages.add("b-2"), pages.add("b-3")
    for count in (1, 5, 2):
        for log in (first, third, second, first):
            pages.write(log, count)
    for limit in (1, 3, 7, 100):
        found: list[Event] = []
        after: dict[str, int] = {}
        is_complete = False
        while not is_complete:
            part = read_cluster_events(pages.sources, Query(limit=limit), after)
            assert len(part.events) <= limit
            found += part.events
            after, is_complete = dict(part.next), part.is_complete
        assert [one.time for one in found] == sorted(one.time for one in found), limit
        assert len({(one.source, one.number) for one in found}) == len(found) == 32, limit
    assert not read_cluster_events(pages.sources, Query(), after).events
    pages.write(second)
    (event,) = read_cluster_events(pages.sources, Query(), after).events
    assert event.source == "b-2"


def test_the_newest_of_all_are_returned(pages: Pages) -> None:
    first, second = pages.add("b-1"), pages.add("b-2")
    for log in (first, second, second, first):
        pages.write(log, 5)
    found = read_cluster_events(pages.sources, Query(limit=7, is_newest=True))
    assert [one.values["reason"] for one in found.events] == [
        str(1_800_000_014 + at) for at in range(7)
    ]


def test_those_that_do_not_answer_are_named_and_delay_nobody_for_long(pages: Pages) -> None:
    log = pages.add("b-1")
    pages.add("b-2", hangs=True)
    pages.write(log)
    sources = [
        *pages.sources,
        EventSource("b-3", AdminClient("127.0.0.1", 9, timeout_s=1.0)),
        EventSource("b-4", None, DOWN),
    ]
    began_s = time.monotonic()
    found = read_cluster_events(sources, Query(), timeout_s=1.0)
    assert time.monotonic() - began_s < 10
    assert len(found.events) == 1
    assert set(found.silent) == {"b-2", "b-3", "b-4"}
    assert "not registered" in found.silent["b-4"]
    assert "does not answer" in found.silent["b-3"]


def test_a_page_of_another_kind_is_no_answer(pages: Pages) -> None:
    pages.add("b-1")

    async def other(_: Request) -> Response:
        return 200, "application/json", b'{"events": 7}'

    pages.servers[0].add_page("/info", other)
    server = PageServer()
    server.add_page("/events", other)
    pages.run(server.open("127.0.0.1", 0))
    pages.servers.append(server)
    found = read_cluster_events(
        [EventSource("old", AdminClient("127.0.0.1", server.port))], Query()
    )
    assert "no page of events" in found.silent["old"]


def test_bad_queries_are_refused_by_the_page(pages: Pages) -> None:
    pages.add("b-1")
    found = read_cluster_events(pages.sources, Query(limit=0))
    assert "limit 0: must be 1 to 1000" in found.silent["b-1"]


def test_sources_are_found_in_the_metadata(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path / 'metadata'}"
    store = open_store(uri, 5.0)
    try:
        for name, endpoints in (
            ("b-1", (Endpoint("127.0.0.1", 8001, HTTP_PROTOCOL, HTTP_NAME),)),
            ("b-2", ()),
        ):
            service = BookieService(BookieId(name), 1, endpoints)
            store.register_bookie(service, writable=True)
        found = {one.name: one for one in event_pages(store, uri, more=["127.0.0.1:8010"])}
        assert (client := found["b-1"].client) is not None
        assert (client.host, client.port) == ("127.0.0.1", 8001)
        assert found["b-2"].client is None
        assert "[http]" in found["b-2"].reason
        assert found["127.0.0.1:8010"].client is not None
        assert [one.name for one in event_pages(store, uri, bookie_ids=["b-1"])] == ["b-1"]
        with pytest.raises(ConfigError, match="b-9"):
            event_pages(store, uri, bookie_ids=["b-9"])
    finally:
        store.close()
