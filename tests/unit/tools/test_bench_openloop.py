"""How `./dev bench openloop` finds the knee, sums slices, and what its report says."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from fastbk.native.load import Latencies, LoadResult
from tools.bench_openloop import chosen_works, knee_of, rounded
from tools.open_loop import Figures, Sums
from tools.open_loop_report import page, table


def figures(rate: float, p99_us: float, share: float = 1.0, **more: float) -> Figures:
    latencies = {
        "p50_us": p99_us / 2,
        "p99_us": p99_us,
        "p999_us": p99_us * 3,
        "max_us": p99_us * 9,
    }
    counts = {"bookie_us": 2.0, "memory_mb": 150.0, "samples": 1000, "slices": 2, "stolen": 1}
    return {
        "rate_per_s": rate,
        "per_s": rate * share,
        "tail_p99_us": 200.0,
        **latencies,
        **counts,
        **more,
    }


@pytest.mark.parametrize(
    ("rates", "knee"),
    [
        ({100: (200, 1.0), 200: (900, 1.0), 300: (1001, 1.0), 400: (300, 1.0)}, 200),
        ({100: (200, 1.0), 200: (300, 0.98), 300: (300, 1.0)}, 100),
        ({100: (200, 0.5)}, 0),
    ],
)
def test_the_knee_is_the_last_rate_before_the_first_that_is_late_or_not_reached(
    rates: dict[int, tuple[float, float]], knee: int
) -> None:
    assert knee_of({rate: [figures(rate, *one)] for rate, one in rates.items()}) == knee


def test_rates_have_three_digits() -> None:
    assert [rounded(rate) for rate in (7.4, 1234.0, 287_654.0)] == [7, 1230, 288_000]


def result(buckets: dict[int, int], max_ns: int) -> LoadResult:
    found = Latencies(max_ns=max_ns)
    for bucket, count in buckets.items():
        found.buckets[bucket] = count
    return LoadResult(sum(buckets.values()), 0, 0, 0.0, 0, "", found, Latencies())


def test_a_slice_has_what_came_since_the_one_before_it() -> None:
    """The longest of a slice that is left out does not count for the next one."""
    sums = Sums()
    sums.add(result({500: 1}, 90_000), result({500: 1, 20: 3}, 90_000))
    assert (sums.entries, sums.slices, sums.adds.count) == (3, 1, 3)
    assert sums.adds.max_ns == 20


def found() -> dict[str, Any]:
    rates = {
        str(rate): [figures(rate, p99_us)]
        for rate, p99_us in ((1000, 200), (2000, 400), (3000, 9000))
    }
    works = {
        "nothing": [figures(1000, 200, ran=1, flushes=0.0)],
        "flushes <here>": [figures(1000, 300, ran=0, flushes=2.0)],
    }
    systems = {"this tree": [figures(900, 100)], "Apache, v2": [figures(900, 400)]}
    disk = {"disk_us": {"p50": 110.0, "p99": 200.0, "p999": 900.0, "max": 1000.0}}
    return {
        "machine": "two <processors>", "date": "2026-11-25", "rounds": 1, "seconds_each": 1.0,
        "knee": {"peak_per_s": 4000, "knee_per_s": 2000, "rates": rates, **disk},
        "work": {"rate_per_s": 1000, "works": works, **disk},
        "apache": {"rate_per_s": 900, "peaks": {"Apache, v2": 1125.0}, "systems": systems, **disk},
    }  # fmt: skip


def test_the_table_says_where_the_knee_is_and_which_work_did_not_run() -> None:
    text = table(found())
    assert "2,000  ← knee" in text
    assert text.count("The disk alone, in between: p50 110 µs, p99.9 900 µs") == 3
    assert "2 flushes, NOT ALL OF IT RAN in 1 of 1 rounds" in text
    assert "1.50" in text, "p99.9 to that without background work"
    assert "0.250 (0.250…0.250)" in text, "p99.9 of this tree to Apache's"


def test_the_page_is_whole_and_names_are_text_in_it() -> None:
    text = page(found())
    assert "flushes &lt;here&gt;" in text
    assert "two &lt;processors&gt;" in text
    charts = [
        ElementTree.fromstring(f"<svg{one.split('</svg>')[0]}</svg>")
        for one in text.split("<svg")[1:]
    ]
    assert [len(chart.findall("polyline")) for chart in charts] == [3, 0, 0]
    assert [len(chart.findall("rect")) for chart in charts] == [0, 2, 2]


def test_works_are_chosen_by_words_beside_none() -> None:
    assert [work.name for work in chosen_works("scrub")] == ["nothing", "flushes, scrub"]
    with pytest.raises(SystemExit, match="there are"):
        chosen_works("nonsense")
