"""Overviews for tests of the screen: a cluster with a slow journal, a silent bookie and healthy ones."""

from __future__ import annotations

from dataclasses import replace

from fastbk.overview.values import (
    NO_ANSWER,
    BookieRow,
    ClusterOverview,
    CursorLag,
    DiskRow,
    Healing,
    HotLedger,
    HotStream,
    LastEvent,
    Latency,
    Problem,
    Severity,
)

AT_S = 1795835520.0
JOURNAL = DiskRow("journal", 0, "/data/journal", "ok", "", "all", 10 << 30, 0.4, 0.002)
LEDGERS = DiskRow("ledger", 0, "/data/ledgers", "ok", "", "all", 50 << 30, 0.6, 0.05, 9 * 86_400.0)
HEALTHY = BookieRow(
    "bookie-1", "writable", "http://10.0.0.1:8000", (), 12_300.0, 13e6, 50.0,
    Latency(0.0004, 0.0036, 5000), Latency(0.0002, 0.002, 900), 12, 0, (JOURNAL, LEDGERS), 9 * 86_400.0,
    last_event=LastEvent(AT_S - 7200, "bookie.started: serving", "start"), version="fastbk 0.3.0",
)  # fmt: skip
SLOW = replace(
    HEALTHY,
    bookie_id="bookie-3",
    problems=(Problem(Severity.WARN, "slow journal: commit p99 33.4 ms"),),
    commit=Latency(0.031, 0.0334, 150),
    disks=(replace(JOURNAL, p99_s=0.0334), LEDGERS),
    last_event=LastEvent(AT_S - 4, "journal.slow: half of the commits take 31 ms", "stall"),
)
SILENT = BookieRow(
    "bookie-4",
    NO_ANSWER,
    "http://10.0.0.4:8000",
    (Problem(Severity.BAD, "no answer for 9 s: timed out"),),
)


def overview(*rows: BookieRow) -> ClusterOverview:
    """Return a cluster of these bookies, or of four with all sorts of problems."""
    rows = rows or (HEALTHY, replace(HEALTHY, bookie_id="bookie-2"), SLOW, SILENT)
    return ClusterOverview(
        AT_S,
        "sqlite:/tmp/metadata.sqlite",
        tuple(sorted(rows, key=lambda row: row.sickness())),
        (HotLedger(17, 9000.0, 9e6, "shop/orders", 3), HotLedger(4, 1200.0, 3e5, "", 3)),
        (HotStream("shop/orders", 9000.0, 9e6),),
        (CursorLag("shop/orders", "billing", "spark", 120_000, 120 << 20, 660.0, 1900.0),),
        3,
        Healing(True, "bookie-9", 12, 5 << 30, 1, 0.5, 64e6, (("bookie-5", 0),)),
        ("known bookies: ZooKeeper did not answer",),
    )
