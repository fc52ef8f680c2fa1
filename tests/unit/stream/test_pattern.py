"""Readers and cursors of a pattern of streams, on ledgers in memory: INV-S10, INV-S11, INV-S20, INV-S21."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    CursorFenced,
    PositionTruncated,
    ProtocolError,
    QuotaExceeded,
    StorageError,
    StreamExists,
    StreamNotFound,
)
from fastbk.meta.records import Change
from fastbk.stream import records
from fastbk.stream.cursor.sync_cursor import SyncPatternReader
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.paths import chain_path
from fastbk.stream.pattern import reader as pattern_reader
from fastbk.stream.pattern import store
from fastbk.stream.pattern.reader import PatternReader
from fastbk.stream.positions import DLSN, FIRST
from fastbk.stream.reader.read_ahead import ReadAhead
from fastbk.stream.records import Chunk, Gap, Record
from tests.fixtures.fake_ledgers import Cluster, Counting
from tests.fixtures.streams import as_client
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.stream.pattern.cursor import PatternCursor


class World:
    """A cluster with a namespace `shop`."""

    def __init__(self) -> None:
        self.plan = Counting()
        self.cluster = Cluster(self.plan)

    def space(self, path: str = "shop") -> Namespace:
        """Return the namespace as a client of its own has it."""
        return Namespace(Catalog(as_client(self.cluster.client())), path)

    async def write(self, name: str, values: Iterable[bytes], *, roll: bool = False) -> None:
        async with self.space().stream(name).writer(create=True) as writer:
            for value in values:
                await writer.append(value)
                if roll:
                    await writer.roll()

    async def fill(self, **counts: int) -> None:
        for name, count in counts.items():
            await self.write(name, [b"%s %d" % (name.encode(), at) for at in range(count)])


@pytest.fixture
def world() -> World:
    return World()


async def taken(reading: PatternReader[Gap] | PatternCursor[Gap], count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            one = await anext(reading)
            assert isinstance(one, Record)
            found.append(one)
    return found


def values(found: Iterable[Record], stream: str) -> list[bytes]:
    return [one.value for one in found if one.stream == stream]


def wanted(name: str, count: int, first: int = 0) -> list[bytes]:
    return [b"%s %d" % (name.encode(), at) for at in range(first, count)]


# --- reading ------------------------------------------------------------------------------------------------------


async def test_all_streams_that_match_are_read_each_in_its_order(world: World) -> None:
    await world.fill(eu_a=30, eu_b=20, us_a=10)
    root = Namespace(world.space()._catalog)
    found = [one async for one in root.reader("shop/eu_*", tail=False)]
    assert values(found, "shop/eu_a") == wanted("eu_a", 30)
    assert values(found, "shop/eu_b") == wanted("eu_b", 20)
    assert Counter(one.stream for one in found) == {"shop/eu_a": 30, "shop/eu_b": 20}
    assert [one.seq for one in found if one.stream == "shop/eu_a"] == [*range(30)]
    assert [one.value async for one in world.space().reader("us_?", tail=False)] == wanted(
        "us_a", 10
    )
    assert [one async for one in world.space().reader("none*", tail=False)] == []


async def test_records_chunks_and_gaps_say_which_stream_they_are_of(world: World) -> None:
    await world.write("a", [b"0", b"1", b"2"], roll=True)
    await world.space().stream("a").truncate(DLSN(3, 0, 0))
    async with world.space().reader("a", {"shop/a": FIRST}, tail=False, on_gap="yield") as reader:
        items = [one async for one in reader.chunks()]
    gap, chunk = items
    assert isinstance(gap, Gap) and isinstance(chunk, Chunk)
    assert (gap.stream, chunk.stream, chunk[0].stream, chunk[:1].stream) == ("shop/a",) * 4
    assert "shop/a" in repr(chunk) and "shop/a" in repr(chunk[0])
    copy: Chunk = pickle.loads(pickle.dumps(chunk))
    assert (copy.stream, copy[0], pickle.loads(pickle.dumps(chunk[0]))) == (
        "shop/a",
        chunk[0],
        chunk[0],
    )
    (alone,) = [one async for one in world.space().stream("a").reader(DLSN(3, 0, 0), tail=False)]
    assert alone.stream == "" and alone != chunk[0]


async def test_streams_that_come_are_read_from_their_first_record_on(world: World) -> None:
    await world.fill(a=2)
    async with world.space().reader("*", "latest") as reader:
        assert reader.streams == ["shop/a"]
        await world.fill(b=3)
        found = await taken(reader, 3)
        assert values(found, "shop/b") == wanted("b", 3)
        await world.write("a", [b"more"])
        assert [(one.stream, one.value) for one in await taken(reader, 1)] == [("shop/a", b"more")]
        assert await reader.read(timeout=0.05) is None
        assert reader.caught_up() and set(reader.positions) == {"shop/a", "shop/b"}


async def test_streams_that_go_end_nothing(world: World) -> None:
    await world.fill(a=2, b=2)
    async with world.space().reader("*") as reader:
        await taken(reader, 4)
        await world.space().delete_stream("a")
        await world.fill(c=1)
        assert [one.value for one in await taken(reader, 1)] == [b"c 0"]
        await wait_until_async(
            lambda: reader.streams == ["shop/b", "shop/c"], "the deleted stream to go"
        )
        await world.write("b", [b"b goes on"])
        assert [one.value for one in await taken(reader, 1)] == [b"b goes on"]


async def test_names_decide_as_they_are_now(world: World) -> None:
    await world.fill(a1=1, zz=1)
    async with world.space().reader("a*") as reader:
        assert values(await taken(reader, 1), "shop/a1") == [b"a1 0"]
        await world.space().rename_stream("zz", "a2")
        assert values(await taken(reader, 1), "shop/a2") == [b"zz 0"]
        await world.space().rename_stream("a1", "a9")
        await wait_until_async(lambda: reader.streams == ["shop/a2", "shop/a9"], "the new name")
        await world.write("a9", [b"on"])
        assert values(await taken(reader, 1), "shop/a9") == [b"on"]
        await world.space().rename_stream("a9", "other")
        await wait_until_async(lambda: reader.streams == ["shop/a2"], "the stream to go")


async def test_a_large_backlog_holds_nobody_up(world: World) -> None:
    """Streams take turns, each of one chunk."""
    await world.fill(big=3000)
    await world.fill(small=5)
    seen: list[str] = []
    async with world.space().reader("*", tail=False) as reader:
        async for chunk in reader.chunks(max_records=100):
            seen += [chunk.stream] * len(chunk)
    assert len(seen) == 3005
    assert "shop/small" in seen[:2000], "it waited for all of the backlog"


async def test_a_position_of_each_stream_is_where_another_reader_goes_on(world: World) -> None:
    await world.fill(a=10, b=10)
    async with world.space().reader("*", tail=False) as reader:
        first = await taken(reader, 7)
        positions = reader.positions
    async with world.space().reader("*", positions, tail=False) as reader:
        rest = [one async for one in reader]
    for name in ("a", "b"):
        assert values([*first, *rest], f"shop/{name}") == wanted(name, 10)


async def test_what_one_stream_lacks_is_told_and_the_others_go_on(world: World) -> None:
    await world.fill(bad=1, good=3)
    path = chain_path((await world.space().stream("bad").info()).id)
    kept = world.cluster.client().records
    held = await kept.read(path)
    assert held is not None
    await kept.change(Change(path, b"no chain", held.version))
    async with world.space().reader("*") as reader:
        found, errors = list[Record](), list[StorageError]()
        async with asyncio.timeout(20):
            while len(found) < 3 or not errors:
                try:
                    found.append(await anext(reader))
                except StorageError as error:
                    errors.append(error)
    assert values(found, "shop/good") == wanted("good", 3)


async def test_a_namespace_that_is_deleted_ends_it(world: World) -> None:
    await world.space().create()
    async with world.space().reader("*") as reader:
        await world.space().delete()
        with pytest.raises(StreamNotFound, match="no namespace shop"):
            await reader.read(timeout=20)
    with pytest.raises(StreamNotFound):
        await world.space().reader("*").open()


async def test_too_many_streams_are_told_and_room_is_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pattern_reader, store):
        monkeypatch.setattr(module, "STREAMS_MAX", 2)
    await world.fill(a=1, b=1, c=1)
    with pytest.raises(
        QuotaExceeded,
        match=r"shop/\* matches 3 streams, and one reader or cursor takes 2: split it",
    ):
        await world.space().reader("*").open()
    await world.space().delete_stream("c")
    async with world.space().reader("*") as reader:
        await taken(reader, 2)
        await world.fill(d=1)
        with pytest.raises(QuotaExceeded, match="matches 3 streams"):
            await reader.read(timeout=20)
        await world.write("a", [b"on"])
        found = []
        async with asyncio.timeout(20):
            while not found:
                try:
                    found.append(await anext(reader))
                except QuotaExceeded:
                    continue
        assert found[0].value == b"on"
        await world.space().delete_stream("b")
        async with asyncio.timeout(20):
            while True:
                try:
                    assert (await anext(reader)).value == b"d 0"
                    break
                except QuotaExceeded:
                    await asyncio.sleep(0)


async def test_what_is_read_ahead_is_bounded_whatever_the_number_of_streams(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-S21: 40 streams with a backlog, and nobody takes anything."""
    ahead: list[ReadAhead] = []
    init = ReadAhead.__init__

    def noted(self: ReadAhead, *args: object, **options: object) -> None:
        init(self, *args, **options)  # type: ignore[arg-type]
        ahead.append(self)

    monkeypatch.setattr(ReadAhead, "__init__", noted)
    await world.fill(**{f"s{at}": 20 for at in range(40)})
    async with world.space().reader("*") as reader:
        await wait_until_async(
            lambda: sum(one.queued_bytes > 0 for one in ahead) == pattern_reader.PLACES,
            "all places",
        )
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(one.queued_bytes > 0 for one in ahead) == pattern_reader.PLACES
        counts = Counter(one.stream for one in await taken(reader, 800))
        assert set(counts.values()) == {20} and len(counts) == 40
        assert await reader.read(timeout=0.05) is None
        # All have caught up: each has its place when something comes.
        for at in range(40):
            await world.write(f"s{at}", [b"x"])
            assert [one.stream for one in await taken(reader, 1)] == [f"shop/s{at}"]


