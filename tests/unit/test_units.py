"""Spans of time as people write them, and back."""

from __future__ import annotations

import pytest

from fastbk.units import format_span_s, parse_duration_us


@pytest.mark.parametrize(
    ("span_s", "text"),
    [(604_800, "7 d"), (7200.0, "2 h"), (5400, "90 min"), (90, "90 s"), (0.25, "0.25 s"), (0, "0 s")],
)
def test_a_span_is_told_in_its_largest_whole_unit(span_s: float, text: str) -> None:
    assert format_span_s(span_s) == text
    assert parse_duration_us(text) == round(span_s * 1e6)
