"""When clients at their quotas are logged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.observe import logs
from fastbk.server.network.principals import KEPT_S, QuotaWaits


@pytest.fixture
def names() -> Iterator[list[str]]:
    found: list[str] = []

    def take(level: str, event: str, values: object) -> None:
        found.append(event)

    logs.add_taker(take)
    yield found
    logs.remove_taker(take)


def test_the_beginning_and_the_end_are_logged_once_each(names: list[str]) -> None:
    waits, now_s = QuotaWaits(), 100.0
    waits.poll(0, 0, now_s)
    for count in range(1, 50):
        now_s += 1
        waits.poll(count, count % 2, now_s)
    assert names == ["quota.reached"]
    began_s = now_s
    while len(names) < 2:
        now_s += 1
        waits.poll(49, 0, now_s)
    assert names == ["quota.reached", "quota.kept_again"]
    assert now_s - began_s == KEPT_S
    waits.poll(50, 0, now_s + 1)
    assert names[2:] == ["quota.reached"]


def test_a_connection_that_still_waits_has_not_kept_its_quota(names: list[str]) -> None:
    waits = QuotaWaits()
    for second in range(200):
        waits.poll(1, 1, float(second))
    assert names == ["quota.reached"]
