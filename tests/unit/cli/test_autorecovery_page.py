"""AutoRecovery's page of metrics: Apache's names with their types, and what it has counted."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import cast

from fastbk.admin.healing import RequestedRecoveries
from fastbk.autorecovery.healer import Healer
from fastbk.autorecovery.state import AuditorCounts, MarkCounts, WorkerCounts
from fastbk.cli.service_pages import autorecovery_text
from fastbk.meta.health_records import LastBackup
from fastbk.observe.prometheus import RECENT_MAX, WINDOW_S, OpStats
from fastbk.replication.repair_options import CopyRate
from tests.fixtures.exposition import Exposition, parsed

APACHES = {
    "auditor_NUM_UNDER_REPLICATED_LEDGERS": "summary",
    "auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE": "summary",
    "auditor_URL_PUBLISH_TIME_FOR_LOST_BOOKIE": "summary",
    "auditor_BOOKIE_TO_LEDGERS_MAP_CREATION_TIME": "summary",
    "auditor_CHECK_ALL_LEDGERS_TIME": "summary",
    "auditor_REPLICAS_CHECK_TIME": "summary",
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
