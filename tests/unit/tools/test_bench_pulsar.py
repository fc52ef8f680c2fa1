"""The table of `./dev bench pulsar`."""

from __future__ import annotations

from dataclasses import replace

from tools.bench_pulsar import Run, table

OURS = Run("ours", 0, 2000.0, 1.0, 2.0, 4.0, 10.0, 5.0, 20.0, 6000.0)
THEIRS = replace(OURS, side="Apache's", messages_per_s=1000.0, p999_ms=8.0)


def test_rows_are_medians_and_ratios_are_those_of_a_round() -> None:
    fast, slow = replace(OURS, messages_per_s=9000.0), replace(THEIRS, messages_per_s=9000.0)
    lines = table([OURS, THEIRS, fast, slow, OURS, THEIRS]).splitlines()
    assert lines[2].startswith("| 1,000 under way | ours | 2,000 | 1.00 | 2.0 | 4.0 |")
    assert lines[3].startswith("| 1,000 under way | Apache's | 1,000 | 1.00 | 2.0 | 8.0 |")
    assert lines[4].startswith("| 1,000 under way | ours ÷ Apache's | 2.00 | 1.00 | 1.00 | 0.50 |")
    assert {line.count("|") for line in lines} == {11}


def test_each_rate_has_its_rows() -> None:
    at_rate = [replace(OURS, rate=5000), replace(THEIRS, rate=5000)]
    lines = table([OURS, THEIRS, *at_rate]).splitlines()
    assert [line.split(" | ")[0] for line in lines[5:]] == ["| 5,000 a second"] * 3
