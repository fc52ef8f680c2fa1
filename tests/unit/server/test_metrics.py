import os
import re
from collections.abc import Iterator

import pytest

from fastbk.native.segment import Histogram, Segment, Stats, bucket_from, create_segment
from fastbk.observe.names import NAMES, SLOTS
from fastbk.server.admin.metrics import Metrics, cumulative
from fastbk.server.process_table import JOURNAL, Process, journal, worker
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget, State

RINGS = {"worker": [65536, 65536], "index": [65536]}


def segment(process: Process) -> tuple[int, Stats]:
    descriptor = create_segment(process.role, process.index, 1, RINGS.get(process.role, []))
    return descriptor, Stats(Segment(descriptor, process.role, is_writable=True))


def parsed(text: str) -> dict[str, float]:
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in values
            values[name] = float(value)
    return values


@pytest.fixture
def metrics() -> Metrics:
    life = Lifecycle(0.0)
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "", 0.0)
    return Metrics(life, RestartBudget(5, 60.0))


def test_journals_of_several_pairs_have_a_series_each(metrics: Metrics) -> None:
    """A19: with a label only where there are several, so that a bookie of one pair looks as it always did."""
    slot, name = SLOTS["FBK_C_JOURNAL_BATCHES"], "fastbk_journal_batches_total"
    made = [segment(journal(pair)) for pair in range(2)]
    for pair, (_, stats) in enumerate(made):
        stats.count(slot, 10 + pair)
    try:
        metrics.attach({journal(0): made[0][0]})
        assert parsed(metrics.text())[name] == 10
        metrics.attach({journal(pair): descriptor for pair, (descriptor, _) in enumerate(made)})
        values = parsed(metrics.text())
        assert values[f'{name}{{pair="0"}}'] == 10
        assert values[f'{name}{{pair="1"}}'] == 11
        assert name not in values
        assert any('_bucket{pair="1",le="' in one for one in values)
        assert metrics.value("FBK_C_JOURNAL_BATCHES") == 21
    finally:
        metrics.detach()
        for descriptor, stats in made:
            stats.segment.close()
            os.close(descriptor)


def test_counters_of_all_workers_are_added_up_exactly(metrics: Metrics) -> None:
    big = 2**53 + 1
    made = {worker(n): segment(worker(n)) for n in range(2)}
    for n, (_, stats) in enumerate(made.values()):
        stats.count(SLOTS["FBK_C_WORKER_BYTES_SENT"], big + n)
    metrics.attach({process: descriptor for process, (descriptor, _) in made.items()})
    assert f"fastbk_worker_bytes_sent_total {2 * big + 1}\n" in metrics.text()
    metrics.detach()
    for descriptor, stats in made.values():
        stats.segment.close()
        os.close(descriptor)


def test_a_histogram_shows_exact_sums_and_cumulative_buckets(metrics: Metrics) -> None:
    descriptor, stats = segment(JOURNAL)
    values_ns = [50_000, 100_000, 120_000, 5_000_000]
    for value in values_ns:
        stats.observe(SLOTS["FBK_H_JOURNAL_COMMIT_NS"], value)
    metrics.attach({JOURNAL: descriptor})
    values = parsed(metrics.text())
    name = "fastbk_journal_commit_seconds"
    assert values[f"{name}_count"] == 4
    assert values[f"{name}_sum"] == pytest.approx(sum(values_ns) * 1e-9, rel=1e-12)
    bounds = []
    for key, count in values.items():
        if match := re.fullmatch(name + r'_bucket\{le="([^"]+)"\}', key):
            bound_s = float(match[1].replace("+Inf", "inf"))
            bounds.append(bound_s)
            assert count == sum(value * 1e-9 < bound_s for value in values_ns)
    assert bounds == sorted(bounds)
    metrics.detach()
    stats.segment.close()
    os.close(descriptor)


def test_buckets_shown_count_every_stored_value_once() -> None:
    times = [bucket % 7 for bucket in range(512)]
    histogram = Histogram(sum(times), 0, 0, times)
    for scale in (1.0, 1e-6, 1e-9):
        for bound, below in cumulative(histogram, scale):
            assert below == sum(n for b, n in enumerate(times) if bucket_from(b) < bound)