async def test_who_has_much_makes_room_for_who_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one place, and small turns: the backlog of one keeps no other from being read."""
    monkeypatch.setattr(pattern_reader, "PLACES", 1)
    monkeypatch.setattr("fastbk.stream.reader.read_ahead.TURN_BYTES", 1000)
    for name in ("a", "b", "c"):
        await world.write(name, [bytes(500)] * 300)  # one segment
    seen: list[str] = []
    async with world.space().reader("*", tail=False, prefetch_bytes=1) as reader:
        async for one in reader:
            seen.append(one.stream)
    assert Counter(seen) == {"shop/a": 300, "shop/b": 300, "shop/c": 300}
    firsts = [seen.index(f"shop/{name}") for name in ("a", "b", "c")]
    assert max(firsts) < 300, "one stream was read to its end before another began"


async def test_idle_streams_make_no_calls(world: World) -> None:
    """INV-M16: they wait by watches and long polls."""
    await world.fill(**{f"s{at}": 1 for at in range(20)})
    async with world.space().reader("*") as reader:
        await taken(reader, 20)
        await reader.read(timeout=0.05)
        world.plan.taken()
        assert await reader.read(timeout=0.3) is None
        assert not world.plan.taken()


async def test_a_call_that_is_cancelled_loses_nothing(world: World) -> None:
    await world.fill(a=200, b=200)
    found: list[bytes] = []
    async with world.space().reader("*") as reader:
        for _ in range(2000):
            task = asyncio.create_task(reader.read(max_records=3))
            for _ in range(len(found) % 7):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and isinstance(chunk := task.result(), Chunk):
                found += [one.value for one in chunk]
            if len(found) == 400:
                break
        async with asyncio.timeout(20):
            while len(found) < 400:
                found += [one.value for one in await reader.read() or ()]  # type: ignore[union-attr]
    assert sorted(found) == sorted(wanted("a", 200) + wanted("b", 200))


async def test_what_is_none_is_refused_at_the_call(world: World) -> None:
    space = world.space()
    for wrong in (
        {"start": 7},
        {"start": {"shop/a": 7}},
        {"prefetch_bytes": 0},
        {"on_gap": "no"},
        {"end": FIRST},
    ):
        with pytest.raises((ConfigError, TypeError)):
            space.reader("*", **wrong)
    with pytest.raises(ConfigError):
        space.reader("a*/b")
    with pytest.raises(ConfigError):
        space.cursor("*", "")
    with pytest.raises(ConfigError):
        space.cursor("*", "c", DLSN(1, 0, 0))  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        await space.reader("*").read()


async def test_two_tasks_do_not_read_together(world: World) -> None:
    await world.space().create()
    async with world.space().reader("*") as reader:
        first = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="another task"):
            await reader.read()
        first.cancel()
        await asyncio.wait([first])


# --- cursors ------------------------------------------------------------------------------------------------------


async def test_it_goes_on_behind_what_was_acknowledged_in_each_stream(world: World) -> None:
    await world.fill(a=6, b=6)
    async with world.space().cursor("*", "c") as cursor:
        found = await taken(cursor, 12)
        await cursor.ack(next(one for one in found if one.value == b"a 3"))
        cursor.ack(next(one for one in found if one.value == b"b 1"), data={"row": 7})
        cursor.ack_one(next(one for one in found if one.value == b"b 4"))
        assert cursor.marks == {"shop/a": DLSN(1, 3, 1), "shop/b": DLSN(1, 1, 1)}
    async with world.space().cursor("*", "c", tail=False) as cursor:
        assert (cursor.epoch, cursor.data, cursor.ranges) == (2, {"row": 7}, 1)
        rest = [one async for one in cursor]
    assert values(rest, "shop/a") == [b"a 4", b"a 5"]
    assert values(rest, "shop/b") == [b"b 2", b"b 3", b"b 5"]


async def test_what_was_done_meanwhile_is_not_delivered(world: World) -> None:
    await world.fill(a=7)
    others = [one async for one in world.space().reader("*", tail=False)]
    async with world.space().cursor("*", "c", tail=False) as cursor:
        (first,) = await taken(cursor, 1)
        assert first.seq == 0
        for at in (1, 4):
            cursor.ack_one(others[at])
        chunks = [await cursor.read(), await cursor.read(), await cursor.read()]
        assert [one and [each.seq for each in one] for one in chunks] == [[2, 3], [5, 6], None]  # type: ignore[union-attr]


async def test_all_positions_are_in_one_record_and_small(world: World) -> None:
    await world.fill(**{f"s{at}": 2 for at in range(12)})
    async with world.space().cursor("*", "c") as cursor:
        for one in await taken(cursor, 24):
            if one.stream != "shop/s0":
                cursor.ack(one)
    (info,) = await world.space().pattern_cursors()
    assert (info.name, info.pattern, len(info.record.positions), info.fault) == ("c", "*", 11, "")
    assert info.mark_of((await world.space().stream("s0").info()).id) == FIRST


async def test_what_was_not_kept_is_delivered_again(world: World) -> None:
    await world.fill(a=4, b=4)
    cursor = world.space().cursor("*", "c", flush_interval=3600)
    await cursor.open()
    found = await taken(cursor, 8)
    await cursor.ack(next(one for one in found if one.value == b"a 1"))
    for one in found:
        cursor.ack(one)
    await cursor.abort()
    async with world.space().cursor("*", "c", tail=False) as again:
        rest = [one async for one in again]
    # What was awaited is kept; of the rest nothing was promised.
    assert values(rest, "shop/a") == wanted("a", 4, 2) and values(rest, "shop/b") == wanted("b", 4)


async def test_who_takes_it_over_fences_who_had_it(world: World) -> None:
    await world.fill(a=3)
    first = world.space().cursor("*", "c")
    await first.open()
    (record_one, *_) = await taken(first, 3)
    async with world.space().cursor("*", "c", tail=False) as second:
        with pytest.raises(CursorFenced, match="opened by"):
            await first.ack(record_one)
        with pytest.raises(CursorFenced):
            await first.read(timeout=1)
        assert len([one async for one in second]) == 3
    with pytest.raises(CursorFenced):
        await first.close()


async def test_a_stream_that_came_while_nobody_held_it_is_read_from_its_start(world: World) -> None:
    await world.fill(a=2)
    async with world.space().cursor("*", "c", "latest"):
        pass
    await world.fill(b=2)
    await world.write("a", [b"new"])
    async with world.space().cursor("*", "c", tail=False) as cursor:
        found = [one async for one in cursor]
    assert values(found, "shop/a") == [b"new"] and values(found, "shop/b") == wanted("b", 2)


async def test_a_deleted_stream_loses_its_position_and_a_new_one_of_its_name_begins_anew(
    world: World,
) -> None:
    await world.fill(a=3, b=1)
    async with world.space().cursor("*", "c") as cursor:
        old = await taken(cursor, 4)
        for one in old:
            cursor.ack(one)
        await cursor.flush()
        await world.space().delete_stream("a")
        await world.fill(a=2)
        fresh = await taken(cursor, 2)
        assert values(fresh, "shop/a") == wanted("a", 2)
        # The old stream's records have the same name, and their acknowledgement is not the new one's.
        await cursor.ack(next(one for one in old if one.value == b"a 2"))
        assert cursor.marks["shop/a"] == FIRST
        await cursor.ack(fresh[0])
        assert cursor.marks["shop/a"] == DLSN(1, 0, 1)
    (info,) = await world.space().pattern_cursors()
    assert len(info.record.positions) == 2
    await world.space().delete_stream("b")
    async with world.space().cursor("*", "c", tail=False):
        pass
    (info,) = await world.space().pattern_cursors()
    assert len(info.record.positions) == 1, "what went while nobody held it has no place any more"


async def test_what_was_truncated_before_it_was_done_is_told(world: World) -> None:
    await world.write("a", [b"0", b"1", b"2"], roll=True)
    await world.fill(b=1)
    async with world.space().cursor("*", "c"):
        pass
    await world.space().stream("a").truncate(DLSN(3, 0, 0))
    async with world.space().cursor("*", "c") as cursor:
        found, errors = list[bytes](), list[PositionTruncated]()
        async with asyncio.timeout(20):
            while not (found and errors):
                try:
                    found.append((await anext(cursor)).value)
                except PositionTruncated as error:
                    errors.append(error)
        assert found == [b"b 0"]
        await cursor.reset("shop/a", "earliest")
        assert [one.value for one in await taken(cursor, 1)] == [b"2"]
    async with world.space().cursor("*", "other", on_gap="yield", tail=False) as cursor:
        items = [one async for one in cursor]
    assert not any(isinstance(one, Gap) for one in items), "it was made behind the truncation"


@pytest.mark.parametrize("how", ["ack", "ack_one"])
async def test_an_acknowledgement_from_before_a_reset_changes_nothing(
    world: World, how: str
) -> None:
    """INV-S10, INV-S20: a task that still works on such a record must not have those before it passed by."""
    await world.fill(a=6, b=2)
    async with world.space().cursor("*", "c") as cursor:
        found = [one for one in await taken(cursor, 8) if one.stream == "shop/a"]
        await cursor.ack(found[3])
        await cursor.reset("shop/a", "earliest")
        getattr(cursor, how)(found[5])
        assert (cursor.marks["shop/a"], cursor.ranges) == (FIRST, 0)
        again = await taken(cursor, 6)
        assert values(again, "shop/a") == wanted("a", 6)
        await getattr(cursor, how)(found[5])  # it was handed out again
        assert (cursor.marks["shop/a"] > FIRST) == (how == "ack") and cursor.ranges == (
            how == "ack_one"
        )


async def test_a_reset_of_a_stream_passes_a_record_that_makes_no_sense(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came back as it could not be read is not handed out behind the reset."""
    async with world.space().stream("bad").writer(create=True) as writer:
        await writer.append(b"0", headers={"bad": b"x"})
        await writer.append(b"1")

    def broken(raw: bytes | memoryview) -> records.Headers:
        raise ProtocolError("a record's headers make no sense")

    async with world.space().cursor("*", "c") as cursor:
        with monkeypatch.context() as patch:
            patch.setattr(records, "get_headers", broken)
            with pytest.raises(ProtocolError):
                await anext(cursor)
        async with world.space().stream("bad").writer() as writer:
            await writer.append(b"2")
        await cursor.reset("shop/bad", "latest")
        async with world.space().stream("bad").writer() as writer:
            await writer.append(b"3")
        assert [one.value for one in await taken(cursor, 1)] == [b"3"]


