"""Quantiles of the last minute."""

from __future__ import annotations

import math

from fastbk.native.segment import BUCKET_COUNT, Histogram, bucket_from
from fastbk.server.admin.apache_metrics import RollingWindow, quantile


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
