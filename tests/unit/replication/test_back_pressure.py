"""Copying makes way for adds: its share of the time by what bookies say of their waits."""

from __future__ import annotations

import pytest

from fastbk.replication.repair_options import REST_MAX_S, SHARE_MIN, BackPressure


def told(pressure: BackPressure, wait_s: float, seconds: float, from_s: float) -> float:
    """Have "a" say the same for so long, often; return when that ends."""
    count = round(seconds * 50)
    for at in range(count):
        pressure.note("a", wait_s, from_s + at / 50)
    return from_s + seconds


def test_nobody_rests_where_nobody_writes() -> None:
    pressure = BackPressure()
    assert pressure.rest_s(["a", "b"], 10.0) == 0
    told(pressure, 0.0, 5.0, 0.0)
    assert pressure.share("a") == 1


def test_copying_begins_gently_and_grows_while_adds_do_not_wait_longer() -> None:
    pressure = BackPressure()
    pressure.note("a", 0.005, 0.0)
    assert pressure.share("a") == SHARE_MIN
    assert pressure.rest_s(["a"], 0.01) == pytest.approx(0.03)
    assert pressure.rest_s(["b"], 0.01) == 0
    told(pressure, 0.009, 3.0, 0.1)
    assert pressure.share("a") == 1


def test_copying_rests_more_while_adds_wait_twice_as_long_and_works_again_after_that() -> None:
    pressure = BackPressure()
    now_s = told(pressure, 0.005, 3.0, 0.0)
    assert pressure.share("a") == 1
    now_s = told(pressure, 0.012, 0.2, now_s)
    assert pressure.share("a") <= 0.5
    now_s = told(pressure, 0.012, 2.0, now_s)
    assert pressure.share("a") == SHARE_MIN  # and never less: copies have to come back
    assert pressure.rest_s(["a", "b"], 60.0) == REST_MAX_S
    told(pressure, 0.009, 3.0, now_s)
    assert pressure.share("a") == 1


def test_waits_of_a_moment_are_never_late() -> None:
    pressure = BackPressure()
    now_s = told(pressure, 0.00001, 1.0, 0.0)
    told(pressure, 0.0049, 3.0, now_s)
    assert pressure.share("a") == 1


def test_a_disk_that_has_become_slow_is_measured_by_itself_after_two_minutes() -> None:
    pressure = BackPressure()
    now_s = told(pressure, 0.005, 3.0, 0.0)
    now_s = told(pressure, 0.05, 50.0, now_s)
    assert pressure.share("a") == SHARE_MIN
    told(pressure, 0.05, 80.0, now_s)
    assert pressure.share("a") == 1