async def test_a_cursor_is_made_and_moved_by_somebody_who_does_not_read(world: World) -> None:
    """Moved, it goes on there in all its streams, and whoever holds it is fenced."""
    await world.fill(a=3, b=3, other=1)
    root = Namespace(world.space()._catalog)
    made = await root.create_pattern_cursor("shop/[ab]", "c", "latest", hold=False, expire_after=60)
    assert (made.pattern, made.record.holds, made.record.expire_after_s) == ("[ab]", False, 60)
    assert len(made.record.positions) == 2
    with pytest.raises(StreamExists, match="shop has a cursor c already"):
        await root.create_pattern_cursor("shop/[ab]", "c")
    async with world.space().cursor(
        "[ab]", "c", hold=False, expire_after=60, flush_interval=60
    ) as cursor:
        await world.fill(a=1)
        (one,) = await taken(cursor, 1)
        moved = await world.space().move_pattern_cursor("[ab]", "c", "earliest")
        assert (moved.record.epoch, moved.record.positions) == (3, {})
        assert (moved.record.holds, moved.record.expire_after_s) == (False, 60), "its options stay"
        with pytest.raises(CursorFenced):
            await cursor.ack(one)
        await cursor.abort()
    async with world.space().cursor("[ab]", "c") as cursor:
        found = await taken(cursor, 7)
    assert values(found, "shop/a") == [*wanted("a", 3), b"a 0"] and values(
        found, "shop/b"
    ) == wanted("b", 3)
    moved = await world.space().move_pattern_cursor("[ab]", "c", "latest")
    assert [one async for one in world.space().cursor("[ab]", "c", tail=False)] == []
    with pytest.raises(ConfigError, match="cursor c of shop reads"):
        await world.space().move_pattern_cursor("*", "c", "earliest")
    with pytest.raises(StreamNotFound, match="shop has no cursor other of a pattern"):
        await world.space().move_pattern_cursor("*", "other", "earliest")
    with pytest.raises(ConfigError, match="`reset` sets one stream"):
        await world.space().move_pattern_cursor("*", "c", FIRST)  # type: ignore[arg-type]


