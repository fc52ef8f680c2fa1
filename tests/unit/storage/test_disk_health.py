"""How a disk's figures and failures become a state, what is taken then, and how it ends by itself (A13)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fastbk.storage.disk_health import (
    FAILED_BEARS_S,
    DirectorySample,
    DiskHealth,
    DiskState,
    Takes,
    Thresholds,
)

GIB = 1 << 30
FLOORS = Thresholds(
    warn_ratio=0.8,
    full_ratio=0.95,
    low_water_ratio=0.9,
    free_bytes_min=4 * GIB,
    repair_free_bytes_min=2 * GIB,
    reserve_bytes=GIB,
)
TOTAL = 1000 * GIB


def at(free_bytes: float, total_bytes: int = TOTAL) -> DirectorySample:
    return DirectorySample(int(free_bytes), total_bytes - int(free_bytes))


def states(health: DiskHealth, *shares: float) -> list[DiskState]:
    """The states as the disk is used by these shares."""
    found = []
    for share in shares:
        health.update(at(TOTAL * (1 - share)), 0.0)
        found.append(health.state)
    return found


def test_a_disk_that_fills_and_empties_by_ratio() -> None:
    health = DiskHealth(FLOORS, 0.0)
    ok, warn, full = DiskState.OK, DiskState.WARN, DiskState.FULL
    assert states(health, 0.5, 0.79, 0.81, 0.94) == [ok, ok, warn, warn]
    assert health.takes is Takes.ALL
    assert states(health, 0.951) == [full]
    assert health.takes is Takes.REPAIRS
    assert "95% used" in health.reason
    assert states(health, 0.94, 0.901, 0.899) == [full, full, warn], "it ends below the low water"
    assert states(health, 0.94, 0.795, 0.785) == [warn, warn, ok]
    assert health.reason == ""


def test_floors_by_bytes_and_back_a_bit_above_them() -> None:
    health = DiskHealth(Thresholds(free_bytes_min=4 * GIB, repair_free_bytes_min=2 * GIB), 0.0)
    seen = []
    for free in (4.0, 3.9, 4.3, 4.5, 1.9, 2.1, 2.3, 4.2, 4.5):
        health.update(at(free * GIB, 20 * GIB), 0.0)
        seen.append(health.takes)
    every, repairs, nothing = Takes.ALL, Takes.REPAIRS, Takes.NOTHING
    assert seen == [every, repairs, repairs, every, nothing, nothing, repairs, repairs, every]


def test_failures_are_borne_a_while_and_end_with_a_success() -> None:
    health = DiskHealth(FLOORS, 0.0)
    health.update(at(TOTAL / 2), 0.0)
    assert health.failed("the flush", "Input/output error", 100.0)
    assert (health.state, health.takes) == (DiskState.FAILED, Takes.REPAIRS)
    assert health.reason == "the flush fails: Input/output error"
    assert not health.failed("the flush", "Input/output error", 101.0)
    assert not health.tick(100.0 + FAILED_BEARS_S - 0.1)
    assert health.tick(100.0 + FAILED_BEARS_S)
    assert health.takes is Takes.NOTHING
    assert not health.update(at(TOTAL / 2), 120.0), "figures do not heal a failure"
    assert not health.worked("a merge", 121.0)
    assert health.worked("the flush", 122.0)
    assert (health.state, health.takes, health.reason) == (DiskState.OK, Takes.ALL, "")
    assert health.errors == 2


def test_a_directory_that_is_gone_or_read_only_takes_nothing_until_it_is_back() -> None:
    health = DiskHealth(FLOORS, 0.0)
    health.update(at(TOTAL / 2), 0.0)
    health.update(DirectorySample(0, 0, gone="was its disk unmounted?"), 1.0)
    assert (health.state, health.takes) == (DiskState.GONE, Takes.NOTHING)
    assert "unmounted" in health.reason
    health.update(at(TOTAL / 2), 2.0)
    assert health.takes is Takes.ALL
    health.update(DirectorySample(TOTAL // 2, TOTAL // 2, is_read_only=True), 3.0)
    assert (health.state, health.takes) == (DiskState.READ_ONLY, Takes.NOTHING)
    health.update(at(TOTAL / 2), 4.0)
    assert health.state is DiskState.OK
    assert health.since_s == 4.0


def test_the_worst_is_said() -> None:
    health = DiskHealth(FLOORS, 0.0)
    health.no_room("no room for the next file", 0.0)
    assert (health.state, health.takes) == (DiskState.FULL, Takes.ALL), (
        "who says so decides himself"
    )
    health.failed("the flush", "no", 1.0)
    assert health.state is DiskState.FAILED
    health.update(DirectorySample(0, 0, gone="x"), 2.0)
    assert health.state is DiskState.GONE
    order = list(DiskState)
    assert [each.severity for each in order] == list(range(len(order)))
    assert order.index(DiskState.EXHAUSTED) > order.index(DiskState.FULL)


def test_a_disk_is_looked_at_often_when_it_matters() -> None:
    health = DiskHealth(FLOORS, 0.0)
    assert health.is_near, "nothing is known yet"
    states(health, 0.5)
    assert not health.is_near
    states(health, 0.93)
    assert health.is_near
    states(health, 0.5)
    health.update(at(7 * GIB, 20 * GIB), 0.0)
    assert health.is_near, "within twice the highest floor"


def test_without_thresholds_nothing_is_ever_full() -> None:
    health = DiskHealth(Thresholds(warn_ratio=1.0), 0.0)
    health.update(DirectorySample(0, TOTAL), 0.0)
    assert (health.state, health.takes) == (DiskState.OK, Takes.ALL)
    health.update(DirectorySample(0, 0), 0.0)
    assert health.state is DiskState.OK


@given(st.lists(st.floats(0.0, 1.0), max_size=30))
def test_floors_are_never_crossed_and_what_ends_has_ended(shares: list[float]) -> None:
    """Whatever the way there: below a floor never more is taken, and with much free everything is."""
    health = DiskHealth(FLOORS, 0.0)
    for share in shares:
        look = at(TOTAL * share)
        health.update(look, 0.0)
        if look.free_bytes < FLOORS.repair_free_bytes_min:
            assert health.takes is Takes.NOTHING
        elif look.free_bytes < FLOORS.free_bytes_min or look.used_ratio >= FLOORS.full_ratio:
            assert health.takes is not Takes.ALL
        if look.used_ratio < FLOORS.low_water_ratio:
            assert health.takes is Takes.ALL


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=30))
def test_a_small_move_never_flaps(shares: list[float]) -> None:
    """Between two looks that differ by less than the hysteresis the state changes at most one way."""
    health = DiskHealth(Thresholds(free_bytes_min=4 * GIB, repair_free_bytes_min=2 * GIB), 0.0)
    seen = []
    for share in shares:
        health.update(at(4 * GIB * (1 + 0.04 * share), 20 * GIB), 0.0)
        seen.append(health.takes)
    assert all(after is before or after > before for before, after in pairwise(seen))


def test_a_write_that_fails_on_an_exhausted_disk_opens_nothing() -> None:
    """The time that a failure is borne is no reason to take repairs for which there is no room."""
    health = DiskHealth(FLOORS, 0.0)
    health.update(at(GIB, 20 * GIB), 0.0)
    health.failed("the flush", "No space left on device", 1.0)
    assert (health.state, health.takes) == (DiskState.EXHAUSTED, Takes.NOTHING)
    health.update(at(3 * GIB, 20 * GIB), 2.0)
    assert (health.state, health.takes) == (DiskState.FAILED, Takes.REPAIRS)
