"""The record of a pattern's cursor: its bounds, bad ones, and what it holds of streams (INV-S20, INV-S14, INV-M17)."""

from __future__ import annotations

import random
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import fastbk
from fastbk.errors import ConfigError, CursorFenced, QuotaExceeded, StorageError, StreamNotFound
from fastbk.formats import LEVEL_MAX
from fastbk.gateway.record_names import Kind
from fastbk.gateway.rules import BYTES_MAX
from fastbk.meta import open_store
from fastbk.meta.format_level import LEVEL_PATH, LevelLacking, raise_level
from fastbk.meta.records import Change
from fastbk.stream.context import clock_us
from fastbk.stream.cursor.state import DATA_BYTES_MAX
from fastbk.stream.deletion import Event
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.tree import StreamRecord, put
from fastbk.stream.paths import stream_path
from fastbk.stream.pattern.store import (
    CURSORS_MAX,
    RANGES_MAX,
    STREAMS_MAX,
    PatternCursorRequest,
    PatternHolds,
    PatternRecord,
    StreamPosition,
    delete_pattern_cursor,
    get_pattern,
    is_match,
    path_of,
    pattern_cursors_of,
    put_pattern,
    split_pattern,
    take_over,
)
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, NUMBER_MAX
from fastbk.stream.stream import Stream
from tests.fixtures.fake_ledgers import Cluster, Counting
from tests.fixtures.metadata import new_cluster, set_level
from tests.fixtures.streams import (
    as_client,
    chain_of,
    cluster_with_stream,
    context_of,
    new_stream,
    store_of,
    write_segments,
)
from tests.unit.stream.test_janitor import janitor_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.zookeeper import ZooKeeperPlace

BIG = NUMBER_MAX
ONE_BYTE_KEPT = PolicyPatch(retention_bytes=1)


def largest() -> PatternRecord:
    """Return a record with as much of everything as there may be, in the longest numbers."""
    place = DLSN(BIG, BIG, BIG)
    ranges = RANGES_MAX // 20
    ends = tuple(BIG - 4 * ranges + 2 * at for at in range(2 * ranges))
    many = StreamPosition(place, 1 << 61, ends[::2], ends[1::2], (place,) * ranges)
    positions = {
        f"{at:016x}": many if at < 20 else StreamPosition(place, BIG) for at in range(STREAMS_MAX)
    }
    data: dict[str, int | str] = {"k": "d" * (DATA_BYTES_MAX - 8)}
    return PatternRecord("p" * 255, BIG, BIG, "h" * 200, positions, data, gaps=BIG, gap_records=BIG)


def test_the_largest_record_that_there_may_be_is_stored_and_read_again() -> None:
    raw = put_pattern(largest())
    assert len(raw) <= BYTES_MAX[Kind.PATTERN_CURSOR]
    assert get_pattern(raw) == largest()


def resealed(raw: bytes, body: bytes) -> bytes:
    return raw[:5] + zlib.crc32(body).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    "positions",
    [
        {"ab": StreamPosition(DLSN(1, 5, 0), 5, (6, 9), (8,), (DLSN(1, 8, 0),))},
        {"ab": StreamPosition(DLSN(1, 5, 0), 5, (6, 7), (8, 9), (DLSN(1, 8, 0),) * 2)},
        {"ab": StreamPosition(DLSN(1, 5, 0), 5, (5,), (8,), (DLSN(1, 8, 0),))},
        {"ab": StreamPosition(DLSN(1, 5, 0), 5, (8,), (7,), (DLSN(1, 8, 0),))},
        {f"{at}": StreamPosition() for at in range(STREAMS_MAX + 1)},
        {
            f"{at}": StreamPosition(
                firsts=(1, 3), ends=(2, 4), behinds=(DLSN(1, 2, 0), DLSN(1, 4, 0))
            )
            for at in range(RANGES_MAX // 2 + 1)
        },
    ],
    ids=["lengths", "overlap", "below-the-mark", "backwards", "streams", "ranges"],
)
def test_what_could_not_be_read_is_not_written(positions: dict[str, StreamPosition]) -> None:
    import msgspec

    record = PatternRecord("*", positions=positions)
    with pytest.raises(StorageError):
        put_pattern(record)
    with pytest.raises(StorageError):
        get_pattern(resealed(put_pattern(PatternRecord("*")), msgspec.msgpack.encode(record)))


