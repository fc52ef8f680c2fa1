"""The janitor's page of metrics: what it counts, and how old its last pass is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fastbk.cli.service_pages import CURSOR_TEXTS, TEXTS, janitor_text, serve_janitor
from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies
from fastbk.stream.chain import open_for_append, reserve
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.store import delete_cursor
from fastbk.stream.janitor import Counts, Janitor, JanitorOptions
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.stream import truncate
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.exposition import parsed
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import as_client, context_of, new_stream, write_segments

ROOT = Path(__file__).resolve().parents[3]


class Away(Plan):
    """Metadata is away, while told so."""

    def __init__(self) -> None:
        self.is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away:
            raise MetadataUnavailable("it is away")


class Slow(Plan):
    """Bookies do not answer, while told so."""

    is_slow = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_slow and what in ("open", "read"):
            raise NotEnoughBookies("they are away")


async def test_deletions_bytes_orphans_and_the_age_of_the_last_pass() -> None:
    plan = Away()
    cluster = Cluster(plan)
    await new_stream(cluster)
    await write_segments(cluster.client(), 3)
    context = context_of(cluster.client())
    await truncate(context, "latest")
    rows = (await context.store.read()).chain.rows
    janitor = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1), lambda _: None)
    before = parsed(janitor_text(janitor))
    assert math.isnan(before.value("fastbk_janitor_last_pass_age_seconds"))
    await janitor.pass_once()
    assert janitor.last_pass_ended_s is not None
    ended_s = janitor.last_pass_ended_s
    page = parsed(janitor_text(janitor, lambda: ended_s + 12.5))
    assert page.value("fastbk_janitor_passes_total") == 1
    assert page.value("fastbk_janitor_last_pass_age_seconds") == 12.5
    assert page.value("fastbk_janitor_segments_deleted_total") == 2
    gone = sum(row.size_bytes for row in rows[:2])
    assert page.value("fastbk_janitor_reclaimed_bytes_total") == gone > 0
    plan.is_away = True
    with pytest.raises(Error):
        await janitor.pass_once()
    page = parsed(janitor_text(janitor, lambda: ended_s + 20))
    assert page.value("fastbk_janitor_passes_total") == 2
    assert page.value("fastbk_janitor_last_pass_age_seconds") == 20, "of the last whole one"


async def test_ledgers_that_were_made_and_never_written_are_orphans() -> None:
    cluster = Cluster()
    await new_stream(cluster)
    await write_segments(cluster.client(), 2)
    client = cluster.client()
    ledger_id = await client.records.draw_ledger_id()
    store = context_of(client).store
    await store.change(lambda chain: reserve(chain, chain.epoch, ledger_id))
    await store.change(lambda chain: open_for_append(chain, "another"))
    janitor = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1), lambda _: None)
    counts = await janitor.pass_once()
    assert (counts.orphans_deleted, counts.ledgers_deleted, counts.reclaimed_bytes) == (1, 1, 0)


async def test_cursors_that_are_behind_have_series_of_a_bounded_number() -> None:
    plan = Slow()
    cluster = Cluster(plan)
    for stream_id, cursors in (("ab", ["one", 'q"\\']), ("cd", ["three"]), ("ef", [])):
        await new_stream(cluster, stream_id)
        context = context_of(cluster.client(), stream_id=stream_id)
        async with StreamWriter(context, WriterOptions()) as writer:
            for _ in range(5):
                await writer.append(bytes(100))
        for at, name in enumerate(cursors):
            async with Cursor(context, name) as cursor:
                await cursor.reset(DLSN(1, 3 * at, 0), seq=3 * at)
    options = JanitorOptions(thorough_every=1000, cursor_gauges_max=3)
    janitor = Janitor(as_client(cluster.client()), options, lambda _: None)
    assert "fastbk_cursor_backlog_records{" not in janitor_text(janitor)
    await janitor.pass_once()
    page = parsed(janitor_text(janitor))

    def records(stream: str, cursor: str) -> float:
        labels = {"stream": stream, "cursor": cursor, "by": ""}
        return page.value("fastbk_cursor_backlog_records", **labels)

    assert records("ns/ab", "one") == 5 and records("ns/cd", "three") == 5
    quoted = {"stream": "ns/ab", "cursor": 'q\\"\\\\', "by": ""}
    assert page.value("fastbk_cursor_backlog_records", **quoted) == 2
    assert page.value("fastbk_cursor_backlog_bytes", **quoted) > 200
    assert 0 < page.value("fastbk_cursor_oldest_unread_seconds", **quoted) < 60
    assert 0 <= page.value("fastbk_cursor_moved_seconds", **quoted) < 60
    assert page.value("fastbk_cursors_left_out") == 0
    # A new cursor on a stream that has some is found by the next pass; it is one more than there may be.
    async with Cursor(context_of(cluster.client()), "new"):
        pass
    assert len(janitor.gauges.all()) == 3
    await janitor.pass_once()
    page = parsed(janitor_text(janitor))
    assert page.value("fastbk_cursors_left_out") == 1 and len(janitor.gauges.all()) == 3
    # Bookies that do not answer: no figures, and the pass goes on.
    plan.is_slow = True
    counts = await janitor.pass_once()
    assert (counts.errors, counts.streams) == (0, 3)
    page = parsed(janitor_text(janitor))
    assert math.isnan(records("ns/cd", "three"))
    # One that goes takes its series with it.
    plan.is_slow = False
    await delete_cursor(as_client(cluster.client()), "cd", "three")
    for _ in range(2):  # which stream takes its place depends on who is looked at first
        await janitor.pass_once()
    assert [one.stream for one in janitor.gauges.all()] == ["ns/ab"] * 3


async def test_what_is_asked_wrongly_is_answered_so() -> None:
    janitor = Janitor(as_client(Cluster().client()))
    server = await serve_janitor(janitor, "127.0.0.1", 0)
    try:
        assert server.port > 0
        assert (await server.answer("GET", "/metrics"))[0] == 200
        assert (await server.answer("POST", "/metrics"))[0] == 405
        status, _, body = await server.answer("GET", "/")
        assert (status, body) == (404, b"/livez, /metrics\n")
    finally:
        await server.close()


def test_all_that_is_counted_is_on_the_page_and_described() -> None:
    assert TEXTS.keys() == Counts().as_dict().keys()
    told = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"`{name}_total`" in told for name in TEXTS)
    assert all(f"fastbk_cursor_{name}" in told for name in CURSOR_TEXTS)
