"""An overview of real bookies: rates, names of hot ledgers, silent and lost bookies, a cursor that lags, healing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

import fastbk
from fastbk.overview.poller import PAGE_TIMEOUT_S, OverviewPoller
from fastbk.overview.values import DOWN, NO_ANSWER, BookieRow, ClusterOverview, Severity
from fastbk.stream.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async

ENTRY = b"x" * 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three bookies of this file's own. The first test needs journals that were not busy, the last one stops one."""
    with LocalCluster() as made:
        yield made


@asynccontextmanager
async def writing(client: Client) -> AsyncIterator[int]:
    """Append to a ledger of three copies until the end; yield its id."""

    async def append(writer: fastbk.client.LedgerWriter) -> None:
        while True:
            await asyncio.gather(*(writer.append(ENTRY) for _ in range(50)))

    async with await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        task = asyncio.create_task(append(writer))
        try:
            yield writer.ledger_id
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def overview_with(
    poller: OverviewPoller, condition: Callable[[ClusterOverview], object], what: str
) -> ClusterOverview:
    """Poll until an overview fulfils a condition, and return it."""
    found: list[ClusterOverview] = []

    async def is_there() -> bool:
        found[:] = [await poller.poll()]
        return bool(condition(found[0]))

    await wait_until_async(is_there, what)
    return found[0]


def row_of(overview: ClusterOverview, bookie_id: str) -> BookieRow:
    return next(one for one in overview.bookies if one.bookie_id == bookie_id)


async def test_a_frozen_bookie_is_shown_and_stalls_nobody(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    frozen = cluster.bookies[1]
    async with fastbk.connect(uri) as client, OverviewPoller(client, uri) as poller:
        await poller.settled(10.0)
        await overview_with(poller, lambda one: len(one.bookies) == 3, "three bookies")
        os.kill(frozen.pids["supervisor"], signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            overview = await poller.poll()
            took_s = time.monotonic() - began_s
        finally:
            os.kill(frozen.pids["supervisor"], signal.SIGCONT)
        assert took_s < 2 * PAGE_TIMEOUT_S + 1.0
        first, *others = overview.bookies
        assert (first.bookie_id, first.state) == (frozen.name, NO_ANSWER)
        assert f"no answer within {PAGE_TIMEOUT_S:g} s" in first.problems[0].text
        assert [one.state for one in others] == ["writable", "writable"]
        overview = await overview_with(
            poller, lambda one: row_of(one, frozen.name).state == "writable", "it answers again"
        )
        assert row_of(overview, frozen.name).severity is Severity.OK


async def test_the_hottest_ledgers_are_found_with_their_streams(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client, OverviewPoller(client, uri, cursors_max=0) as poller:
        space = client.namespace("busy")
        await space.create()
        stream = await space.create_stream("orders")
        async with stream.writer() as slow, writing(client) as ledger_id:
            await poller.settled(10.0)
            found: list[ClusterOverview] = []

            async def all_windows_have_both() -> bool:
                await slow.append(b"now and then")
                overview = await poller.poll()
                found[:] = [overview]
                hot = overview.hot_ledgers
                if not overview.hot_streams or [one.bookies for one in hot] != [3, 3]:
                    return False
                # Its copies on three bookies count once; what the bookies make durable is all of them.
                return 0.25 < hot[0].adds_per_s / overview.adds_per_s < 0.42

            await wait_until_async(
                all_windows_have_both, "windows with both ledgers, at their rate"
            )
    overview = found[0]
    hottest = overview.hot_ledgers[0]
    assert (hottest.ledger_id, hottest.stream, hottest.bookies) == (ledger_id, "", 3)
    assert hottest.bytes_per_s > 900 * hottest.adds_per_s
    assert [one.path for one in overview.hot_streams] == ["busy/orders"]
    assert overview.hot_streams[0].adds_per_s < hottest.adds_per_s


async def test_rates_quantiles_and_disks_of_busy_bookies(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client, OverviewPoller(client, uri) as poller:
        await poller.settled(10.0)
        async with writing(client):
            overview = await overview_with(
                poller, lambda one: len(one.bookies) == 3 and all(row.add and row.commit for row in one.bookies),
                "rates of three bookies",
            )  # fmt: skip
    assert overview.errors == ()
    for row in overview.bookies:
        assert row.state == "writable"
        assert row.severity < Severity.BAD  # slow journals and disks that fill are warnings
        assert row.adds_per_s is not None and row.adds_per_s > 100
        assert row.add is not None and 0 < row.add.p50_s <= row.add.p99_s < 10
        assert row.commit is not None and row.commit.count > 0
        assert {one.role for one in row.disks} == {"journal", "ledger"}
        assert row.version.startswith("fastbk ")
        assert row.last_event is not None
    assert overview.healing is not None
    assert (overview.healing.marked, overview.healing.enabled) == (0, True)


async def test_a_lagging_cursor_is_shown_with_its_backlog(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client:
        space = client.namespace("shop")
        await space.create()
        stream = await space.create_stream("orders")
        async with stream.cursor("billing") as cursor, stream.writer() as writer:
            for _ in range(10):
                await writer.append(b"r")
            record = await anext(aiter(cursor))
            cursor.ack(record)
        async with OverviewPoller(client, uri) as poller:
            await poller.settled(10.0)
            overview = await poller.poll()
    (lag,) = overview.cursors
    assert (lag.stream, lag.cursor, lag.backlog_records) == ("shop/orders", "billing", 9)
    assert lag.oldest_unread_s is not None and lag.oldest_unread_s > 0
    assert overview.cursors_left_out == 0


async def test_pages_are_read_with_tls_by_the_clients_certificate() -> None:
    async with LocalCluster(1, tls=True) as cluster:
        uri, tls = cluster.metadata_uri, cluster.tls_options
        async with fastbk.connect(uri, tls=tls) as client, OverviewPoller(client, uri) as poller:
            await poller.settled(10.0)
            overview = await overview_with(poller, lambda one: one.bookies, "its bookie")
        (row,) = overview.bookies
        assert row.http.startswith("https://")
        assert (row.state, row.problems) == ("writable", ())
        async with fastbk.connect(uri, tls=None) as client, OverviewPoller(client, uri) as poller:
            await poller.settled(10.0)
            (row,) = (await poller.poll()).bookies
        assert row.state == NO_ANSWER
        assert "TLS failed" in row.problems[0].text
        assert "FASTBK_TLS_CA_FILE" in row.problems[0].text


async def test_a_stopped_bookie_is_down_and_comes_first(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client, OverviewPoller(client, uri) as poller:
        await poller.settled(10.0)
        await cluster.stop_bookie_async(2)
        name = cluster.bookies[2].name
        overview = await overview_with(
            poller, lambda one: one.bookies[0].state == DOWN, "it is down"
        )
        assert overview.bookies[0].bookie_id == name
        assert len(overview.bookies) == 3
