"""A cursor's state on ledgers in memory: fencing, its ledger, outages, deletion. INV-S8, INV-S10."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import fastbk
from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls, RecordCalls
from fastbk.errors import (
    CursorFenced,
    Error,
    MetadataOnHold,
    MetadataUnavailable,
    NotEnoughBookies,
    QuotaExceeded,
    StreamNotFound,
)
from fastbk.meta.format_level import LEVEL_PATH
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.stream.cursor import store
from fastbk.stream.cursor import store as cursor_store
from fastbk.stream.cursor import store as state_storage
from fastbk.stream.cursor.state import NONE, RANGES_MAX
from fastbk.stream.cursor.store import CursorRequest, cursors_of, delete_cursor, of_cursor, path_of
from fastbk.stream.janitor import Janitor
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record
from tests.fixtures.cursor_holder import STREAM, Holder, ledgers_named, make_stream, place
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.metadata import metadata as ledger_metadata
from tests.fixtures.wait import wait_until_async
from tests.unit.meta.test_metadata_store import Open, metadata, open_driver

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore
    from fastbk.stream.namespace.namespace import Namespace


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    make_stream(made)
    return made


async def into_a_ledger(holder: Holder, seq: int = 0) -> int:
    """Have so many states kept that they go to a ledger; return the number that was acknowledged last."""
    while holder.keeper._ledger is None:
        holder.ack(seq)
        await holder.flush()
        seq += 1
        await asyncio.sleep(0)
        assert seq < 1000
    holder.ack(seq)
    await holder.flush()
    return seq


async def test_a_mark_outlives_its_holder(cluster: Cluster) -> None:
    first = await Holder.open(cluster.client())
    first.ack(6)
    assert first.acks.ack_one(9, place(9))
    await first.flusher.close()
    second = await Holder.open(cluster.client())
    assert (second.acks.mark_seq, second.acks.mark) == (7, DLSN(1, 6, 1))
    assert second.acks.is_done(9) and not second.acks.is_done(8)
    assert cluster.ledgers == {}, "one state needs no ledger"
    await second.flusher.close()


async def test_what_is_acknowledged_is_kept_after_a_while_by_itself(cluster: Cluster) -> None:
    holder = await Holder.open(cluster.client(), interval_s=0.001)
    holder.ack(3)
    await wait_until_async(lambda: not holder.flusher.is_dirty, "the state kept")
    holder.flusher.abort()
    (info,) = await cursors_of(cluster.client().records, STREAM)  # type: ignore[arg-type]
    assert (info.name, info.mark_seq, info.holds, info.epoch) == ("c", 4, True, 1)


async def test_so_many_acknowledgements_are_kept_at_once(cluster: Cluster) -> None:
    holder = await Holder.open(cluster.client(), interval_s=3600, changes_max=10)
    for seq in range(10):
        assert holder.flusher.is_dirty == (seq > 0)
        holder.ack(seq)
    while holder.flusher.is_dirty:
        await asyncio.sleep(0)
    holder.flusher.abort()


@pytest.mark.parametrize("in_ledger", [False, True])
async def test_the_former_holder_keeps_nothing_more(cluster: Cluster, in_ledger: bool) -> None:
    former = await Holder.open(cluster.client())
    last = await into_a_ledger(former) if in_ledger else 0
    if not in_ledger:
        former.ack(0)
        await former.flush()
    later = await Holder.open(cluster.client())
    assert later.acks.mark_seq == last + 1, "INV-S10"
    former.ack(last + 50)
    with pytest.raises(CursorFenced):
        await former.flush()
    with pytest.raises(CursorFenced):
        former.ack(last + 51)
    later.ack(last + 1)
    await later.flush()
    await later.flusher.close()
    with pytest.raises(CursorFenced):
        await former.flusher.close()
    third = await Holder.open(cluster.client())
    assert third.acks.mark_seq == last + 2
    await third.flusher.close()
    assert cluster.ledgers == {}


async def test_many_states_go_to_a_ledger_that_is_named_first_and_gone_at_the_end(
    cluster: Cluster,
) -> None:
    """INV-S8."""
    named: list[bool] = []

    class Watching(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if what == "create":
                named.append(bool(ledgers_named(cluster, "c")))

    cluster.plan = Watching()
    holder = await Holder.open(cluster.client())
    await into_a_ledger(holder)
    assert named == [True]
    assert set(cluster.ledgers) <= ledgers_named(cluster, "c")
    await holder.flusher.close()
    assert cluster.ledgers == {} and ledgers_named(cluster, "c") == set()


async def test_a_full_ledger_is_replaced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ENTRIES_MAX", 5)
    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder)
    (first,) = cluster.ledgers
    for seq in range(last + 1, last + 30):
        holder.ack(seq)
        await holder.flush()
        await asyncio.sleep(0)
        assert set(cluster.ledgers) <= ledgers_named(cluster, "c"), "INV-S8"
    assert first not in cluster.ledgers and len(cluster.ledgers) <= 2
    assert cluster.next_ledger_id > 4
    other = await Holder.open(cluster.client())
    assert other.acks.mark_seq == last + 30
    await other.flusher.close()
    holder.flusher.abort()
    assert cluster.ledgers == {}


async def test_without_a_ledger_to_be_had_the_record_has_to_do(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RECORD_PAUSE_S", 0.0)

    class NoBookies(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if what in ("append", "create"):
                raise NotEnoughBookies("too few bookies answer")

    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder)
    cluster.plan = NoBookies()
    for seq in range(last + 1, last + 40):
        holder.ack(seq)
        await holder.flush()
    assert holder.keeper._ledger is None
    holder.flusher.abort()
    other = await Holder.open(cluster.client())
    assert other.acks.mark_seq == last + 40, (
        "INV-S10: the record goes before the ledger that it left"
    )
    await other.flusher.close()


async def test_a_ledger_is_deleted_only_when_the_record_does_not_name_it_as_the_one(
    cluster: Cluster,
) -> None:
    """INV-S10: between the two a crash would bring an old mark back."""

    class Fails(Plan):
        appends = records = 0

        async def before(self, client: FakeClient, what: str) -> None:
            if what == "append" and self.appends:
                raise NotEnoughBookies("too few bookies answer")
            if what == "metadata.change" and self.records:
                self.records -= 1
                raise MetadataUnavailable("metadata is away")

    cluster.plan = plan = Fails()
    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder)
    plan.appends = plan.records = 1
    holder.ack(last + 1)
    with pytest.raises(MetadataUnavailable):
        await holder.flush()
    for _ in range(20):
        await asyncio.sleep(0)
    holder.flusher.abort()
    other = await Holder.open(cluster.client())
    assert other.acks.mark_seq >= last + 1
    await other.flusher.close()


class Away(Plan):
    """Metadata does not answer."""

    def __init__(self) -> None:
        self.is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away and what.startswith("metadata"):
            raise MetadataUnavailable("metadata is away")


async def test_an_outage_of_metadata_delays_and_loses_nothing(cluster: Cluster) -> None:
    cluster.plan = plan = Away()
    holder = await Holder.open(cluster.client(), interval_s=0.001)
    plan.is_away = True
    holder.ack(10)
    with pytest.raises(MetadataUnavailable):
        await holder.flush()
    holder.ack(20)
    plan.is_away = False
    await wait_until_async(lambda: not holder.flusher.is_dirty, "the state kept")
    holder.flusher.abort()
    (info,) = await cursors_of(cluster.client().records, STREAM)  # type: ignore[arg-type]
    assert info.mark_seq == 21


async def test_a_cursor_with_a_ledger_does_not_notice_an_outage_of_metadata(
    cluster: Cluster,
) -> None:
    cluster.plan = plan = Away()
    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder)
    plan.is_away = True
    for seq in range(last + 1, last + 20):
        holder.ack(seq)
        await holder.flush()
    holder.ack(last + 20)
    await holder.flusher.close()
    plan.is_away = False
    other = await Holder.open(cluster.client())
    assert other.acks.mark_seq == last + 21
    await other.flusher.close()
    assert cluster.ledgers == {}


async def test_a_ledger_that_cannot_be_read_does_not_bring_an_old_mark_back(
    cluster: Cluster,
) -> None:
    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder)
    holder.flusher.abort()

    class NoReads(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if what == "open":
                raise NotEnoughBookies("too few bookies answer")

    cluster.plan = NoReads()
    with pytest.raises(
        NotEnoughBookies,
        match=r"^cursor test/ab/.* `delete_cursor` gives up.*too few bookies answer",
    ):
        await Holder.open(cluster.client())
    cluster.plan = Plan()
    other = await Holder.open(cluster.client())
    assert other.acks.mark_seq == last + 1
    await other.flusher.close()


async def test_a_cursor_that_is_used_does_not_expire(cluster: Cluster) -> None:
    wish = CursorRequest(expire_after_s=0.04)
    holder = await Holder.open(cluster.client(), wish=wish)
    records = cluster.client().records
    (before,) = await cursors_of(records, STREAM)  # type: ignore[arg-type]
    assert before.expires_at_us == before.used_at_us + 40_000

    async def is_renewed() -> bool:
        (now,) = await cursors_of(records, STREAM)  # type: ignore[arg-type]
        return now.used_at_us > before.used_at_us

    await wait_until_async(is_renewed, "the record renewed")
    client = cluster.client()
    assert not await delete_cursor(client, STREAM, "c", expected=before), "it was used since"  # type: ignore[arg-type]
    holder.flusher.abort()
    (left,) = await cursors_of(records, STREAM)  # type: ignore[arg-type]
    assert left.is_expired(left.expires_at_us) and not left.is_expired(left.expires_at_us - 1)
    assert await delete_cursor(client, STREAM, "c", expected=left)  # type: ignore[arg-type]
    assert await cursors_of(records, STREAM) == []  # type: ignore[arg-type]


async def test_a_deletion_takes_the_ledger_and_fences_the_holder(cluster: Cluster) -> None:
    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder)
    client = cluster.client()
    assert await delete_cursor(client, STREAM, "c")  # type: ignore[arg-type]
    assert not await delete_cursor(client, STREAM, "c")  # type: ignore[arg-type]
    assert cluster.ledgers == {}
    holder.ack(last + 1)
    with pytest.raises((CursorFenced, Error)):
        await holder.flush()
    fresh = await Holder.open(cluster.client())
    assert fresh.acks.mark_seq == -1
    await fresh.flusher.close()
    with pytest.raises(CursorFenced):
        await holder.flusher.close()


@pytest.mark.parametrize("step", range(6))
async def test_a_deletion_goes_on_after_a_crash_at_any_step(cluster: Cluster, step: int) -> None:
    holder = await Holder.open(cluster.client())
    await into_a_ledger(holder)
    holder.flusher.abort()

    class Crash(Plan):
        left = step

        async def before(self, client: FakeClient, what: str) -> None:
            if client.name == "dies":
                self.left -= 1
                if self.left < 0:
                    raise MetadataUnavailable("the process is gone")

    cluster.plan = Crash()
    try:
        await delete_cursor(cluster.client("dies"), STREAM, "c")  # type: ignore[arg-type]
    except MetadataUnavailable:
        assert set(cluster.ledgers) <= ledgers_named(cluster, "c"), "INV-S8"
        await delete_cursor(cluster.client(), STREAM, "c")  # type: ignore[arg-type]
    assert cluster.ledgers == {} and path_of(STREAM, "c") not in cluster.records.values


async def test_a_half_deleted_cursor_is_deleted_first_when_it_is_opened(cluster: Cluster) -> None:
    holder = await Holder.open(cluster.client())
    await into_a_ledger(holder)
    holder.flusher.abort()

    class Crash(Plan):
        changes = 0

        async def before(self, client: FakeClient, what: str) -> None:
            if client.name == "dies" and what == "metadata.change":
                self.changes += 1
                if self.changes == 2:
                    raise MetadataUnavailable("the process is gone")

    cluster.plan = Crash()
    with pytest.raises(MetadataUnavailable):
        await delete_cursor(cluster.client("dies"), STREAM, "c")  # type: ignore[arg-type]
    (info,) = await cursors_of(cluster.client().records, STREAM)  # type: ignore[arg-type]
    assert info.is_deleting and not info.holds
    fresh = await Holder.open(cluster.client())
    assert (fresh.acks.mark_seq, fresh.acks.changes) == (-1, 0)
    await fresh.flusher.close()
    assert cluster.ledgers == {}


async def test_there_is_no_cursor_of_a_stream_that_is_not_there() -> None:
    cluster = Cluster()
    with pytest.raises(StreamNotFound):
        await Holder.open(cluster.client())
    assert [*cluster.records.values] == [LEVEL_PATH]


async def test_names_are_kept_apart(cluster: Cluster) -> None:
    names = ["a/b", "a%2Fb", ".", "..", "ä ö", "a.b", "%2E"]
    for name in names:
        holder = await Holder.open(cluster.client(), name)
        await holder.flusher.close()
    found = await cursors_of(cluster.client().records, STREAM)  # type: ignore[arg-type]
    assert sorted(one.name for one in found) == sorted(names)


@pytest.mark.parametrize("in_ledger", [False, True])
async def test_ten_thousand_ranges_are_kept(cluster: Cluster, in_ledger: bool) -> None:
    holder = await Holder.open(cluster.client())
    last = await into_a_ledger(holder) if in_ledger else -1
    for at in range(RANGES_MAX):
        assert holder.acks.ack_one(last + 2 + 2 * at, place(last + 2 + 2 * at))
    await holder.flush()
    assert (holder.keeper._ledger is not None) == in_ledger
    holder.flusher.abort()
    later = await Holder.open(cluster.client())
    assert len(later.acks.ranges) == RANGES_MAX
    assert later.acks.not_done(last + 1, last + 7) == [
        (last + one, last + one + 1) for one in (1, 3, 5)
    ]
    await later.flusher.close()


# Cursors' records on every metadata driver, without any bookie: opened, fenced, listed, deleted.
# INV-S8, INV-S10.
#
# A stream takes a bounded number of them (INV-B1). While metadata is on hold they keep their
# state, and nothing is deleted (INV-M4).


__all__ = ["open_driver"]


def record(seq: int) -> Record:
    """Return what a reader would hand out: nobody here has a bookie to read it from."""
    return Record(DLSN(1, seq, 0), seq, seq, 1, memoryview(b""))


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
@pytest.mark.slow
async def test_a_cursor_is_opened_fenced_listed_and_deleted(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as mine, fastbk.connect(open_driver()) as other:
        await mine.namespace("a").create()
        stream = await mine.namespace("a").create_stream("s")
        assert await stream.cursors() == []
        former = stream.cursor("größe/1", expire_after=3600.0)
        await former.open()
        await former.ack(record(4), data={"file": "x", "row": 4})
        async with other.namespace("a").stream("s").cursor("größe/1", hold=False) as later:
            assert (later.mark_seq, later.epoch, later.data) == (5, 2, {"file": "x", "row": 4})
            with pytest.raises(
                CursorFenced, match=rf"^cursor a/s/größe/1 was opened by .*-{os.getpid()}-.*holder"
            ):
                await former.ack(record(5))
            await later.ack_one(record(7))
        await former.abort()
        (info,) = await stream.cursors()
        assert (info.name, info.mark, info.mark_seq, info.ranges) == (
            "größe/1",
            DLSN(1, 4, 1),
            5,
            1,
        )
        assert (info.holds, info.expires_at_us, info.epoch) == (False, 0, 2)
        for number in range(3):
            async with stream.cursor(f"other {number}"):
                pass
        assert len(await stream.cursors()) == 4
        assert await stream.delete_cursor("größe/1")
        assert not await stream.delete_cursor("größe/1")
        assert sorted(one.name for one in await stream.cursors()) == [
            "other 0",
            "other 1",
            "other 2",
        ]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_stream_that_has_enough_cursors_takes_no_other_and_keeps_those(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-B1: also where there are more than it may have, from before there was a bound."""
    async with fastbk.connect(open_driver()) as client:
        await client.namespace("a").create()
        stream = await client.namespace("a").create_stream("s")
        for number in range(3):
            async with stream.cursor(f"c{number}"):
                pass
        for bound in (3, 2):
            monkeypatch.setattr(cursor_store, "CURSORS_MAX", bound)
            with pytest.raises(
                QuotaExceeded, match=r"a/s has 3 cursors.*`fastbk stream cursors a/s`"
            ):
                await stream.cursor("another").open()
            async with stream.cursor("c1") as cursor:
                await cursor.ack(record(7 - bound))
            assert [one.name for one in await stream.cursors()] == ["c0", "c1", "c2"]
        assert await stream.delete_cursor("c0")
        assert await stream.delete_cursor("c2")
        async with stream.cursor("another"):
            pass
        assert [(one.name, one.mark_seq) for one in await stream.cursors()] == [
            ("another", -1),
            ("c1", 6),
        ]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_ledger_that_was_never_made_is_never_made_later(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-S8: without bookies an id is drawn, named, and retired for good."""
    # However slow the store is, these acknowledgements are more than a record takes.
    monkeypatch.setattr(state_storage, "RECORD_RATE_PER_S", 0.0)
    async with fastbk.connect(open_driver()) as client:
        await client.namespace("a").create()
        stream = await client.namespace("a").create_stream("s")
        drawn: list[int] = []
        draw = client.records.draw_ledger_id

        async def noted() -> int:
            drawn.append(await draw())
            return drawn[-1]

        monkeypatch.setattr(client.records, "draw_ledger_id", noted)
        async with stream.cursor("c") as cursor:
            for seq in range(8):
                await cursor.ack(record(seq))
            assert cursor.mark_seq == 8
        (info,) = await stream.cursors()
        assert (info.mark_seq, info.ledgers) == (8, ())
        assert [one async for one in client.list_ledgers()] == []
        store = open_driver()
        (only,) = drawn
        with pytest.raises(fastbk.MetadataConflict, match="deleted"):
            store.create_ledger(only, metadata())


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_stream_that_is_deleted_has_no_cursors(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        await client.namespace("a").create()
        stream = await client.namespace("a").create_stream("s")
        cursor = stream.cursor("c")
        await cursor.open()
        stream_id = (await stream.context()).stream_id
        assert await delete_cursor(client, stream_id, "c")
        with pytest.raises(CursorFenced, match="deleted"):
            await cursor.ack(record(1))
        await cursor.abort()
        with pytest.raises(StreamNotFound):
            await client.namespace("a").stream("none").cursor("c").open()


async def held_soon(client: fastbk.Client) -> None:
    """Wait until a client's view of the hold, of a second ago at most, is new."""

    async def is_held() -> bool:
        try:
            await client.records.check_not_held()
        except MetadataOnHold:
            return True
        return False

    await wait_until_async(is_held, "the client finds the hold")


def metadata_on_hold(store: MetadataStore) -> str:
    return place_hold(store, new_hold("rolled back")).hold_id


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
@pytest.mark.slow
async def test_a_cursor_keeps_its_state_until_the_hold_ends(open_driver: Open) -> None:
    store = open_driver()
    async with fastbk.connect(open_driver()) as client:
        await client.namespace("a").create()
        stream = await client.namespace("a").create_stream("s")
        cursor = stream.cursor("c")
        await cursor.open()
        await cursor.ack(record(1))
        before = await stream.cursors()
        hold_id = await asyncio.to_thread(metadata_on_hold, store)
        await held_soon(client)
        with pytest.raises(MetadataOnHold):
            await cursor.ack(record(2))
        with pytest.raises(MetadataOnHold):
            await stream.cursor("c").open()
        with pytest.raises(MetadataOnHold):
            await stream.cursor("new").open()
        with pytest.raises(MetadataOnHold):
            await stream.delete_cursor("c")
        assert await stream.cursors() == before
        assert await asyncio.to_thread(confirm_hold, store, hold_id)
        await cursor.ack(record(2))
        (info,) = await stream.cursors()
        assert info.mark_seq == 3
        await cursor.close()


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
@pytest.mark.slow
async def test_no_stream_is_deleted_and_the_janitor_does_nothing(open_driver: Open) -> None:
    store = open_driver()
    async with fastbk.connect(open_driver()) as client:
        space: Namespace = client.namespace("a")
        await space.create()
        await space.create_stream("s")
        janitor = Janitor(client)
        await janitor.pass_once(thorough=True)
        hold_id = await asyncio.to_thread(metadata_on_hold, store)
        await held_soon(client)
        for deletion in (space.delete_stream("s"), space.delete(recursive=True)):
            with pytest.raises(MetadataOnHold):
                await deletion
        with pytest.raises(MetadataOnHold):
            await janitor.pass_once(thorough=True)
        drawn = await client.records.draw_ledger_id()
        assert drawn != NONE
        with pytest.raises(MetadataOnHold):
            await client.records.retire_ledger_id(drawn, "ab")
        assert await asyncio.to_thread(confirm_hold, store, hold_id)
        await client.records.retire_ledger_id(drawn, "ab")
        await space.delete_stream("s")
        await janitor.pass_once(thorough=True)


@pytest.mark.parametrize("what", ["create", "append", "metadata.change"])
@pytest.mark.parametrize("nth", range(12))
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_takeover_beside_any_step_loses_nothing(
    what: str, nth: int, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-S10: whoever opens it just before or after a step of the holder finds all that the holder was told."""
    monkeypatch.setattr(store, "RECORD_PAUSE_S", 0.0)
    monkeypatch.setattr(store, "ENTRIES_MAX", 4)
    cluster = Cluster()
    make_stream(cluster)
    kept = given = 0
    later: list[Holder] = []
    told: list[tuple[int, int]] = []

    class Beside(Plan):
        left = nth

        async def _step(self, client: FakeClient, step: str) -> None:
            if client.name != "former" or step != what or later:
                return
            self.left -= 1
            if self.left < 0:
                told.append((kept, given))
                later.append(await Holder.open(cluster.client("later")))

        async def before(self, client: FakeClient, step: str) -> None:
            if not is_after:
                await self._step(client, step)

        async def after(self, client: FakeClient, step: str) -> None:
            if is_after:
                await self._step(client, step)

    former = await Holder.open(cluster.client("former"))
    cluster.plan = Beside()
    try:
        for seq in range(60):
            given = seq + 1
            former.ack(seq)
            kept = await former.flush()
            await asyncio.sleep(0)
    except CursorFenced:
        assert later
    assert later or (what, nth) >= ("create", 3), "the step was there"
    if later:
        ((floor, ceiling),) = told
        assert floor <= max(later[0].acks.mark_seq, 0) <= ceiling, "INV-S10"
        assert kept <= max(later[0].acks.mark_seq, 0), "INV-S10: nothing was kept behind its back"
        await later[0].flusher.close()
    former.flusher.abort()
    assert set(cluster.ledgers) <= ledgers_named(cluster, "c"), "INV-S8"


# Ledgers that a record names for deletion and that are not its stream's stay, whoever deletes.
# INV-W4.


async def test_only_a_streams_own_ledgers_are_deleted() -> None:
    store = MemoryStore("foreign ledgers")
    calls = MetadataCalls(store, ClientConfig())
    records = RecordCalls(calls)
    marked = {None: 1, b"mine": 2, b"theirs": 3}
    for owner, ledger_id in marked.items():
        custom = {} if owner is None else {"fastbk.stream": owner}
        store.create_ledger(ledger_id, replace(ledger_metadata(9), custom=custom))
    for ledger_id in (*marked.values(), 4):
        await records.retire_ledger_id(ledger_id, "mine")
    assert store.list_ledgers() == [1, 3]
    # A segment from before ledgers said whose they are is the chain's, one of another stream never.
    for ledger_id in (1, 3):
        await records.retire_ledger_id(ledger_id, "mine", is_segment=True)
    assert store.list_ledgers() == [3]
    # One that was never made never will be, by nobody who is slow.
    await records.retire_ledger_id(4, "mine")
    assert 4 not in store.list_ledgers()
    # What a cursor names is deleted only if it holds that cursor's states: a reader may write cursors.
    for ledger_id, more in (
        (5, {}),
        (6, {"fastbk.cursor": b"other"}),
        (7, {"fastbk.cursor": b"c"}),
    ):
        store.create_ledger(
            ledger_id, replace(ledger_metadata(9), custom={"fastbk.stream": b"mine", **more})
        )
        await records.retire_ledger_id(ledger_id, "mine", of_cursor("c"))
    assert store.list_ledgers() == [3, 5, 6]
    await calls.close(1.0)
    store.close()
