"""Write services in metadata: their records, who comes first for a stream, and whose beat stands still."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import StorageError
from fastbk.meta.records import VersionedRecord
from fastbk.stream.services import (
    LEASE_S,
    UPDATE_S_MAX,
    Beats,
    OwnerService,
    ServiceRecord,
    get_service,
    owner_name,
    put_service,
    ranked,
    service_of_owner,
)


def service(name: str = "a", beat: int = 0, started_ms: int = 1) -> ServiceRecord:
    return ServiceRecord(
        service_id=name, address=f"{name}:3183", beat=beat, started_ms=started_ms, software="f 1"
    )


def test_a_record_there_and_back() -> None:
    found = get_service("a", VersionedRecord(put_service(service(beat=7)), 3))
    assert (found.service, found.version) == (service(beat=7), 3)


@pytest.mark.parametrize("raw", [b"x", b"[]", b'{"service_id":"a"}', put_service(service("b"))])
def test_a_record_that_is_none_is_told_apart(raw: bytes) -> None:
    with pytest.raises(StorageError, match="record of write service a is"):
        get_service("a", VersionedRecord(raw, 1))


# --- who comes first ------------------------------------------------------------------------------


@given(st.sets(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=2, max_size=10))
def test_when_a_service_goes_only_its_own_streams_move(names: set[str]) -> None:
    services = [service(name) for name in sorted(names)]
    gone = services[0]
    for number in range(30):
        before = ranked(f"shop/orders-{number}", services)
        after = ranked(f"shop/orders-{number}", reversed(services[1:]))
        assert after == [other for other in before if other != gone]


def test_streams_are_shared_out() -> None:
    services = [service(name) for name in "abcd"]
    firsts = [ranked(f"shop/{number}", services)[0].service_id for number in range(400)]
    assert {firsts.count(name) for name in "abcd"} <= set(range(60, 150))


def test_a_path_ranks_alike_however_it_is_written() -> None:
    services = [service(name) for name in "abcd"]
    assert ranked("/shop/orders/", services) == ranked("shop/orders", services)


# --- owners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["host:3183", "127.0.0.1:1", "[::1]:65535"])
def test_an_owner_names_its_service(address: str) -> None:
    first, second = owner_name("till_1-x.y", address), owner_name("till_1-x.y", address)
    assert first != second
    assert service_of_owner(first) == OwnerService("till_1-x.y", address)


def test_the_longest_owner_is_one() -> None:
    owner = owner_name("s" * 64, "h" * 94 + ":65535")
    assert len(owner) <= 200
    assert service_of_owner(owner) is not None


@pytest.mark.parametrize(
    "owner", ["", "writer-17", "service:a@b:1", "service:@b:1~00000000", "service:a@b~1~00000000"]
)
def test_another_owner_is_no_service(owner: str) -> None:
    assert service_of_owner(owner) is None


# --- beats ----------------------------------------------------------------------------------------


def updated(beats: Beats, now_s: float, *services: ServiceRecord) -> None:
    beats.update(services, now_s)


def test_a_beat_that_stands_still_is_given_up() -> None:
    beats = Beats()
    for second in range(4):
        updated(beats, float(second), service("a", beat=5), service("b", beat=second))
        assert beats.is_alive("a") == (second < LEASE_S)
        assert beats.is_alive("b")
    updated(beats, 4.0, service("a", beat=6), service("b", beat=4))
    assert beats.is_alive("a")


def test_who_is_not_there_is_not_alive() -> None:
    beats = Beats()
    assert not beats.is_alive("a")
    updated(beats, 0.0, service("a"))
    assert beats.still_s("a") == 0.0
    updated(beats, 1.0)
    assert beats.still_s("a") is None
    assert not beats.is_alive("a")


def test_another_life_of_a_service_begins_anew() -> None:
    beats = Beats()
    for second in range(4):
        updated(beats, float(second), service("a", beat=0, started_ms=1))
    assert not beats.is_alive("a")
    updated(beats, 4.0, service("a", beat=0, started_ms=2))
    assert beats.is_alive("a")


def test_a_pause_of_metadata_or_of_the_looker_gives_nobody_up() -> None:
    """INV-S38: the service could not write its beat, or we could not see it."""
    beats = Beats()
    updated(beats, 0.0, service("a", beat=1))
    updated(beats, 600.0, service("a", beat=1))
    assert beats.still_s("a") == UPDATE_S_MAX < LEASE_S
    assert beats.is_alive("a")


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_a_service_is_given_up_only_after_enough_looks(steps: list[tuple[float, bool]]) -> None:
    beats, now_s, beat, still = Beats(), 0.0, 0, 0
    for step_s, is_moving in steps:
        now_s += step_s
        beat += is_moving
        still = 0 if is_moving else still + 1
        updated(beats, now_s, service("a", beat=beat))
        if not beats.is_alive("a"):
            assert still * UPDATE_S_MAX >= LEASE_S