def test_no_bytes_make_anything_else_than_a_storage_error() -> None:
    raw, rng = (
        put_pattern(PatternRecord("*", positions={"ab": StreamPosition(DLSN(3, 1, 0), 7)})),
        random.Random(1),
    )
    for _ in range(3000):
        bad = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(9, len(bad))] = rng.randrange(256)
        bad = bad[: rng.randint(0, len(bad))] if rng.random() < 0.3 else bad
        for made in (bytes(bad), resealed(raw, bytes(bad[9:]))):
            try:
                put_pattern(get_pattern(made))  # what can be read can be written
            except StorageError:
                continue


@pytest.mark.parametrize(
    "bad", ["", "/", "shop/", "a*/b", "s/**", "s/.x*", "s/<a", "a\nb", "s/" + "x" * 256]
)
def test_what_is_no_pattern_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError):
        split_pattern(bad)


def test_a_pattern_chooses_names_of_one_namespace() -> None:
    assert split_pattern("tenant/shop/*") == (("tenant", "shop"), "*")
    assert split_pattern("orders") == ((), "orders")
    assert is_match("o?ders-[ab]*", "orders-b7") and not is_match("o?ders-[ab]*", "orders-c")
    assert not is_match("Orders", "orders")


# --- what it holds ------------------------------------------------------------------------------------------------


async def put_cursor(
    cluster: Cluster, name: str, pattern: str, marks: dict[str, DLSN], **fields: object
) -> None:
    positions = {stream: StreamPosition(mark) for stream, mark in marks.items()}
    record = PatternRecord(pattern, positions=positions, **fields)  # type: ignore[arg-type]
    await cluster.client().records.change(Change(path_of("ns", name), put_pattern(record)))


async def filled(cluster: Cluster, *streams: str) -> None:
    for stream in streams:
        await new_stream(cluster, stream, ONE_BYTE_KEPT)
        await write_segments(cluster.client(), 8, stream_id=stream)


async def heads(cluster: Cluster, *streams: str) -> list[int]:
    return [(await store_of(cluster.client(), one).read()).chain.head for one in streams]


@pytest.mark.parametrize("kind", ["sqlite", "zookeeper"])
async def test_a_new_one_needs_the_level_at_which_all_janitors_honour_it(
    kind: str, zookeeper: ZooKeeperPlace, tmp_path: Path
) -> None:
    """INV-U4: a janitor of 0.2, in a cluster of level 2, would delete what the cursor has not read."""
    uri = zookeeper.uri() if kind == "zookeeper" else new_cluster(tmp_path / "metadata.sqlite")
    with closing(open_store(uri)) as store:
        set_level(store, 2)
        async with fastbk.connect(uri) as client:
            space = client.namespace("shop")
            await space.create()
            with pytest.raises(
                ConfigError, match=r"level 3, and the cluster has 2.*`fastbk cluster finalize`"
            ):
                await space.cursor("*", "c").open()
            assert await space.pattern_cursors() == []
            # as `fastbk cluster finalize` does: there is no bookie that could stand in the way
            raise_level(store, 3)
            async with space.cursor("*", "c") as cursor:
                assert cursor.epoch == 1
            set_level(store, 2)  # a backup of before was restored: what is there is taken over
            async with space.cursor("*", "c") as cursor:
                assert cursor.epoch == 2
            store.records.change(
                [Change(LEVEL_PATH, b"no json", store.records.read([LEVEL_PATH])[0].version)]
            )  # type: ignore[union-attr]
            with pytest.raises(StorageError, match="cluster/format_level in metadata is damaged"):
                await space.cursor("*", "other").open()


