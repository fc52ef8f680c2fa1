"""What a load test is made of, without a cluster: histograms, thresholds, shapes, schedules of faults, the page."""

from __future__ import annotations

import ast
import html
import random
import time

import pytest

from loadtest import chaos, kept, shapes, thresholds
from loadtest.figures import Figures
from loadtest.latency import Latency, bucket_of, top_of
from loadtest.report import lines, page
from loadtest.run import Plan, Run
from tests.style.tree import ROOT
from tools.load import KINDS, Wish


def test_every_value_lies_in_its_bucket_and_a_bucket_is_narrow() -> None:
    for value in [*range(5000), *(2**n + d for n in range(12, 40) for d in (-1, 0, 1))]:
        bucket = bucket_of(value)
        assert value <= top_of(bucket)
        assert bucket == 0 or top_of(bucket - 1) < value
        assert top_of(bucket) <= value * (1 + 1 / 64) + 1


def test_percentiles_are_those_of_the_sorted_values(rng: random.Random) -> None:
    latency = Latency()
    values = sorted(int(rng.lognormvariate(6, 1)) for _ in range(5000))
    for value in values:
        latency.record(value)
    for percent in (1, 50, 99, 99.9, 100):
        exact = values[max(0, -(-len(values) * int(percent * 10) // 1000) - 1)]
        assert exact <= latency.percentile_us(percent) <= exact * (1 + 1 / 32) + 1


def test_figures_of_several_processes_are_those_of_one_that_made_all_requests(
    rng: random.Random,
) -> None:
    one, merged = Figures(6), Figures(6)
    workers = [Figures(6) for _ in range(3)]
    for number in range(3000):
        took_us = None if number % 50 == 0 else rng.lognormvariate(6, 2)
        request = (f"kind {number % 4}", took_us, number % 7, 1000.0 + number / 300)
        one.record(*request)
        worker = workers[number % 3]
        worker.record(*request)
        if number % 17 == 0:
            merged.add(worker.take())
    for worker in workers:
        merged.add(worker.take())
        assert worker.take() == []

    def whole(figures: Figures, since_s: float = 0.0) -> dict[str, dict[str, int]]:
        return {kind: found.summary() for kind, found in figures.totals(since_s).items()}

    assert whole(merged) == whole(one)
    assert whole(merged, 1004.0) == whole(one, 1004.0) != whole(one)
    assert [(at_s, found.summary()) for at_s, found in merged.slots()] == [
        (at_s, found.summary()) for at_s, found in one.slots()
    ]
    assert [at_s for at_s, _ in merged.slots()] == [1000, 1002, 1004, 1006, 1008]


def test_a_chart_of_a_day_has_as_many_points_as_one_of_a_minute() -> None:
    figures = Figures(slots_max=10)
    for at_s in range(0, 86_400, 60):
        figures.record("a", 100.0, 0, 1e9 + at_s)
    assert len(figures.slots()) <= 10
    assert figures.totals()["a"].count == sum(found.count for _, found in figures.slots()) == 1440
    assert 86_400 / 10 <= figures.slot_s < 2 * 86_400 / 5


def latency_of(values: list[int], failures: int = 0) -> Latency:
    latency = Latency()
    for value in values:
        latency.record(value)
    latency.failures = failures
    return latency


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("a: p50 < 51us", True),
        ("a: p50 < 50us", False),
        ("a: p99 < 0.1ms", True),
        ("a: p99.9<1s", True),
        ("a: max > 99us", True),
        ("a: max > 100us", False),
        ("a: rate > 9", True),
        ("a: rate > 10", False),
        ("a: failures < 1", False),
        ("a: failures < 2%", True),
        ("a: failures < 0.9%", False),
        ("b: p50 < 1s", False),
    ],
)
def test_thresholds(text: str, is_met: bool) -> None:
    totals = {"a": latency_of(list(range(1, 101)), failures=1)}
    (verdict,) = thresholds.judged(thresholds.parse(text), totals, 10.0)
    assert verdict.is_met == is_met
    assert text.partition(":")[2].strip() in str(verdict)


def test_a_threshold_of_all_kinds_names_those_that_broke_it() -> None:
    totals = {"a": latency_of([10]), "b": latency_of([5000])}
    bounds = thresholds.parse("*: p99 < 1ms; *: failures < 1;")
    found = thresholds.summary(thresholds.judged(bounds, totals, 1.0))
    assert found == [
        ("b: p99 < 1ms: 5,000 µs", False),
        ("*: failures < 1: 2 kinds of requests", True),
    ]


@pytest.mark.parametrize(
    "text", ["a", "a: p50", "a: p98 < 1ms", "a: p50 < 1", "a: rate > 1ms", "a: p50 < 1%"]
)
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a"):
        thresholds.parse(text)


def test_shapes() -> None:
    assert [shapes.users_at("steps", at, 10, 50) for at in (0, 1.9, 2, 5, 9.9, 10)] == [
        10, 10, 20, 30, 50, None,
    ]  # fmt: skip
    assert [shapes.users_at("spike", at, 10, 50) for at in (0, 4, 5.9, 6, 10)] == [
        5, 50, 50, 5, None,
    ]  # fmt: skip
    assert [shapes.users_at("soak", at, 10, 50) for at in (0, 9, 10)] == [50, 50, None]
    assert shapes.users_at("steps", 0, 10, 1) == 1


def test_a_ramp_ends_with_the_step_that_breaks() -> None:
    asked: list[float] = []

    def is_held(since_s: float) -> bool:
        asked.append(since_s)
        return len(asked) < 3

    ramp = shapes.Ramp(10, 5.0, 100.0, is_held)
    users = [ramp.users_at(at_s) for at_s in range(1, 17)]
    assert users == [10] * 5 + [20] * 5 + [30] * 5 + [None]
    assert asked == [1, 6, 11]
    assert str(ramp) == "ramp: 30 users broke a threshold; 20 met all"
    patient = shapes.Ramp(10, 5.0, 7.0, lambda _: True)
    assert [patient.users_at(at_s) for at_s in (0, 4, 5, 7)] == [10, 10, 20, None]
    assert "did not break; 10 users" in str(patient)


def test_a_run_with_a_ramp_counts_each_step_by_itself() -> None:
    plan = Plan(
        "ramp", seconds=100.0, users=10, step_s=5.0, bounds=thresholds.parse("a: p99 < 1ms")
    )
    run = Run(plan, began_s=time.time() - 12)
    assert run.users_at(0.0) == 10
    for at_s, took_us in ((1, 100), (2, 100), (7, 100), (8, 9000)):
        words = latency_of([took_us]).to_words()
        run.add("one", 3.0, [(int(run.began_s) + at_s, "a", words)])
        if at_s == 2:
            assert run.users_at(5.0) == 20
    assert run.users_at(10.0) is None
    run.ended_s = run.began_s + 10
    found = run.results()
    assert found["ramp"] == "ramp: 20 users broke a threshold; 10 met all"
    assert (found["users_held"], found["processes"]) == (10, 1)
    assert found["requests"]["a"]["count"] == 4
    assert "4 requests      0 failed" in run.progress()


def test_schedules_of_faults() -> None:
    faults = chaos.parse("8s start 0; 2.5s kill 0; 3s kill 1 journal;", 3)
    assert [(one.at_s, str(one)) for one in faults] == [
        (2.5, "kill 0"),
        (3.0, "kill 1 journal"),
        (8.0, "start 0"),
    ]
    for wrong in ("kill 0", "3s burn 0", "3s kill 3", "3s pause 1 journal"):
        with pytest.raises(ValueError, match=r"is no fault|count from 0 to 2"):
            chaos.parse(wrong, 3)
    usual = chaos.parse(chaos.usual(80), 4)
    assert [one.at_s for one in usual] == [10, 20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize(
    "given",
    [
        {"SECONDS": "0"},
        {"USERS": "x"},
        {"PROCESSES": "65"},
        {"SHAPE": "round"},
        {"THRESHOLDS": "fast"},
        {"CHAOS": "soon"},
        {"ONLY": "Appends"},
        {"CHAOS": "1", "METADATA": "sqlite:m"},
    ],
)
def test_wishes_that_cannot_be_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- each says something else
        Wish.of(given)
    assert Wish.of({"CHAOS": "1", "SECONDS": "8"}).chaos.startswith("1.0s kill 0")


def test_the_kinds_of_users_are_those_that_locust_finds() -> None:
    tree = ast.parse((ROOT / "loadtest/locustfile.py").read_text())
    (names,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert sorted(names) == sorted(KINDS)


def test_data_follow_from_seed_and_number() -> None:
    one = kept.Kept(1, 100_001, ledger_id=1)
    assert len(one.data(0)) == 100_001
    assert len({one.data(0), one.data(1), kept.Kept(2, 100_001).data(0)}) == 3
    assert one.record(5) == (5).to_bytes(8, "big") + one.data(5)


def test_the_page_and_the_terminal_show_what_was_judged() -> None:
    slot = {"per_s": 5.0, "failures_per_s": 1.0, "p50_us": 10, "p99_us": 20}
    results = {
        "began_s": 100.0,
        "seconds": 2.0,
        "users": 3,
        "levels": [(99.0, 1), (100.5, 3)],
        "processes": 2,
        "processor_share": 0.97,
        "errors": [("a", "TimeoutError('late')", 1)],
        "shape": "spike",
        "slot_s": 1,
        "requests": {"a <b>": latency_of([10, 20], failures=1).summary()},
        "slots": [{"at_s": at_s, **slot} for at_s in (100, 101, 102)],
        "thresholds": [("a: p99 < 1us: 20 µs", False)],
        "ramp": "ramp: broke",
        "faults": [(100.5, "kill 0")],
        "audit": {
            "ledgers": 2,
            "entries": 5,
            "lost": 1,
            "losses": ["ledger 7: ends before entry 3"],
        },
    }
    shown = page(results)
    assert "a &lt;b&gt;" in shown
    assert "a <b>" not in shown
    for text in (
        "BAD  a: p99",
        "BAD  read back: 5 acknowledged entries of 2 ledgers and streams, 1 lost",
        "BAD  ledger 7: ends",
        "BAD  locust's busiest process used 97%",
    ):
        assert text in "\n".join(lines(results))
        assert html.escape(text[5:]) in shown
    assert "1  a: TimeoutError('late')" in "\n".join(lines(results))
    assert html.escape("1 × a: TimeoutError('late')") in shown
    assert "0.5 s: kill 0" in shown
    assert shown.count("stroke-dasharray") == 4
