"""A rate limit that long work is spread by."""

from __future__ import annotations

import pytest

from fastbk.errors import ConfigError
from fastbk.limits import RateLimit


def test_work_is_spread_and_a_rest_saves_up_little() -> None:
    now_s, pauses = [0.0], list[float]()
    limit = RateLimit(10.0, pauses.append, lambda: now_s[0])
    limit.spend(5)
    assert pauses == [0.5]
    assert limit.wait_s() == 0.5
    now_s[0] = 100.0
    limit.spend(10)
    assert pauses == [0.5], "a second's worth was saved, and not a minute's"
    limit.per_s = 1.0
    assert limit.take(2) == 2.0


def test_no_piece_costs_more_than_the_longest_debt() -> None:
    limit = RateLimit(1.0, clock_s=lambda: 0.0, debt_max_s=60.0)
    assert limit.take(1e6) == 60.0


def test_a_rate_must_be_above_0() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        RateLimit(0.0)