async def test_a_take_over_reads_no_level() -> None:
    """It costs its read and its change, and no call more."""
    plan = Counting()
    cluster = Cluster(plan)
    await new_stream(cluster, "ab")
    await put_cursor(cluster, "c", "*", {})
    plan.taken()
    client = as_client(cluster.client())
    await take_over(
        client, "ns", "ns", "c", PatternCursorRequest("*"), lambda: pytest.fail("it is there")
    )
    assert plan.taken() == {"metadata.read": 1, "metadata.change": 1}


async def test_a_janitor_that_lacks_the_level_deletes_nothing_and_ends() -> None:
    """INV-U5: also in the middle of a pass, once it has read the level again."""
    cluster = Cluster()
    await filled(cluster, "ab", "cd")
    one = janitor_of(cluster)
    newer = Change(LEVEL_PATH, b'{"level": %d}' % (LEVEL_MAX + 1), 0)
    process = one._process

    async def raised_meanwhile(*args: Any) -> Any:
        if await cluster.client().records.format_level() == LEVEL_MAX:
            await cluster.client().records.change(newer)
        return await process(*args)

    one._process = raised_meanwhile  # type: ignore[method-assign]
    one.options = JanitorOptions(streams_at_once=1)
    with pytest.raises(LevelLacking, match="Start a version that has the level"):
        await one.run()
    assert sorted(await heads(cluster, "ab", "cd")) == [1, 8], (
        "the second stream was not looked at any more"
    )
    with pytest.raises(LevelLacking):
        await one.close_left_segments()


async def test_retention_keeps_what_a_pattern_has_not_read() -> None:
    """INV-S20: where it is, and all of a stream that it has not seen yet; nothing of others."""
    cluster = Cluster()
    await filled(cluster, "ab", "ac", "ad", "zz")
    await put_cursor(cluster, "c", "a*", {"ab": DLSN(6, 1, 0), "ac": DLSN(9, 0, 0)})
    await janitor_of(cluster).pass_once()
    assert await heads(cluster, "ab", "ac", "ad", "zz") == [6, 8, 1, 8]


async def test_a_cursor_that_holds_nothing_holds_nothing() -> None:
    cluster = Cluster()
    await filled(cluster, "ab")
    await put_cursor(cluster, "c", "*", {}, holds=False)
    await janitor_of(cluster).pass_once()
    assert await heads(cluster, "ab") == [8]


async def test_the_slowest_of_all_cursors_counts() -> None:
    cluster = Cluster()
    await filled(cluster, "ab")
    await put_cursor(cluster, "fast", "*", {"ab": DLSN(7, 0, 0)})
    await put_cursor(cluster, "slow", "ab", {"ab": DLSN(4, 0, 0)})
    await janitor_of(cluster).pass_once()
    assert await heads(cluster, "ab") == [4]


async def test_one_that_nobody_can_read_holds_all_until_it_is_deleted() -> None:
    """INV-M17."""
    cluster = Cluster()
    await filled(cluster, "ab", "zz")
    await cluster.client().records.change(Change(path_of("ns", "bad"), b"no record"))
    await put_cursor(cluster, "good", "zz", {"zz": DLSN(9, 0, 0)})
    one = janitor_of(cluster)
    counts = await one.pass_once()
    assert await heads(cluster, "ab", "zz") == [1, 1] and counts.errors == 0
    found = await pattern_cursors_of(as_client(cluster.client()).records, "ns")
    assert [(info.name, bool(info.fault)) for info in found] == [("bad", True), ("good", False)]
    assert await delete_pattern_cursor(as_client(cluster.client()).records, "ns", "bad")
    await one.pass_once()
    assert await heads(cluster, "ab", "zz") == [8, 8]