async def test_streams_with_gaps_take_no_place_from_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised again and again of some streams keeps no other from being read."""
    monkeypatch.setattr(pattern_reader, "PLACES", 2)
    for name in ("a", "b", "c", "good"):
        await world.write(name, [b"%d" % at for at in range(6)], roll=True)
    async with world.space().cursor("*", "c") as cursor:
        for one in await taken(cursor, 24):
            if one.seq == 0 and one.stream != "shop/good":
                cursor.ack(one)
    for name in ("a", "b", "c"):
        await world.space().stream(name).truncate(DLSN(4, 0, 0))
    async with world.space().cursor("*", "c") as cursor:
        found, errors = list[Record](), Counter[str]()
        async with asyncio.timeout(20):
            while len(found) < 6 or len(errors) < 3:
                try:
                    found.append(await anext(cursor))
                except PositionTruncated as error:
                    errors[str(error)] += 1
        assert values(found, "shop/good") == [b"%d" % at for at in range(6)]
        for name in ("a", "b", "c"):
            await cursor.reset(f"shop/{name}", "earliest")
        assert Counter(one.stream for one in await taken(cursor, 9)) == {
            "shop/a": 3,
            "shop/b": 3,
            "shop/c": 3,
        }


async def test_a_record_that_makes_no_sense_holds_nobody_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.fill(a=3, b=3)
    read_headers = records.get_headers

    def broken(raw: bytes | memoryview) -> records.Headers:
        if b"bad" in bytes(raw):
            raise ProtocolError("a record's headers make no sense")
        return read_headers(raw)

    async with world.space().stream("bad").writer(create=True) as writer:
        await writer.append(b"0")
        await writer.append(b"1", headers={"bad": b"x"})
        await writer.append(b"2")
    monkeypatch.setattr(records, "get_headers", broken)
    async with world.space().reader("*", tail=False) as reader:
        found, errors = list[Record](), 0
        async with asyncio.timeout(20):
            while len(found) < 7 or errors < 3:
                try:
                    found.append(await anext(reader))
                except ProtocolError:
                    errors += 1
    assert values(found, "shop/bad") == [b"0"]
    items = [one async for one in world.space().reader("*", tail=False, on_gap="yield")]
    gap = next(one for one in items if isinstance(one, Gap))
    assert (gap.stream, gap.records) == ("shop/bad", 1) and len(items) == 9


def test_a_record_that_makes_no_sense_holds_nobody_up_without_await(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.cluster.client()

    async def closed(timeout: float | None = None) -> None:
        return None

    client.close = closed  # type: ignore[attr-defined]
    loop = LoopThread(lambda: client)  # type: ignore[arg-type, return-value]

    async def filled() -> None:
        await world.fill(zz=3)
        async with world.space().stream("aa").writer(create=True) as writer:
            await writer.append(b"1", headers={"bad": b"x"})

    def broken(raw: bytes | memoryview) -> records.Headers:
        raise ProtocolError("a record's headers make no sense")

    loop.call(filled)
    monkeypatch.setattr(records, "get_headers", broken)
    catalog = loop.call_plain(lambda: Catalog(as_client(client)))
    try:
        with SyncPatternReader(
            loop, lambda: PatternReader(catalog, ("shop",), "*", tail=False)
        ) as reader:
            found, errors = list[Record](), 0
            for _ in range(1000):
                try:
                    found.append(next(reader))
                except ProtocolError:
                    errors += 1
                if len(found) == 3 and errors > 2:
                    break
        assert values(found, "shop/zz") == wanted("zz", 3) and errors > 2
    finally:
        loop.close(5.0)


async def test_gaps_are_counted_and_say_their_stream(world: World) -> None:
    await world.write("a", [b"0", b"1", b"2"], roll=True)
    async with world.space().cursor("*", "c") as cursor:
        (one, *_) = await taken(cursor, 1)
        await cursor.ack(one)
    await world.space().stream("a").truncate(DLSN(3, 0, 0))
    async with world.space().cursor("*", "c", on_gap="yield", tail=False) as cursor:
        gap, last = [one async for one in cursor]
        assert isinstance(gap, Gap) and (gap.stream, gap.records, gap.kind) == (
            "shop/a",
            1,
            "trimmed",
        )
        assert isinstance(last, Record) and last.value == b"2" and cursor.gap_records == 1
    (info,) = await world.space().pattern_cursors()
    assert info.record.gap_records == 1


async def test_single_records_wait_for_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store, __import__("fastbk.stream.pattern.cursor", fromlist=["x"])):
        monkeypatch.setattr(module, "RANGES_MAX", 3)
    await world.fill(a=8, b=8)
    async with world.space().cursor("*", "c") as cursor:
        found = {one.value: one for one in await taken(cursor, 16)}
        for value in (b"a 1", b"a 3", b"b 1"):
            cursor.ack_one(found[value])
        assert cursor.ranges == 3
        waiting = asyncio.ensure_future(cursor.ack_one(found[b"b 5"]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done() and cursor.ranges == 3
        cursor.ack_one(found[b"a 2"])  # two ranges become one
        await asyncio.wait_for(waiting, 20)
        assert cursor.ranges == 3
        await cursor.flush()
    (info,) = await world.space().pattern_cursors()
    assert info.ranges == 3


async def test_a_record_of_another_reader_is_refused(world: World) -> None:
    await world.fill(a=1)
    async with world.space().cursor("*", "c") as cursor:
        (alone,) = [one async for one in world.space().stream("a").reader(tail=False)]
        with pytest.raises(ConfigError, match="says no stream"):
            cursor.ack(alone)
        with pytest.raises(TypeError):
            cursor.ack(DLSN(1, 0, 0))  # type: ignore[arg-type]
        with pytest.raises(StreamNotFound, match="does not read a stream shop/x"):
            await cursor.reset("shop/x", "earliest")


async def test_states_are_paced_and_group_what_waits(world: World) -> None:
    """The record is metadata: many acknowledgements that wait together are one change of it."""
    await world.fill(a=300)
    async with world.space().cursor("*", "c") as cursor:
        found = await taken(cursor, 300)
        world.plan.taken()
        async with asyncio.timeout(30):
            await asyncio.gather(*(cursor.ack(one) for one in found))
        assert world.plan.taken()["metadata.change"] <= 3


async def test_a_name_that_nobody_can_read_costs_no_position(world: World) -> None:
    """INV-M17: the stream is there all the same."""
    await world.fill(a=3)
    async with world.space().cursor("*", "c") as cursor:
        for one in (await taken(cursor, 3))[:2]:
            cursor.ack(one)
    stream_id = (await world.space().stream("a").info()).id
    kept = world.cluster.client().records
    (path,) = [
        one
        for one in world.cluster.records.values
        if one.startswith("namespaces/") and one.endswith("/a")
    ]
    held = await kept.read(path)
    assert held is not None
    (version,) = await kept.change(Change(path, b"no entry", held.version))
    async with world.space().cursor("*", "c", tail=False) as cursor:
        assert [one async for one in cursor] == []
        await asyncio.sleep(0)
    await kept.change(Change(path, held.value, version))
    (info,) = await world.space().pattern_cursors()
    assert info.mark_of(stream_id) == DLSN(1, 1, 1)
    async with world.space().cursor("*", "c", tail=False) as cursor:
        assert [one.value async for one in cursor] == [b"a 2"]


async def test_a_cursor_is_listed_and_deleted(world: World) -> None:
    await world.fill(a=1)
    cursor = world.space().cursor("a*", "c", hold=False, expire_after=60)
    async with cursor:
        pass
    (info,) = await world.space().pattern_cursors()
    assert (info.record.holds, info.record.expire_after_s, info.record.epoch) == (False, 60, 1)
    assert await world.space().delete_pattern_cursor("c")
    assert not await world.space().delete_pattern_cursor("c")
    assert await world.space().pattern_cursors() == []
