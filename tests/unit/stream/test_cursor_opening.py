"""Marks of one cursor in many streams: moved by one change each, found by holders, taken over, never doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastbk.errors import ConfigError, CursorFenced, QuotaExceeded, StreamNotFound
from fastbk.stream.cursor import store as cursor_store
from fastbk.stream.cursor import store as module
from fastbk.stream.cursor.store import CursorPositions
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.positions import DLSN, AtSeq
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import as_client

if TYPE_CHECKING:
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.stream import Stream

BY = {"by": "test"}


class Changes(Plan):
    """Counts changes of metadata, and ledgers that are opened or read."""

    changes = others = 0

    async def before(self, client: FakeClient, what: str) -> None:
        self.changes += what == "metadata.change"
        self.others += what in ("open", "read", "create")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(Changes())


def catalog(cluster: Cluster) -> Catalog:
    return Catalog(as_client(cluster.client()))


async def filled(cluster: Cluster, name: str, count: int = 10) -> Stream:
    space = Namespace(catalog(cluster), "shop")
    await space.create(exist_ok=True)
    stream = await space.create_stream(name)
    async with stream.writer() as writer:
        for at in range(count):
            await writer.append(b"%d" % at * 50)
    return stream


async def cursor_of(stream: Stream) -> CursorInfo:
    (found,) = await stream.cursors()
    return found


async def test_a_mark_is_moved_by_one_change_and_nothing_is_read(cluster: Cluster) -> None:
    streams = [await filled(cluster, f"s{at}") for at in range(20)]
    marks = CursorPositions(catalog(cluster), "query", BY)
    plan = cluster.plan
    assert isinstance(plan, Changes)
    begin = {one.path: (DLSN(1, 0, 0), 0) for one in streams}
    assert await marks.move(begin) == {}
    plan.changes = plan.others = 0
    dlsn = (await streams[3].get(AtSeq(4))).dlsn
    plan.others = 0
    assert await marks.move({**begin, streams[3].path: (dlsn, 4)}) == {}
    assert (plan.changes, plan.others) == (1, 0)
    info = await cursor_of(streams[3])
    assert (info.mark, info.mark_seq, info.data, info.ledgers) == (dlsn, 4, BY, ())
    ((_, backlog),) = await streams[3].backlogs()
    assert backlog is not None and backlog.records == 6 and backlog.seconds >= 0
    assert 250 <= backlog.size_bytes < 1000


async def test_who_stays_is_noted_as_used_and_not_as_moved(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await filled(cluster, "s")
    marks = CursorPositions(catalog(cluster), "query", BY)
    where = {stream.path: (DLSN(1, 3, 0), 3)}
    await marks.move(where)
    before = await cursor_of(stream)
    await marks.move(where)
    assert await cursor_of(stream) == before
    monkeypatch.setattr(module, "RENEW_S", -1.0)
    await marks.move(where)
    after = await cursor_of(stream)
    assert after.moved_at_us == before.moved_at_us and after.used_at_us > before.used_at_us
    again = CursorPositions(catalog(cluster), "query", BY)
    assert await again.move(where) == {}
    assert (await cursor_of(stream)).mark_seq == 3


async def test_a_stream_with_too_many_cursors_holds_no_other_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-B1: a query goes on, and its mark is there once there is room."""
    full, other = await filled(cluster, "full"), await filled(cluster, "other")
    async with full.cursor("theirs"):
        pass
    monkeypatch.setattr(cursor_store, "CURSORS_MAX", 1)
    marks = CursorPositions(catalog(cluster), "query", BY)
    where = {one.path: (DLSN(1, 3, 0), 3) for one in (full, other)}
    failed = await marks.move(where)
    assert list(failed) == [full.path] and isinstance(failed[full.path], QuotaExceeded)
    assert (await cursor_of(other)).mark_seq == 3
    assert await full.delete_cursor("theirs")
    assert await marks.move(where) == {}
    assert (await cursor_of(full)).name == "query"


async def test_two_of_one_name_find_out_and_go_on(cluster: Cluster) -> None:
    stream = await filled(cluster, "s")
    one, two = (
        CursorPositions(catalog(cluster), "query", BY),
        CursorPositions(catalog(cluster), "query", BY),
    )
    await one.move({stream.path: (DLSN(1, 1, 0), 1)})
    await two.move({stream.path: (DLSN(1, 2, 0), 2)})
    failed = await one.move({stream.path: (DLSN(1, 3, 0), 3)})
    assert isinstance(failed[stream.path], CursorFenced)
    assert (await cursor_of(stream)).mark_seq == 2
    assert await one.move({stream.path: (DLSN(1, 3, 0), 3)}) == {}
    assert (await cursor_of(stream)).mark_seq == 3


async def test_a_cursor_that_applications_held_is_taken_over_with_its_ledgers(
    cluster: Cluster,
) -> None:
    stream = await filled(cluster, "s", 60)
    async with stream.cursor("query") as cursor:
        async for record in cursor:
            await cursor.ack(record)
            if record.seq == 50:
                break
        (info,) = await stream.cursors()
        assert info.ledgers, "the test needs a cursor that has a ledger"
        marks = CursorPositions(catalog(cluster), "query", BY)
        assert await marks.move({stream.path: (DLSN(1, 2, 0), 2)}) == {}
        await cursor.abort()
    after = await cursor_of(stream)
    assert (after.mark_seq, after.ledgers) == (2, ())
    assert not set(info.ledgers) & set(cluster.ledgers)


async def test_streams_that_are_gone_and_names_that_are_none(cluster: Cluster) -> None:
    stream = await filled(cluster, "s")
    marks = CursorPositions(catalog(cluster), "query", BY)
    failed = await marks.move({stream.path: (DLSN(1, 1, 0), 1), "shop/none": (DLSN(1, 1, 0), 1)})
    assert list(failed) == ["shop/none"] and isinstance(failed["shop/none"], StreamNotFound)
    assert (await cursor_of(stream)).mark_seq == 1
    with pytest.raises(ConfigError, match="name of a cursor"):
        CursorPositions(catalog(cluster), "", BY)