async def test_a_cursor_made_or_moved_back_in_a_pass_is_honoured() -> None:
    """What a pass has read of cursors is enough to keep, and never to delete."""
    cluster = Cluster()
    await filled(cluster, "ab")
    records = as_client(cluster.client()).records
    await put_cursor(cluster, "c", "*", {"ab": DLSN(9, 0, 0)})
    holds, record = PatternHolds(records), StreamRecord("ns", "ab")
    assert await holds.marks(record, "ab", is_fresh=False) == [DLSN(9, 0, 0)]
    await put_cursor(cluster, "new", "*", {"ab": DLSN(2, 0, 0)})
    assert await holds.marks(record, "ab", is_fresh=False) == [DLSN(9, 0, 0)]
    assert min(await holds.marks(record, "ab", is_fresh=True)) == DLSN(2, 0, 0)


async def test_a_pass_remembers_few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-M18: what is too large is read again for each stream, one record after the other."""
    monkeypatch.setattr("fastbk.stream.pattern.store.POSITIONS_KEPT_MAX", 10)
    cluster = Cluster()
    await filled(cluster, "ab")
    for name in ("c", "d"):
        await put_cursor(
            cluster,
            name,
            "*",
            {f"{at:x}": DLSN(5, 0, 0) for at in range(4)} | {"ab": DLSN(6, 0, 0)},
        )
    holds, record = PatternHolds(as_client(cluster.client()).records), StreamRecord("ns", "ab")
    for _ in range(3):
        assert await holds.marks(record, "ab", is_fresh=False) == [DLSN(6, 0, 0)] * 2
        assert not holds._known and holds._positions == 0
    await janitor_of(cluster).pass_once()
    assert await heads(cluster, "ab") == [6]


async def test_a_stream_that_was_renamed_into_a_pattern_is_held() -> None:
    cluster = Cluster()
    await filled(cluster, "ab")
    await put_cursor(cluster, "c", "new", {})
    records = as_client(cluster.client()).records
    before = await records.read(stream_path("ab"))
    assert before is not None
    await records.change(
        Change(stream_path("ab"), put(StreamRecord("ns", "new", ONE_BYTE_KEPT)), before.version)
    )
    holds, known = PatternHolds(records), StreamRecord("ns", "ab")  # as the pass has read it before
    assert await holds.marks(known, "ab", is_fresh=True) == [DLSN(1, 0, 0)]
    await janitor_of(cluster).pass_once()
    assert await heads(cluster, "ab") == [1]


async def test_one_that_nobody_uses_expires() -> None:
    cluster, events, now_us = Cluster(), list[Event](), clock_us()
    await filled(cluster, "ab")
    await put_cursor(cluster, "old", "*", {}, expire_after_s=60.0, used_at_us=now_us - 61_000_000)
    await put_cursor(
        cluster, "young", "a*", {"ab": DLSN(3, 0, 0)}, expire_after_s=60.0, used_at_us=now_us
    )
    one = janitor_of(cluster, events)
    counts = await one.pass_once()
    assert counts.cursors_expired == 1 and await heads(cluster, "ab") == [1]
    assert [event["cursor"] for event in events if "cursor" in event] == ["old"]
    await one.pass_once()
    assert await heads(cluster, "ab") == [3]


async def test_how_far_it_is_behind_is_known_of_each_stream() -> None:
    """A janitor's figures, and what a stream says of its cursors, have those of patterns, with the pattern."""
    cluster = Cluster()
    await filled(cluster, "ab", "zz")
    await put_cursor(cluster, "c", "a*", {"ab": DLSN(7, 0, 0)})
    one = Janitor(as_client(cluster.client()), JanitorOptions(cursor_gauges_max=10))
    await one.pass_once()
    found = [
        (gauge.stream, gauge.cursor, gauge.backlog and gauge.backlog.records)
        for gauge in one.gauges.all()
    ]
    assert found == [("ns/ab", "a* c", 6)]
    stream = Stream(
        Catalog(as_client(cluster.client())), ("ns",), "ab", context_of(cluster.client())
    )
    ((info, backlog),) = await stream.backlogs()
    assert (info.name, info.label, info.mark, backlog and backlog.records) == (
        "c",
        "a* c",
        DLSN(7, 0, 0),
        6,
    )
    other = Stream(
        Catalog(as_client(cluster.client())),
        ("ns",),
        "zz",
        context_of(cluster.client(), stream_id="zz"),
    )
    assert await other.backlogs() == [] and await stream.cursors() == []


