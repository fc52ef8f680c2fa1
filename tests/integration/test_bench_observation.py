"""`./dev bench observation` on this machine: parts and bookies that count, beside those that count nothing."""

from __future__ import annotations

import pytest

from tests.native.compile import KINDS, UNOBSERVED
from tools import bench_observation


@pytest.mark.long
@pytest.mark.parametrize("name", bench_observation.PARTS)
def test_each_part_is_measured_on_and_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts nothing is compiled quickly: that it is fast is of no matter here."""
    monkeypatch.setitem(KINDS, "unobserved-quickly", ["-O0", f"-I{UNOBSERVED}"])
    monkeypatch.setitem(bench_observation.KINDS, "off", "unobserved-quickly")
    for kind in bench_observation.KINDS:
        spent_ns, adds, _ = bench_observation.run(
            bench_observation.command(bench_observation.PARTS[name], kind, 0.02)
        )
        assert spent_ns > 0
        assert adds > 0


@pytest.mark.soak
def test_one_bookie_counts_and_the_other_one_nothing() -> None:
    """A bookie whose counters are not what they should be ends the bench."""
    figures = bench_observation.measure_bookies(1, 0.1)
    assert {"bookie, 1,000 in flight: processors", "GET /slow"} <= set(figures)
