"""Cursors' records on every metadata driver, without any bookie: opened, fenced, listed, deleted. INV-S8, INV-S10.

A stream takes a bounded number of them (INV-B1).
While metadata is on hold they keep their state, and nothing is deleted (INV-M4).
"""

from __future__ import annotations

import asyncio
import os

import pytest

import fastbk
from fastbk.errors import CursorFenced, MetadataOnHold, QuotaExceeded, StreamNotFound
from fastbk.meta import MetadataStore
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.stream.cursor import store as cursor_store
from fastbk.stream.cursor import store as state_storage
from fastbk.stream.cursor.state import NONE
from fastbk.stream.cursor.store import delete_cursor
from fastbk.stream.janitor import Janitor
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record
from tests.fixtures.wait import wait_until_async
from tests.unit.meta.test_metadata_store import Open, metadata, open_driver

__all__ = ["open_driver"]

pytestmark = pytest.mark.parametrize(
    "open_driver", ["memory", "sqlite", "zookeeper"], indirect=True
)


def record(seq: int) -> Record:
    """Return what a reader would hand out: nobody here has a bookie to read it from."""
    return Record(DLSN(1, seq, 0), seq, seq, 1, memoryview(b""))


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


def hold(store: MetadataStore) -> str:
    return place_hold(store, new_hold("rolled back")).hold_id


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
        hold_id = await asyncio.to_thread(hold, store)
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


@pytest.mark.slow
async def test_no_stream_is_deleted_and_the_janitor_does_nothing(open_driver: Open) -> None:
    store = open_driver()
    async with fastbk.connect(open_driver()) as client:
        space: Namespace = client.namespace("a")
        await space.create()
        await space.create_stream("s")
        janitor = Janitor(client)
        await janitor.pass_once(thorough=True)
        hold_id = await asyncio.to_thread(hold, store)
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
