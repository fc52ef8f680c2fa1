"""Spans of time as people write them, and back."""

from __future__ import annotations

import pytest

from fastbk.units import (
    format_amount,
    format_apache_size,
    format_names,
    format_span_s,
    parse_duration_us,
)


@pytest.mark.parametrize(
    ("span_s", "text"),
    [
        (604_800, "7 d"),
        (7200.0, "2 h"),
        (5400, "90 min"),
        (90, "90 s"),
        (0.25, "0.25 s"),
        (0, "0 s"),
    ],
)
def test_a_span_is_told_in_its_largest_whole_unit(span_s: float, text: str) -> None:
    assert format_span_s(span_s) == text
    assert parse_duration_us(text) == round(span_s * 1e6)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (7, "7"), (0.25, "0.25"), (950, "950"), (999.4, "999"), (999.6, "1 k"), (1500, "1.5 k"),
     (-20_000_000, "-20 M"), (999_950, "1 M"), (123_456_789, "123 M"), (5e15, "5000 T")],
)  # fmt: skip
def test_an_amount_has_three_digits_and_a_prefix(amount: float, text: str) -> None:
    assert format_amount(amount) == text


def test_of_many_names_the_first_are_told() -> None:
    assert format_names([]) == "none"
    assert format_names(["b", "a"]) == "a, b"
    many = format_names(f"b{number:04}" for number in range(1000))
    assert many.startswith("b0000, b0001, ") and many.endswith("b0019, and 980 more")


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1000(1KB)"),
        (1_234_567, "1234567(1.234MB)"),
        (73_333_276_672, "73333276672(73.333GB)"),
        (5 * 10**15, "5000000000000000(5000TB)"),
    ],
)
def test_apaches_sizes_have_a_unit_of_thousands(count_bytes: int, text: str) -> None:
    assert format_apache_size(count_bytes) == text
