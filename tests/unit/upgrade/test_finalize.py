"""Who stands in the way of a new format level."""

from __future__ import annotations

from fastbk.autorecovery.state import WORKER_SILENT_S, WorkerReport
from fastbk.formats import LEVEL_PROPERTY
from fastbk.meta.api import BookieRegistration, BookieService
from fastbk.upgrade.roll import level_of, reasons_against

NOW_MS = 1_000_000


def bookie(name: str, **properties: str) -> BookieRegistration:
    return BookieRegistration(BookieService(name, 1, (), properties), writable=True)


def new(name: str, level: int = 2) -> BookieRegistration:
    return bookie(name, version="0.2.9", **{LEVEL_PROPERTY: str(level)})


def test_all_have_the_level() -> None:
    workers = {"w": WorkerReport(report_ms=NOW_MS, format_level=2)}
    assert reasons_against(2, [new("a"), new("b", 3)], ["a", "b"], workers, NOW_MS) == ()


def test_a_bookie_that_says_nothing_is_of_the_first_level() -> None:
    """INV-U2."""
    assert level_of(bookie("a").service) == 1
    assert level_of(bookie("a", **{LEVEL_PROPERTY: "two"}).service) == 1
    (reason,) = reasons_against(2, [new("a"), bookie("b")], ["a", "b"], {}, NOW_MS)
    assert reason.startswith("bookie b has levels up to 1")


def test_a_bookie_that_is_down_may_be_an_old_one() -> None:
    """INV-U2."""
    (reason,) = reasons_against(2, [new("a")], ["a", "b"], {}, NOW_MS)
    assert reason.startswith("bookie b is down")


def test_a_worker_counts_while_it_reports() -> None:
    """INV-U2."""
    silent_ms = NOW_MS - int(WORKER_SILENT_S * 1000)
    workers = {
        "old": WorkerReport(report_ms=NOW_MS - 1),
        "gone": WorkerReport(report_ms=silent_ms),
    }
    (reason,) = reasons_against(2, [new("a")], ["a"], workers, NOW_MS)
    assert reason.startswith("autorecovery old has levels up to 1")


def test_a_cluster_without_bookies_has_nothing_to_finalize() -> None:
    assert reasons_against(2, [], [], {}, NOW_MS) == ("no bookie is registered",)
