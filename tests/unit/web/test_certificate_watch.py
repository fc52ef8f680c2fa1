"""What is logged of certificates near their end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.observe import logs
from fastbk.web.certificate_watch import CertificateStates

DAY_S = 86_400.0
NOW = 1_800_000_000.0


@pytest.fixture
def logged() -> Iterator[list[tuple[str, str, object]]]:
    found: list[tuple[str, str, object]] = []

    def take(level: str, event: str, values: object) -> None:
        found.append((level, event, values))

    logs.add_taker(take)
    yield found
    logs.remove_taker(take)


def names(logged: list[tuple[str, str, object]]) -> list[str]:
    return [event for _, event, _ in logged]


def test_a_good_certificate_is_not_logged(logged: list[tuple[str, str, object]]) -> None:
    CertificateStates().check({"a.pem": NOW + 15 * DAY_S}, NOW)
    assert names(logged) == []


def test_one_near_its_end_is_logged_once_a_day_and_when_it_is_renewed(
    logged: list[tuple[str, str, object]],
) -> None:
    states, end_s = CertificateStates(), NOW + 13.5 * DAY_S
    for minute in range(2 * 24 * 60):
        states.check({"a.pem": end_s}, NOW + 60 * minute)
    assert names(logged) == ["certificate.ends_soon"] * 2
    assert logged[0][2] == {
        "file": "a.pem",
        "ends": "2027-01-28 20:00:00 UTC",
        "days_left": 13,
        "next": "replace the file; it is read again while the process runs",
    }
    states.check({"a.pem": NOW + 90 * DAY_S}, NOW + 3 * DAY_S)
    assert names(logged)[2:] == ["certificate.renewed"]


def test_one_that_has_ended_or_cannot_be_read_is_logged(
    logged: list[tuple[str, str, object]],
) -> None:
    states = CertificateStates()
    states.check({"a.pem": NOW - 1, "b.pem": float("nan")}, NOW)
    assert [(level, event) for level, event, _ in logged] == [
        ("error", "certificate.ended"),
        ("warning", "certificate.unreadable"),
    ]