def test_without_children_only_the_supervisors_own_metrics_are_shown(metrics: Metrics) -> None:
    values = parsed(metrics.text())
    assert values["bookie_SERVER_STATUS"] == 1
    assert values["fastbk_supervisor_restarts_total"] == 0
    assert not any(key.startswith("fastbk_journal") for key in values)


def test_conditions_of_readiness_have_a_series_while_they_hold() -> None:
    life = Lifecycle(0.0)
    life.note("metadata", "it does not answer", "metadata")
    metrics, name = Metrics(life, RestartBudget(5, 60.0)), "fastbk_supervisor_condition"
    assert {
        key: value for key, value in parsed(metrics.text()).items() if key.startswith(name)
    } == {
        f'{name}{{name="state",concerns="data"}}': 1,
        f'{name}{{name="metadata",concerns="metadata"}}': 1,
    }
    life.note("metadata", None, "metadata")
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "", 0.0)
    assert name not in metrics.text()


def test_the_journals_limit_makes_the_bookie_read_only(metrics: Metrics) -> None:
    descriptor, stats = segment(JOURNAL)
    metrics.attach({JOURNAL: descriptor})
    assert not metrics.refuses_adds()
    stats.gauge(SLOTS["FBK_C_JOURNAL_LIMIT"], 1)
    assert metrics.refuses_adds()
    metrics.detach()
    stats.segment.close()
    os.close(descriptor)


@pytest.fixture
def of_a_bookie(metrics: Metrics) -> Iterator[dict[str, Stats]]:
    """What the processes of a bookie of one pair count, by role; `metrics` reads it."""
    made = {
        process: segment(process)
        for process in (worker(0), JOURNAL, Process("index"), Process("gc"))
    }
    metrics.attach({process: descriptor for process, (descriptor, _) in made.items()})
    yield {process.role: stats for process, (_, stats) in made.items()}
    metrics.detach()
    for descriptor, stats in made.values():
        stats.segment.close()
        os.close(descriptor)


def test_series_of_a_bookie_stay_within_their_budget(
    metrics: Metrics, of_a_bookie: dict[str, Stats]
) -> None:
    """Users of the field pay by the series: fewer than 400 by our names, and 150 once one of Apache's clients comes.

    A limit has a series once it is reached.
    """
    text = metrics.text()
    assert len(parsed(text)) < 400
    for name in NAMES:
        is_shown = name.is_own and not name.is_of_apaches_clients and not name.is_limit
        assert (f"# TYPE {name.metric} {name.kind}\n" in text) == is_shown
    of_a_bookie["worker"].count(SLOTS["FBK_C_WORKER_APACHE_CONNECTIONS"])
    for name in NAMES:
        if name.is_limit:
            of_a_bookie[name.role].count(SLOTS[name.slot_name])
    text = metrics.text()
    assert len(parsed(text)) < 400 + 150
    for name in NAMES:
        assert (f"# TYPE {name.metric} {name.kind}\n" in text) == name.is_own


def test_counters_of_time_are_shown_in_seconds(
    metrics: Metrics, of_a_bookie: dict[str, Stats]
) -> None:
    of_a_bookie["worker"].count(SLOTS["FBK_C_WORKER_FORCES_DONE_US"], 1_234_567)
    assert parsed(metrics.text())["fastbk_worker_forces_done_seconds_total"] == 1.234567


def test_a_family_of_names_can_be_had_alone() -> None:
    ours = Metrics(Lifecycle(0.0), RestartBudget(1, 1.0), "fastbk")
    ours.add_source(lambda: ["bookie_something 1"], "apache")
    ours.add_source(lambda: ["fastbk_something 1"])
    assert not [key for key in parsed(ours.text()) if not key.startswith("fastbk_")]
    assert set(parsed(ours.text("apache"))) == {"bookie_SERVER_STATUS", "bookie_something"}
    both = set(parsed(ours.text("all")))
    assert both == set(parsed(ours.text("apache"))) | set(parsed(ours.text("fastbk")))
