"""Services come, freeze, stop and go, as one of them sees it in metadata; with a clock of the test's own."""

from __future__ import annotations

import pytest

import fastbk
from fastbk.client.client import Client
from fastbk.errors import ConfigError, Unauthorized
from fastbk.meta.records import Change
from fastbk.producers.directory import FORGET_S, Directory
from fastbk.stream.paths import service_path
from fastbk.stream.services import BEAT_S, LEASE_S, ServiceRecord, get_service, ranked


class Clock:
    """Time that passes only in pauses, and what happens in them."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.others: list[Directory] = []

    def __call__(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds
        for other in self.others:
            await other.step()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Client:
    """A client of metadata in memory: it has nothing that would have to be closed."""
    return fastbk.connect(f"memory:{request.node.nodeid}")


def directory_of(
    client: Client, clock: Clock, name: str, address: str = "", started_ms: int = 1
) -> Directory:
    me = ServiceRecord(
        service_id=name, address=address or f"{name}:3183", beat=0, started_ms=started_ms
    )
    return Directory(client.records, me, clock, clock.pause)


async def stored(client: Client, name: str) -> ServiceRecord | None:
    record = await client.records.read(service_path(name))
    return None if record is None else get_service(name, record).service


async def passed(clock: Clock, *directories: Directory, seconds: float) -> None:
    """Let time pass; these services beat meanwhile."""
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        clock.now_s += BEAT_S
        for directory in directories:
            await directory.step()


async def test_a_service_announces_itself_beats_and_goes(client: Client, clock: Clock) -> None:
    one = directory_of(client, clock, "one")
    await one.begin()
    first = await stored(client, "one")
    assert first is not None and first.address == "one:3183"
    one.describe(http="one:9000")
    await one.step()
    second = await stored(client, "one")
    assert second is not None
    assert (second.beat, second.http) == (first.beat + 1, "one:9000")
    await one.end()
    assert await stored(client, "one") is None
    await one.step()  # it looks on while it hands its streams over, and comes back no more
    assert await stored(client, "one") is None


async def test_services_see_each_other_until_one_stands_still(client: Client, clock: Clock) -> None:
    one, two = directory_of(client, clock, "one"), directory_of(client, clock, "two")
    three = directory_of(client, clock, "three")
    for directory in (one, two, three):
        await directory.begin()
    await one.step()
    assert one.others_for("shop/orders") == ranked("shop/orders", [two.me, three.me])
    await passed(clock, one, two, seconds=LEASE_S - BEAT_S)
    assert one.is_alive("three") and one.beat_of("three") == 0
    await passed(clock, one, two, seconds=BEAT_S)
    assert not one.is_alive("three")
    assert [service.service_id for service in one.others_for("shop/orders")] == ["two"]
    await three.step()  # it was frozen, and is there again
    await one.step()
    assert one.is_alive("three")
    await two.end()
    await one.step()
    assert not one.is_alive("two") and one.beat_of("two") is None


async def test_the_former_life_at_the_same_address_is_replaced_at_once(
    client: Client, clock: Clock
) -> None:
    await directory_of(client, clock, "one").begin()
    began_s = clock.now_s
    again = directory_of(client, clock, "one", started_ms=2)
    await again.begin()
    found = await stored(client, "one")
    assert found is not None and found.started_ms == 2
    assert clock.now_s == began_s


async def test_another_service_of_the_same_id_does_not_start(client: Client, clock: Clock) -> None:
    """INV-S39."""
    one = directory_of(client, clock, "one")
    await one.begin()
    clock.others.append(one)
    with pytest.raises(ConfigError, match=r"at one:3183, has the id one: give .*\[serve\] id"):
        await directory_of(client, clock, "one", "elsewhere:3183", 2).begin()
    found = await stored(client, "one")
    assert found is not None and found.address == "one:3183"


async def test_a_dead_service_of_the_same_id_is_replaced(client: Client, clock: Clock) -> None:
    await directory_of(client, clock, "one").begin()
    began_s = clock.now_s
    await directory_of(client, clock, "one", "elsewhere:3183", 2).begin()
    found = await stored(client, "one")
    assert found is not None and found.address == "elsewhere:3183"
    assert clock.now_s - began_s >= LEASE_S


async def test_a_service_whose_id_was_taken_ends(client: Client, clock: Clock) -> None:
    one = directory_of(client, clock, "one")
    await one.begin()
    await directory_of(client, clock, "one", started_ms=2).begin()
    with pytest.raises(ConfigError, match="has the id one"):
        await one.step()


async def test_a_record_that_was_deleted_or_damaged_is_written_anew(
    client: Client, clock: Clock
) -> None:
    one = directory_of(client, clock, "one")
    await one.begin()
    for value in (None, b"damaged"):
        record = await client.records.read(service_path("one"))
        assert record is not None
        await client.records.change(Change(service_path("one"), value, record.version))
        await one.step()
        assert await stored(client, "one") is not None


async def test_a_record_that_stood_still_for_an_hour_goes(client: Client, clock: Clock) -> None:
    one = directory_of(client, clock, "one")
    await one.begin()
    await directory_of(client, clock, "two").begin()
    await passed(clock, one, seconds=FORGET_S - BEAT_S)
    assert await stored(client, "two") is not None
    await passed(clock, one, seconds=3 * BEAT_S)
    assert await stored(client, "two") is None
    assert await stored(client, "one") is not None


async def test_a_service_that_metadata_refuses_for_a_while_beats_on(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway does so while the service's token is renewed: its streams need no metadata meanwhile."""
    one = directory_of(client, clock, "one")
    await one.begin()

    async def refuse(*changes: Change) -> list[int]:
        raise Unauthorized("this token has ended")

    with monkeypatch.context() as patch:
        patch.setattr(client.records, "change", refuse)
        await one.step()
    await one.step()
    again = await stored(client, "one")
    assert again is not None and again.beat == one.me.beat