async def test_it_goes_with_its_namespace() -> None:
    cluster = Cluster()
    catalog = Catalog(as_client(cluster.client()))
    space = Namespace(catalog, "shop")
    await space.create()
    namespace_id = (await catalog.place(("shop",))).here.id
    records = as_client(cluster.client()).records
    await records.change(Change(path_of(namespace_id, "c"), put_pattern(PatternRecord("*"))))
    await space.delete()
    assert await records.read(path_of(namespace_id, "c")) is None
    # One that a slow client wrote behind the deletion goes with a janitor's pass.
    await records.change(Change(path_of(namespace_id, "late"), put_pattern(PatternRecord("*"))))
    await janitor_of(cluster).pass_once()
    assert await records.read(path_of(namespace_id, "late")) is None


# --- holders ------------------------------------------------------------------------------------------------------


async def nothing() -> dict[str, StreamPosition]:
    return {}


async def test_who_takes_it_over_fences_who_had_it() -> None:
    """INV-S10."""
    cluster, _ = await cluster_with_stream()
    client = as_client(cluster.client())
    first = await take_over(client, "ns", "ns", "c", PatternCursorRequest("*"), nothing)
    await first.write(replace(first.record, positions={"ab": StreamPosition(DLSN(2, 0, 0), 3)}))
    second = await take_over(client, "ns", "ns", "c", PatternCursorRequest("*"), nothing)
    assert (
        second.record.positions == {"ab": StreamPosition(DLSN(2, 0, 0), 3)}
        and second.record.epoch == 2
    )
    with pytest.raises(CursorFenced, match=f"opened by {second.record.holder}"):
        await first.write(first.record)
    await second.write(second.record)
    assert await delete_pattern_cursor(client.records, "ns", "c")
    with pytest.raises(CursorFenced, match="deleted"):
        await second.write(second.record)


async def test_a_cursor_keeps_its_pattern() -> None:
    client = as_client(Cluster().client())
    cluster = client.cluster  # type: ignore[attr-defined]
    await new_stream(cluster)
    await take_over(client, "ns", "shop", "c", PatternCursorRequest("a*"), nothing)
    with pytest.raises(ConfigError, match=r"cursor c of shop reads 'a\*', not 'b\*'"):
        await take_over(client, "ns", "shop", "c", PatternCursorRequest("b*"), nothing)


async def test_a_namespace_takes_so_many_and_no_more() -> None:
    cluster, _ = await cluster_with_stream()
    client = as_client(cluster.client())
    for number in range(CURSORS_MAX):
        await put_cursor(cluster, f"c{number}", "*", {})
    with pytest.raises(QuotaExceeded, match="namespace shop has 100 cursors of patterns"):
        await take_over(client, "ns", "shop", "another", PatternCursorRequest("*"), nothing)
    await take_over(client, "ns", "shop", "c7", PatternCursorRequest("*"), nothing)


async def test_a_cursor_whose_namespace_goes_meanwhile_is_taken_back() -> None:
    cluster = Cluster()
    client = as_client(cluster.client())
    with pytest.raises(StreamNotFound, match="there is no namespace shop"):
        await take_over(client, "gone", "shop", "c", PatternCursorRequest("*"), nothing)
    assert await pattern_cursors_of(client.records, "gone") == []
    assert [*cluster.records.values] == [LEVEL_PATH]


async def test_the_newest_segment_stays_as_ever() -> None:
    cluster = Cluster()
    await filled(cluster, "ab")
    await put_cursor(cluster, "c", "*", {"ab": DLSN(100, 0, 0)})
    await janitor_of(cluster).pass_once()
    assert [row.number for row in (await chain_of(cluster)).rows] == [8]
