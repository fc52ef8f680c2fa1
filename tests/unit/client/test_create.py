"""Creating, listing and deleting ledgers, and which bookies are taken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    NotEnoughBookies,
)
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster


async def test_creating_needs_enough_bookies_that_answer() -> None:
    async with fake_cluster(4, connect_timeout=0.2) as (client, fakes, store):
        await fakes[0].stop()
        for _ in range(3):
            writer = await client.create_ledger()
            assert "b0" not in writer.metadata.fragments[0].ensemble
            await writer.close()
        fakes[1].faults.hello_status = 2
        await client.close()
        async with fastbk.connect(store, connect_timeout=0.2) as fresh:
            with pytest.raises(NotEnoughBookies) as caught:
                await fresh.create_ledger()
            assert "not today" in caught.value.replicas["b1"]
            assert "b0" in caught.value.replicas
            with pytest.raises(NotEnoughBookies, match="5 bookies are needed, but only 4"):
                await fresh.create_ledger(5, 3)
            with pytest.raises(ConfigError, match="ensemble >= write_quorum"):
                await fresh.create_ledger(2, 3)
            with pytest.raises(ConfigError, match="digest"):
                await fresh.create_ledger(1, 1, digest="md5")


async def test_a_bookie_that_never_says_hello_is_given_up() -> None:
    async with fake_cluster(1, connect_timeout=0.1) as (client, fakes, _):
        fakes[0].faults.silent = True
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(1, 1)


async def test_another_bookie_at_the_address_is_not_taken_for_the_right_one() -> None:
    async with fake_cluster(1) as (client, fakes, _):
        fakes[0].bookie_id = "impostor"
        with pytest.raises(NotEnoughBookies) as caught:
            await client.create_ledger(1, 1)
        assert "impostor" in caught.value.replicas["b0"]


async def test_a_bookie_that_lost_its_data_is_used_again_by_new_ledgers() -> None:
    async with fake_cluster(laggard_wait=0.01, backoff_max=0.05) as (client, fakes, _):
        before = await client.create_ledger()
        await before.append(b"x")
        await fakes[0].stop()
        fakes[0].ledgers.clear()
        fakes[0].incarnation = 2
        await fakes[0].start()
        await before.append(b"y")
        await wait_until_async(
            lambda: "incarnation" in before.stats().trouble.get("b0", ""), "noticed"
        )
        with pytest.raises(NotEnoughBookies, match="incarnation"):
            await client.create_ledger()
        await before.close()
        async with await client.create_ledger() as writer:
            await writer.append(b"x")
        assert fakes[0].ids(writer.ledger_id) == [0]
        await wait_until_async(lambda: fakes[0].ids(before.ledger_id) == [0, 1], "the repair")


async def test_a_chosen_id_that_is_taken_is_a_conflict() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger(ledger_id=2**62, metadata={"k": b"v"})
        assert (await client.ledger_info(2**62)).metadata.custom == {"k": b"v"}
        with pytest.raises(MetadataConflict):
            await client.create_ledger(ledger_id=2**62)
        await writer.close()


async def test_connecting_does_no_io_and_refuses_unknown_options() -> None:
    client = fastbk.connect("sqlite:/nowhere/at/all.db")
    with pytest.raises(Error):
        await client.ledger_info(1)
    await client.close()
    with pytest.raises(ConfigError, match="append_timeout"):
        fastbk.connect("memory:x", apend_timeout=3)
    with pytest.raises(ConfigError, match="above 0"):
        fastbk.connect("memory:x", append_timeout=0)


async def test_listing_and_deleting() -> None:
    async with fake_cluster() as (client, _, _):
        ids = []
        for _ in range(3):
            writer = await client.create_ledger()
            ids.append(writer.ledger_id)
            await writer.close()
        assert [info.ledger_id async for info in client.list_ledgers()] == ids
        await client.delete_ledger(ids[1])
        with pytest.raises(fastbk.NoSuchLedger):
            await client.delete_ledger(ids[1])
        with pytest.raises(fastbk.NoSuchLedger):
            await client.open_ledger(ids[1])
        with pytest.raises(fastbk.MetadataConflict, match="deleted"):
            await client.create_ledger(ledger_id=ids[1])
        assert [info.ledger_id async for info in client.list_ledgers()] == [ids[0], ids[2]]
        assert len(await client.list_bookies()) == 3


async def test_writers_share_connections_and_keep_their_own_order() -> None:
    async with fake_cluster() as (client, fakes, _):
        writers = [await client.create_ledger() for _ in range(5)]
        await asyncio.gather(*(one.append_many([b"x"] * 100) for one in writers))
        for one in writers:
            await one.close()
        assert all(fake.connections <= 2 for fake in fakes)


async def test_without_a_uri_the_variable_names_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTBK_METADATA", "odd:by-the-variable")
    for client, named in (
        (fastbk.connect(), "odd:by-the-variable"),
        (fastbk.connect("odd:by-the-caller"), "odd:by-the-caller"),
    ):
        with pytest.raises(ConfigError, match=named):
            await client.ledger_info(1)
        await client.close()
    with pytest.raises(ConfigError, match="odd:by-the-variable"), fastbk.sync.connect():
        pass


@pytest.mark.parametrize("connect", [fastbk.connect, fastbk.sync.connect])
def test_without_a_uri_and_a_variable_it_says_how_to_name_a_cluster(
    connect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTBK_METADATA", raising=False)
    with pytest.raises(ConfigError, match=r"connect\(\) a metadata URI or set FASTBK_METADATA"):
        connect()
