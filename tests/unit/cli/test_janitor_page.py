"""The janitor's page of metrics: what it counts, and how old its last pass is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fastbk.cli.janitor_page import TEXTS, serve, text_of
from fastbk.errors import Error, MetadataUnavailable
from fastbk.stream.chain_changes import open_for_append, reserve
from fastbk.stream.janitor import Counts, Janitor, JanitorOptions
from fastbk.stream.truncation import truncate
from tests.fixtures.exposition import parsed
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.fake_streams import as_client, context_of, new_stream, write_segments

ROOT = Path(__file__).resolve().parents[3]


class Away(Plan):
    """Metadata is away, while told so."""

    def __init__(self) -> None:
        self.is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away:
            raise MetadataUnavailable("it is away")


async def test_deletions_bytes_orphans_and_the_age_of_the_last_pass() -> None:
    plan = Away()
    cluster = Cluster(plan)
    await new_stream(cluster)
    await write_segments(cluster.client(), 3)
    context = context_of(cluster.client())
    await truncate(context, "latest")
    rows = (await context.store.read()).chain.rows
    janitor = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1), lambda _: None)
    before = parsed(text_of(janitor))
    assert math.isnan(before.value("fastbk_janitor_last_pass_age_seconds"))
    await janitor.pass_once()
    assert janitor.last_pass_ended_s is not None
    ended_s = janitor.last_pass_ended_s
    page = parsed(text_of(janitor, lambda: ended_s + 12.5))
    assert page.value("fastbk_janitor_passes_total") == 1
    assert page.value("fastbk_janitor_last_pass_age_seconds") == 12.5
    assert page.value("fastbk_janitor_segments_deleted_total") == 2
    gone = sum(row.size_bytes for row in rows[:2])
    assert page.value("fastbk_janitor_reclaimed_bytes_total") == gone > 0
    plan.is_away = True
    with pytest.raises(Error):
        await janitor.pass_once()
    page = parsed(text_of(janitor, lambda: ended_s + 20))
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


async def test_what_is_asked_wrongly_is_answered_so() -> None:
    janitor = Janitor(as_client(Cluster().client()))
    server = await serve(janitor, "127.0.0.1", 0)
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
