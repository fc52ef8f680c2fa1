"""A histogram of durations tells what the durations were, of the last minutes."""

from __future__ import annotations

import random

import pytest

from fastbk.observe import meter as module
from fastbk.observe.meter import WINDOW_S, AppendClock, Latency, LatencyHistogram


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_near_those_of_the_values(clock: Clock, seed: int) -> None:
    rng, histogram = random.Random(seed), LatencyHistogram()
    values = sorted(rng.lognormvariate(-8, 2) for _ in range(10_000))
    for value in values:
        histogram.record(value, 1, clock.now_s)
    found = histogram.latency()
    assert found.count == 10_000 and found.total_s == pytest.approx(sum(values))
    assert found.p50_s == pytest.approx(values[5000], rel=0.07, abs=1.5e-6)
    assert found.p99_s == pytest.approx(values[9900], rel=0.07, abs=1.5e-6)


def test_every_microsecond_is_in_a_bucket_beside_its_value(clock: Clock) -> None:
    for took_us in [*range(3000), 10**6, 10**9, 10**12]:
        histogram = LatencyHistogram()
        histogram.record(took_us / 1e6, 7, clock.now_s)
        found = histogram.latency()
        assert found.p50_s == found.p99_s == pytest.approx(took_us / 1e6, rel=0.07, abs=1.5e-6)
        assert found.count == 7


def test_what_is_older_than_two_minutes_is_in_the_sums_alone(clock: Clock) -> None:
    histogram = LatencyHistogram()
    assert histogram.latency() == Latency()
    histogram.record(1.0, 100, clock.now_s)
    clock.now_s += 1.5 * WINDOW_S
    assert histogram.latency().p50_s == pytest.approx(1.0, rel=0.07)
    histogram.record(0.001, 1, clock.now_s)
    assert histogram.latency().p50_s == pytest.approx(1.0, rel=0.07)
    clock.now_s += WINDOW_S
    histogram.record(0.001, 1, clock.now_s)
    assert histogram.latency().p99_s == pytest.approx(0.001, rel=0.07)
    clock.now_s += 5 * WINDOW_S
    found = histogram.latency()
    assert (found.p50_s, found.p99_s, found.count) == (0.0, 0.0, 102)
    assert found.total_s == pytest.approx(100.002)


def test_appends_that_begin_and_end_in_groups_are_measured_each(clock: Clock) -> None:
    appends = AppendClock(5)
    appends.begin(8, clock.now_s)
    clock.now_s += 1.0
    appends.begin(9, clock.now_s)
    appends.finish(7)
    assert appends.histogram.count == 2 and appends.histogram.total_s == pytest.approx(2.0)
    clock.now_s += 1.0
    appends.finish(7)
    appends.finish(9)
    assert appends.histogram.count == 4 and appends.histogram.total_s == pytest.approx(
        2.0 + 2.0 + 1.0
    )
    appends.finish(9)
    appends.begin(10, clock.now_s)
    appends.finish(10)
    assert appends.histogram.count == 5 and not appends._begun
