from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from fastbk.model.health import MisplacedFacts, OpenLedgerFacts
from fastbk.overview import tables
from fastbk.overview.tables import ORDERS, WIDE_COLUMNS, Column, plain_lines
from tests.fixtures.overviews import (
    ADOPTING,
    HEALTHY,
    NOT_ADOPTING,
    SILENT,
    SLOW,
    overview,
)


@pytest.mark.parametrize("width", [80, 100, WIDE_COLUMNS, 200])
def test_tables_fit_their_width_and_the_sickest_is_first(width: int) -> None:
    lines = plain_lines(overview(), width)
    assert all(len(line) <= width for line in lines[3:8])
    assert [line.split()[:2] for line in lines[4:8]] == [
        ["!!", "bookie-4"], ["!", "bookie-3"], ["bookie-1", "12.3k"], ["bookie-2", "12.3k"],
    ]  # fmt: skip


def test_a_slow_journal_is_marked_named_and_measured_at_80_columns() -> None:
    (line,) = [line for line in plain_lines(overview(SLOW), 80) if "bookie-3" in line]
    assert re.fullmatch(
        r"!  bookie-3 +12.3k +3.6ms +33ms +12 +J0 33ms +9.0d +0 slow journal: commit …", line
    )


def test_a_wide_screen_has_medians_and_the_event_beside_the_problem() -> None:
    (line,) = [line for line in plain_lines(overview(SLOW), 160) if "bookie-3" in line]
    assert "0.4ms/3.6ms" in line
    assert "31ms/33ms" in line
    assert "slow journal: commit p99 33.4 ms" in line
    assert "4.0s journal.slow: half of" in line


def test_a_bookie_without_an_answer_has_no_figures() -> None:
    (line,) = [line for line in plain_lines(overview(SILENT), 80) if "bookie-4" in line]
    assert line.split()[:9] == ["!!", "bookie-4", "-", "-", "-", "-", "-", "-", "-"]
    assert line.endswith("no answer for 9 s: ti…")


def test_journal_files_say_what_they_adopted_and_why_not_at_80_columns() -> None:
    lines = plain_lines(overview(ADOPTING, NOT_ADOPTING, SILENT), 80)
    at = next(n for n, line in enumerate(lines) if "WHY NOT ADOPTED" in line)
    assert [re.split(" {2,}|(?<=B) ", line) for line in lines[at + 1 : at + 3]] == [
        ["bookie-3", "2.0 GiB", "0 B", "1.0 GiB", "64.0 MiB", "J0 level, J1 other…"],
        ["bookie-1", "4.0 GiB", "3.0 GiB", "200.0 MiB", "96.0 MiB"],
    ]
    assert all(len(line) <= 80 for line in lines[at : at + 3])
    assert not any("bookie-4" in line for line in lines[at:]), "nothing is known of its files"


def test_details_say_all_of_why_journal_files_do_not_adopt() -> None:
    text = "\n".join(tables.detail_lines(NOT_ADOPTING, overview().at_s))
    assert "0 B adopted, 1.0 GiB copied, of 2.0 GiB of entries" in text
    assert "files do not adopt: J0 level, J1 other disk; 64.0 MiB free" in text
    text = "\n".join(tables.detail_lines(ADOPTING, overview().at_s))
    assert "files adopt; 96.0 MiB free" in text


def test_everything_else_stands_below() -> None:
    text = "\n".join(plain_lines(overview(), 100))
    assert "03:12:00Z  in danger  4 bookies: 1 bad, 1 with warnings  36.9k adds/s" in text
    assert "healing: auditor bookie-9; 12 ledgers marked, 1 parked, about 5.0 GiB left" in text
    assert "lost: bookie-5 (due)" in text
    assert "shop/orders" in text
    assert "billing (spark)" in text
    assert "3 more cursors were not read" in text
    assert "not read: known bookies: ZooKeeper did not answer" in text


def test_what_is_wrong_beside_the_bookies_is_named_and_remarks_are_not() -> None:
    ledgers = OpenLedgerFacts(uncloseable=[7], away=["bookie-4"])
    ill = replace(overview(), hold="rolled back", open_ledgers=ledgers, backup_age_s=math.inf)
    text = "\n".join(plain_lines(ill, 100))
    assert (
        "metadata is on hold, nothing is deleted: rolled back: see `fastbk metadata status`" in text
    )
    assert "ledger 7 cannot be closed while bookie-4 are away: start those bookies" in text
    assert "never backed up" not in text
    misplaced = MisplacedFacts(enforced=1, soft=9, first=[7], reason="one rack")
    text = "\n".join(plain_lines(replace(overview(), misplaced=misplaced), 100))
    assert "ledger 7 lies against an enforced rule of placement: one rack: fastbk cluster" in text
    assert "9 ledgers" not in text
    assert text.count("known bookies: ZooKeeper did not answer") == 1


def test_the_filter_is_of_all_cells_whatever_the_case() -> None:
    lines = plain_lines(overview(), 160, text="BILLING")
    assert not any("bookie-1" in line for line in lines[3:])
    assert any("billing" in line for line in lines)


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_is_one_of_all_bookies(order: str) -> None:
    rows = tables.ordered(overview().bookies, order)
    assert sorted(row.bookie_id for row in rows) == ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]


def test_orders_put_first_what_they_are_named_after() -> None:
    busy = replace(HEALTHY, bookie_id="busy", adds_per_s=1e6, queue=900, full_in_s=60.0)
    rows = [HEALTHY, SLOW, SILENT, busy]
    for order in ("adds", "queue", "time to full"):
        assert tables.ordered(rows, order)[0] is busy
    assert tables.ordered(rows, "commit p99")[0] is SLOW
    assert tables.ordered(rows, "name")[0] is HEALTHY


def test_details_have_every_figure() -> None:
    text = "\n".join(tables.detail_lines(SLOW, overview().at_s))
    for part in (
        "12.3k/s",
        "31ms/33ms of 150",
        "slow journal",
        "/data/journal",
        "50.0 GiB",
        "fastbk 0.3.0",
        "9.0d",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [(0.00004, "0.0ms", "0.0s"), (0.0099, "9.9ms", "0.0s"), (0.0315, "32ms", "0.0s"), (0.9994, "999ms", "1.0s"),
     (9.94, "9.9s", "9.9s"), (75.0, "75s", "75s"), (600.0, "600s", "10m"), (8e6, "8000000s", "92.6d"),
     (9e6, "9000000s", "104d"), (9e9, "9000000000s", ">999d")],
)  # fmt: skip
def test_times_are_short(seconds: float, short: str, long: str) -> None:
    assert tables.millis(seconds) == short
    assert tables.age(seconds) == long
    assert len(long) <= 5


def test_a_text_that_is_too_long_is_cut_and_says_so() -> None:
    assert tables.fit("journal", 4, "<") == "jou…"
    assert tables.fit("j", 4, ">") == "   j"
    both = [Column[str]("A", str, 3), Column[str]("B", str, 0)]
    assert tables.fitted(both, 20) == [3, 16]
    assert tables.fitted(both, 5) == [3, 8]
