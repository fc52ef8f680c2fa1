"""Quantiles of the last minute."""

from __future__ import annotations

import math
from pathlib import Path

from fastbk.native.segment import BUCKET_COUNT, Histogram, bucket_from
from fastbk.observe.names import NAMES
from fastbk.server.admin.apache_metrics import SUMMARIES, TOTALS, VALUES, RollingWindow, quantile


def histogram(*values: int) -> Histogram:
    buckets = [0] * BUCKET_COUNT
    for value in values:
        buckets[max(at for at in range(BUCKET_COUNT) if bucket_from(at) <= value)] += 1
    return Histogram(len(values), sum(values), max(values, default=0), buckets)


def test_a_quantile_is_at_most_an_eighth_too_high() -> None:
    values = [3, 7, 100, 1000, 5000]
    of = histogram(*values)
    assert math.isnan(quantile(histogram(), 0.5))
    for share, exact in ((0.2, 3), (0.5, 100), (0.75, 1000), (1.0, 5000)):
        assert exact <= quantile(of, share) <= exact * 1.125
    assert quantile(of, 1.0) == 5000, "the largest is known exactly"


def test_what_is_older_than_the_window_no_longer_counts() -> None:
    window = RollingWindow(60.0)
    window.keep(0.0, {})
    slow = histogram(9000)
    assert window.recent("x", slow).buckets == slow.buckets, "all of it is new"
    for second in range(10, 60, 10):
        assert window.is_due(float(second))
        window.keep(float(second), {"x": slow})
        assert not window.is_due(second + 9.0)
    both = histogram(9000, 10, 10)
    assert quantile(window.recent("x", both), 1.0) >= 9000
    window.keep(70.0, {"x": both})
    assert sum(window.recent("x", both).buckets) == 2, "the slow one is more than a minute old"
    window.clear()
    assert sum(window.recent("x", both).buckets) == 3


# Our metrics by Apache's names against those that a bookie of Apache's showed, names, types and
# labels.
#
# `apache_metrics_4.17.2.txt` was written down from a bookie with DbLedgerStorage and one
# directory of each kind; what differs has a reason in `apache_metrics_differences.txt`, and
# nothing else has.


GOLDEN = Path(__file__).parents[2] / "golden"


def rows(name: str) -> dict[str, str]:
    """Return what stands behind each name."""
    lines = (GOLDEN / name).read_text().splitlines()
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}


def test_what_has_no_name_of_ours_has_one_of_apaches() -> None:
    asked = {slot for one in SUMMARIES for slot in (one.slot_name, *(one.failed or ()))}
    asked |= {slot for one in TOTALS for slot in (*one.done, *(one.failed or ()))}
    asked |= {slot for one in VALUES for slot in one.plus}
    assert {name.slot_name for name in NAMES if not name.is_own} <= asked


def test_every_difference_has_a_reason_and_every_reason_a_difference() -> None:
    ours, theirs = rows("apache_metrics.txt"), rows("apache_metrics_4.17.2.txt")
    differing = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    reasons = {
        name.rstrip(":"): why for name, why in rows("apache_metrics_differences.txt").items()
    }
    assert differing == set(reasons)
    assert all(reasons.values())
    assert len(ours.keys() & theirs.keys()) >= 67
