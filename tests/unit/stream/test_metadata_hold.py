"""Streams while metadata is on hold: cursors keep their state, and nothing is deleted (INV-M4). On every driver."""

from __future__ import annotations

import asyncio

import pytest

import fastbk
from fastbk.errors import MetadataOnHold
from fastbk.meta import MetadataStore
from fastbk.meta.hold import confirm_hold, new_hold, place_hold
from fastbk.stream.cursor.state import NONE
from fastbk.stream.janitor.janitor import Janitor
from fastbk.stream.namespace.namespace import Namespace
from tests.fixtures.wait import wait_until_async
from tests.unit.meta.test_metadata_store import Open, open_driver
from tests.unit.stream.test_cursor_stores import record

__all__ = ["open_driver"]

pytestmark = pytest.mark.parametrize(
    "open_driver", ["memory", "sqlite", "zookeeper"], indirect=True
)


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
            await client.records.retire_ledger_id(drawn)
        assert await asyncio.to_thread(confirm_hold, store, hold_id)
        await client.records.retire_ledger_id(drawn)
        await space.delete_stream("s")
        await janitor.pass_once(thorough=True)
