"""Segments that began together roll by age one after the other, never late, and in time for those behind them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.stream.writer.rolling import CHECK_S_MIN, LAST_SHARE, READY_FROM, roll_age
from tests.unit.stream.test_writer_attacked import Harness, until

HOUR_S = 3600.0


@given(st.integers(0, 2**63 - 1), st.floats(0.01, 1e9))
def test_a_segment_rolls_in_the_last_tenth_of_its_age_with_the_next_one_ready(
    ledger_id: int, age_s: float
) -> None:
    age = roll_age(age_s, ledger_id)
    assert READY_FROM * age_s <= age.ready_s < age.roll_s <= age_s
    assert age.roll_s >= (1 - LAST_SHARE) * age_s * 0.999_999
    assert not age.is_roll_due(age.ready_s) and age.is_roll_due(age_s)


@pytest.mark.parametrize("step", [1, 2, 3, 10, 256, 1 << 32])
def test_thousands_that_began_together_are_spread(step: int) -> None:
    """Ids of one client's ledgers follow each other, at even distances where others draw, too."""
    count, parts = 5000, 20
    for name, width in (("roll_s", LAST_SHARE), ("ready_s", 0.3)):
        dues = [getattr(roll_age(1.0, 77 + step * at), name) for at in range(count)]
        low = min(dues)
        in_part = [0] * (parts + 1)
        for due in dues:
            in_part[int((due - low) / width * parts)] += 1
        assert max(in_part) < 2 * count / parts


@given(st.integers(0, 2**63 - 1), st.floats(1.0, 1e6), st.floats(0, 2e6))
def test_who_looks_when_told_misses_nothing(ledger_id: int, age_s: float, now_s: float) -> None:
    age = roll_age(age_s, ledger_id)
    behind_s = now_s + age.check_s(now_s)
    assert behind_s > now_s
    for due_s in (age.ready_s, age.roll_s):
        if now_s < due_s:
            assert behind_s <= due_s + CHECK_S_MIN
            break


def test_without_a_limit_nothing_is_ever_due() -> None:
    age = roll_age(0.0, 5)
    assert not age.is_roll_due(1e9) and not age.is_ready_due(1e9)


async def test_a_segment_that_nobody_writes_to_any_more_rolls_when_it_is_due() -> None:
    """Not before, though it is looked at several times."""
    harness = Harness(roll_age_s=2)
    writer = await harness.writer()
    began_s = asyncio.get_running_loop().time()
    await writer.append(b"x")
    segment = writer._opened().segment
    assert segment is not None
    due_s = writer._opened().rolling._age.roll_s
    await until(lambda: writer._opened().segment is not segment)
    took_s = asyncio.get_running_loop().time() - began_s
    assert due_s * 0.99 <= took_s
    await writer.close()
