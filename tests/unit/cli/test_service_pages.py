"""The janitor's page of metrics: what it counts, and how old its last pass is."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fastbk.autorecovery.state import AuditorCounts, MarkCounts, WorkerCounts
from fastbk.cli.service_pages import (
    CURSOR_TEXTS,
    TEXTS,
    autorecovery_text,
    janitor_text,
    serve_janitor,
)
from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies
from fastbk.meta.health_records import LastBackup
from fastbk.observe.prometheus import RECENT_MAX, WINDOW_S, OpStats
from fastbk.replication.repair_options import CopyRate
from fastbk.stream.chain import open_for_append, reserve
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.store import delete_cursor
from fastbk.stream.janitor import Counts, Janitor, JanitorOptions
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.stream import truncate
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.exposition import Exposition, parsed
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import (
    as_client,
    cluster_with_stream,
    context_of,
    new_stream,
    write_segments,
)

if TYPE_CHECKING:
    from fastbk.admin.healing import RequestedRecoveries
    from fastbk.autorecovery.healer import Healer

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
    cluster, _ = await cluster_with_stream(plan)
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
    cluster, _ = await cluster_with_stream()
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


# AutoRecovery's page of metrics: Apache's names with their types, and what it has counted.


APACHES = {
    "auditor_NUM_UNDER_REPLICATED_LEDGERS": "summary",
    "auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE": "summary",
    "auditor_URL_PUBLISH_TIME_FOR_LOST_BOOKIE": "summary",
    "auditor_BOOKIE_TO_LEDGERS_MAP_CREATION_TIME": "summary",
    "auditor_CHECK_ALL_LEDGERS_TIME": "summary",
    "auditor_REPLICAS_CHECK_TIME": "summary",
    "auditor_PLACEMENT_POLICY_CHECK_TIME": "summary",
    "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY": "gauge",
    "auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY": "gauge",
    "auditor_AUDIT_BOOKIES_TIME": "summary",
    "auditor_NUM_FRAGMENTS_PER_LEDGER": "summary",
    "auditor_NUM_BOOKIES_PER_LEDGER": "summary",
    "auditor_NUM_LEDGERS_CHECKED": "counter",
    "auditor_NUM_BOOKIE_AUDITS_DELAYED": "counter",
    "auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED": "counter",
    "auditor_NUM_SKIPPING_CHECK_TASK_TIMES": "counter",
    "auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD": "gauge",
    "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY": "gauge",
    "auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY": "gauge",
    "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY": "gauge",
    "replication_worker_rereplicate": "summary",
    "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED": "counter",
    "replication_worker_NUM_ENTRIES_READ": "counter",
    "replication_worker_NUM_ENTRIES_WRITTEN": "counter",
    "replication_worker_READ_DATA_LATENCY": "summary",
    "replication_worker_WRITE_DATA_LATENCY": "summary",
    "replication_worker_NUM_BYTES_READ": "summary",
    "replication_worker_NUM_BYTES_WRITTEN": "summary",
    "replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER": "counter",
    "replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION": "counter",
}


def page(
    auditor: AuditorCounts, worker: WorkerCounts, marks: MarkCounts, *, is_auditor: bool = False
) -> Exposition:
    """The page of a process that has counted this."""
    healer = SimpleNamespace(
        auditor=object() if is_auditor else None,
        auditor_counts=auditor,
        elections=0,
        client=SimpleNamespace(placements_short=3),
        late_passes=lambda: {"marks": 400.0},
        worker=SimpleNamespace(
            counts=worker,
            marks=SimpleNamespace(counts=marks, bytes_left=5),
            active=1,
            parked=2,
            rate=CopyRate(math.inf),
        ),
    )
    recoveries = SimpleNamespace(pending=0, done=1, failed=0)
    return parsed(
        autorecovery_text(cast("Healer", healer), cast("RequestedRecoveries", recoveries))
    )


def test_apaches_names_are_there_before_anything_was_counted() -> None:
    found = page(AuditorCounts(), WorkerCounts(), MarkCounts())
    assert {name: found.types.get(name) for name in APACHES} == APACHES
    assert found.value("fastbk_autorecovery_late_passes") == 1
    assert found.value("fastbk_autorecovery_bytes_per_second_max") == math.inf
    for name, kind in APACHES.items():
        if kind == "summary":
            assert found.value(f"{name}_count", success="true") == 0


def test_attempts_are_counted_by_how_they_ended() -> None:
    worker = WorkerCounts(entries_copied=20, bytes_copied=3000, faults={"QuorumTimeout": 3})
    worker.repair_ms.add(10)
    worker.repair_ms.add(30)
    worker.repair_ms.add(500, ok=False)
    found = page(AuditorCounts(), worker, MarkCounts())
    name = "replication_worker_rereplicate"
    assert found.value(f"{name}_count", success="true") == 2
    assert found.value(f"{name}_sum", success="false") == 500
    assert found.value(name, success="true", quantile="1.0") == 30
    assert found.value("replication_worker_NUM_BYTES_WRITTEN_sum") == 3000
    assert found.value("replication_worker_NUM_BYTES_WRITTEN_count") == 20
    assert found.value("replication_worker_exceptions_QuorumTimeout") == 3


def test_marks_are_counted_by_age_and_by_live_copies() -> None:
    marks = MarkCounts()
    marks.add(0, 2, 3, age_s=30)
    marks.add(1, 2, 3, age_s=700)
    marks.add(2, 2, 3, age_s=100_000)
    marks.add(None, 0, 0, age_s=1)  # of a ledger that is gone
    found = page(AuditorCounts(), WorkerCounts(), marks)
    name = "auditor_NUM_LEDGERS_HAVING_{}_OF_AN_ENTRY"
    assert found.value(name.format("NO_REPLICA")) == 1
    assert found.value(name.format("LESS_THAN_AQ_REPLICAS")) == 2
    assert found.value(name.format("LESS_THAN_WQ_REPLICAS")) == 3
    ages = {
        age: found.value("fastbk_underreplicated_ledgers", le=age) for age in ("60", "3600", "+Inf")
    }
    assert ages == {"60": 2, "3600": 3, "+Inf": 4}
    late = "auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"
    assert found.value(late) == 1


def test_misplaced_ledgers_are_those_of_the_auditors_last_round() -> None:
    seen = AuditorCounts()
    name, age = "fastbk_misplaced_ledgers", "fastbk_autorecovery_placement_round_age_seconds"
    apaches = "auditor_NUM_LEDGERS_{}_ADHERING_TO_PLACEMENT_POLICY"
    before = page(seen, WorkerCounts(), MarkCounts(), is_auditor=True)
    assert math.isnan(before.value(name, kind="enforced"))
    assert math.isnan(before.value(age))
    assert before.value("fastbk_autorecovery_placements_short_total") == 3
    seen.placement.ended(2, 5, 1, time.time_ns() // 1_000_000 - 60_000)
    found = page(seen, WorkerCounts(), MarkCounts(), is_auditor=True)
    assert (found.value(name, kind="enforced"), found.value(name, kind="soft")) == (2, 5)
    assert found.value("fastbk_autorecovery_placement_ledgers_unsure") == 1
    assert 60 <= found.value(age) < 120
    assert found.value(apaches.format("NOT")) == 2
    assert found.value("auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY") == 5
    other = page(seen, WorkerCounts(), MarkCounts())
    assert math.isnan(other.value(name, kind="enforced")), "it is the auditor no more"
    assert other.value(apaches.format("NOT")) == 0


def test_quantiles_are_of_the_last_minute_and_take_bounded_memory() -> None:
    now_s = 0.0
    stats = OpStats(lambda: now_s)
    for value in range(RECENT_MAX + 5):
        stats.add(value)
    found = parsed("\n".join(stats.lines("x", "X.")))
    assert found.value("x", success="true", quantile="1.0") == RECENT_MAX + 4
    assert found.value("x", success="true", quantile="0.5") == 5 + RECENT_MAX // 2
    assert math.isnan(found.value("x", success="false", quantile="0.5"))
    now_s = WINDOW_S + 1
    found = parsed("\n".join(stats.lines("x", "X.")))
    assert math.isnan(found.value("x", success="true", quantile="0.5"))
    assert found.value("x_count", success="true") == RECENT_MAX + 5


def test_the_auditor_says_how_old_the_newest_backup_is() -> None:
    name = "fastbk_autorecovery_last_backup_age_seconds"
    seen = AuditorCounts(bookie_passes=1)
    assert page(seen, WorkerCounts(), MarkCounts(), is_auditor=True).value(name) == math.inf
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    seen.backup = LastBackup(began_ms=hour_ago_ms, backup_id="a")
    assert 3600 <= page(seen, WorkerCounts(), MarkCounts(), is_auditor=True).value(name) < 3700
    not_yet = page(AuditorCounts(), WorkerCounts(), MarkCounts(), is_auditor=True)
    for other in (page(seen, WorkerCounts(), MarkCounts()), not_yet):
        assert math.isnan(other.value(name)), "it is the auditor's to say"
