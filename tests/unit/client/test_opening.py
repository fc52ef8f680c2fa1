"""Opening: recovery closes behind everything acknowledged, other clients notice, and what is wrong is said (INV-M1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import fastbk
from fastbk.client import Client, LedgerWriter
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    DigestMismatch,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Unauthorized,
)
from fastbk.meta.api import Watch
from fastbk.model.entry import DigestType
from fastbk.model.ledger import LedgerState
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster, numbers, read_all


async def abandoned(client: Client, count: int, **options: object) -> LedgerWriter:
    """Return a writer that has appended and will not be closed."""
    writer = await client.create_ledger(**options)
    if count:
        await writer.append_many(numbers(0, count))
    return writer


@pytest.mark.slow
@pytest.mark.uvloop_too
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2), (5, 3, 2)])
@pytest.mark.parametrize("count", [0, 1, 40])
async def test_a_ledger_whose_writer_is_gone_is_recovered_whole(
    quorums: tuple[int, int, int], count: int
) -> None:
    async with fake_cluster(quorums[0]) as (client, _, store):
        ensemble, write_quorum, ack_quorum = quorums
        writer = await abandoned(
            client,
            count,
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=b"pw",
        )
        async with fastbk.connect(store) as other:
            found = await read_all(other, writer.ledger_id, password=b"pw")
            assert found == numbers(0, count)
            metadata = (await other.ledger_info(writer.ledger_id)).metadata
            assert metadata.state is LedgerState.CLOSED
            assert metadata.last_entry_id == count - 1
            assert metadata.length == sum(map(len, found))
            with pytest.raises(LedgerFenced):
                await writer.append(b"too late")


@pytest.mark.parametrize("digest", ["crc32", "hmac", "none"])
async def test_recovery_knows_every_digest(digest: str) -> None:
    async with fake_cluster() as (client, _, _):
        writer = await abandoned(client, 5, digest=digest, password=b"pw")
        assert len(await read_all(client, writer.ledger_id, password=b"pw")) == 5


@pytest.mark.slow
async def test_recovery_with_a_bookie_lost_writes_its_copies_elsewhere() -> None:
    async with fake_cluster(4) as (client, fakes, store):
        writer = await client.create_ledger()
        # Only one has the last entry: it must be found and written again.
        names = writer.stats().ensemble
        await writer.append_many([b"x"] * 5)
        for name in names[1:]:
            by_id(fakes, name).faults.swallow_adds = True
        writer.append_nowait(b"last").add_done_callback(lambda one: one.exception())
        await wait_until_async(
            lambda: by_id(fakes, names[0]).ids(writer.ledger_id)[-1:] == [5], "one copy"
        )
        for name in names[1:]:
            by_id(fakes, name).faults.swallow_adds = False
        await by_id(fakes, names[2]).stop()
        async with fastbk.connect(store, read_timeout=3, connect_timeout=1) as other:
            assert await read_all(other, writer.ledger_id) == [b"x"] * 5 + [b"last"]
        holders = [fake for fake in fakes if 5 in fake.ids(writer.ledger_id)]
        assert len(holders) >= 2


@pytest.mark.slow
async def test_a_recovery_that_cannot_be_done_now_can_be_done_later() -> None:
    async with fake_cluster() as (client, fakes, store):
        writer = await abandoned(client, 10)
        for fake in fakes[:2]:
            await fake.stop()
        async with fastbk.connect(store, read_timeout=0.3, connect_timeout=0.2) as other:
            with pytest.raises(NotEnoughBookies) as caught:
                await other.open_ledger(writer.ledger_id)
            assert {"b0", "b1"} <= set(caught.value.replicas)
            state = store.read_ledger(writer.ledger_id).metadata.state
            assert state is LedgerState.IN_RECOVERY
            for fake in fakes[:2]:
                await fake.start()
            assert len(await read_all(other, writer.ledger_id)) == 10


async def test_a_cancelled_recovery_leaves_what_the_next_goes_on_with() -> None:
    async with fake_cluster() as (client, fakes, store):
        writer = await abandoned(client, 10)
        for fake in fakes:
            fake.faults.read_status = Status.NOT_READY
        task = asyncio.create_task(client.open_ledger(writer.ledger_id))
        await wait_until_async(
            lambda: store.read_ledger(writer.ledger_id).metadata.state is LedgerState.IN_RECOVERY,
            "it has begun",
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.pool.runs == {
            run for run in client.pool.runs if run.procedure is writer._machine
        }
        for fake in fakes:
            fake.faults.read_status = 0
        assert len(await read_all(client, writer.ledger_id)) == 10


async def test_what_is_wrong_with_opening_is_said_by_its_own_error() -> None:
    async with fake_cluster(read_timeout=0.5) as (client, _, store):
        writer = await abandoned(client, 3, password=b"right")
        with pytest.raises(NoSuchLedger):
            await client.open_ledger(writer.ledger_id + 1)
        with pytest.raises(Unauthorized, match="another password"):
            await client.open_ledger(writer.ledger_id, password=b"wrong")
        with pytest.raises(ConfigError, match="leave digest out"):
            await client.open_ledger(writer.ledger_id, password=b"right", digest="crc32")
        found = store.read_ledger(writer.ledger_id)
        # Metadata of other systems may name neither password nor digest: then the bookies tell.
        value = replace(found.metadata, password=None)
        version = store.update_ledger(writer.ledger_id, value, found.version)
        with pytest.raises(Unauthorized) as refused:
            await client.open_ledger(writer.ledger_id, password=b"wrong")
        assert set(refused.value.replicas) & {"b0", "b1", "b2"}
        found = store.read_ledger(writer.ledger_id)
        assert found.version > version
        store.update_ledger(
            writer.ledger_id, replace(found.metadata, digest_type=None), found.version
        )
        with pytest.raises(DigestMismatch):
            await client.open_ledger(writer.ledger_id, password=b"right", digest="hmac")
        reader = await client.open_ledger(writer.ledger_id, password=b"right", digest="crc32c")
        assert len([one async for one in reader.read()]) == 3


@pytest.mark.slow
async def test_the_last_entry_and_the_best_lac_that_some_tell() -> None:
    async with fake_cluster(read_timeout=0.3) as (client, fakes, _):
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        with pytest.raises(NoSuchEntry, match="no entries"):
            await reader.read_last()
        await writer.append_many(numbers(0, 7))
        assert await writer.write_last_add_confirmed() == 6
        last = await reader.read_last()
        assert (last.entry_id, bytes(last.data)) == (6, b"6")
        assert not reader.is_closed
        assert not await client.is_closed(writer.ledger_id)
        for fake in fakes[:2]:
            await fake.stop()
        with pytest.raises(NotEnoughBookies):
            await reader.last_add_confirmed()
        assert await reader.try_last_add_confirmed() == 6
        await fakes[2].stop()
        with pytest.raises(NotEnoughBookies, match="no bookie told"):
            await reader.try_last_add_confirmed()
        for fake in fakes:
            await fake.start()
        await writer.close()
        assert await client.is_closed(writer.ledger_id)


async def test_a_tail_follows_its_writer_to_other_bookies() -> None:
    async with fake_cluster(6, replace_after=0.02, poll_interval=30) as (client, fakes, store):
        writer = await client.create_ledger()
        async with fastbk.connect(store) as other:
            reader = await other.open_ledger(writer.ledger_id, recovery=False)
            seen: list[int] = []

            async def follow() -> None:
                async for entry in reader.tail():
                    seen.append(entry.entry_id)

            task = asyncio.create_task(follow())
            await writer.append(b"x")
            await wait_until_async(lambda: seen == [0], "the first")
            old = set(writer.stats().ensemble)
            for number, name in enumerate(sorted(old), 1):
                by_id(fakes, name).faults.refuse_adds = lambda *_: Status.READ_ONLY
                await writer.append(b"x")
                await wait_until_async(
                    lambda number=number: writer.stats().ensemble_changes >= number, "a change"
                )
            assert not old & set(writer.stats().ensemble)
            for name in old:
                await by_id(fakes, name).stop()
            await writer.append(b"x")
            await wait_until_async(lambda: seen == list(range(5)), "what the new ones hold")
            await writer.close()
            await asyncio.wait_for(task, 10)


async def test_a_tail_goes_on_while_metadata_is_away_and_ends_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S13: a reader that was opened in time needs no metadata, from its first entry on."""
    async with fake_cluster(poll_interval=30) as (client, _, store):
        writer = await client.create_ledger()
        async with fastbk.connect(store) as other:
            reader = await other.open_ledger(writer.ledger_id, recovery=False)
            is_away, tries = True, 0
            watch, read = store.watch_ledger, store.read_ledger

            def away_or(call: Callable[..., Any]) -> Callable[..., Any]:
                def call_or_fail(*args: object) -> object:
                    nonlocal tries
                    tries += 1
                    if is_away:
                        raise MetadataUnavailable("it is away")
                    return call(*args)

                return call_or_fail

            with monkeypatch.context() as away:
                away.setattr(store, "watch_ledger", away_or(watch))
                away.setattr(store, "read_ledger", away_or(read))
                seen: list[int] = []

                async def follow() -> None:
                    async for entry in reader.tail():
                        seen.append(entry.entry_id)

                task = asyncio.create_task(follow())
                for number in range(3):
                    await writer.append(b"x")
                    await wait_until_async(
                        lambda number=number: len(seen) == number + 1, "it is read"
                    )
                assert tries > 0 and not task.done()
                is_away = False
                await writer.close()
                await asyncio.wait_for(task, 10)
            assert seen == [0, 1, 2]


async def test_a_tail_of_a_ledger_that_is_deleted_or_whose_client_is_closed_ends() -> None:
    async with fake_cluster(poll_interval=30) as (client, _, store):
        writer = await client.create_ledger()
        await writer.append(b"x")

        async def follow(other: Client) -> None:
            reader = await other.open_ledger(writer.ledger_id, recovery=False)
            async for _ in reader.tail():
                heard.set()

        for how in ("close", "delete"):
            async with fastbk.connect(store, poll_interval=30) as other:
                heard = asyncio.Event()
                task = asyncio.create_task(follow(other))
                await asyncio.wait_for(heard.wait(), 10)
                if how == "close":
                    await other.close()
                    with pytest.raises(ClientClosed):
                        await asyncio.wait_for(task, 5)
                else:
                    store.delete_ledger(writer.ledger_id)
                    with pytest.raises(NoSuchLedger):
                        await asyncio.wait_for(task, 5)


async def test_a_watch_tells_of_changes_and_of_the_end() -> None:
    async with fake_cluster() as (client, _, store):
        writer = await client.create_ledger()
        watch = client.watch_ledger(writer.ledger_id)
        assert (await anext(watch)).metadata.state is LedgerState.OPEN
        await client.edit_metadata(writer.ledger_id, {"k": b"v"})
        assert (await anext(watch)).metadata.custom == {"k": b"v"}
        await writer.close()
        assert (await anext(watch)).metadata.is_closed
        store.delete_ledger(writer.ledger_id)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        with pytest.raises(NoSuchLedger):
            await anext(client.watch_ledger(writer.ledger_id))


async def test_edits_of_custom_metadata_by_several_clients_lose_nothing() -> None:
    async with fake_cluster() as (client, _, store):
        writer = await client.create_ledger(metadata={"0": b"first"})
        async with fastbk.connect(store) as other:
            await asyncio.gather(
                *(
                    (client, other)[one % 2].edit_metadata(writer.ledger_id, {str(one): b"x"})
                    for one in range(1, 20)
                )
            )
        custom = store.read_ledger(writer.ledger_id).metadata.custom
        assert set(custom) == {str(one) for one in range(20)}
        with pytest.raises(ConfigError, match="values bytes"):
            await client.edit_metadata(writer.ledger_id, {"k": "text"})  # type: ignore[dict-item]
        await writer.close()
        assert store.read_ledger(writer.ledger_id).metadata.custom == custom


async def test_a_ledger_of_another_system_without_a_digest_named_is_read_as_crc32() -> None:
    async with fake_cluster() as (client, _, store):
        writer = await abandoned(client, 3, digest="crc32")
        await writer.close()
        found = store.read_ledger(writer.ledger_id)
        store.update_ledger(
            writer.ledger_id, replace(found.metadata, digest_type=None), found.version
        )
        assert len(await read_all(client, writer.ledger_id)) == 3
        assert DigestType.of("none") is DigestType.DUMMY


async def test_a_watch_that_nobody_waits_for_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster() as (client, _, store):
        writer = await client.create_ledger()
        begin, is_asked, may_begin = store.watch_ledger, threading.Event(), threading.Event()
        watches: list[Closing] = []

        class Closing:
            def __init__(self, watch: Watch) -> None:
                self.watch, self.is_closed = watch, False

            def close(self) -> None:
                self.is_closed = True
                self.watch.close()

        def begin_late(ledger_id: int, callback: Callable[[int], None]) -> Watch:
            is_asked.set()
            assert may_begin.wait(10)
            watches.append(Closing(begin(ledger_id, callback)))
            return watches[0]

        monkeypatch.setattr(store, "watch_ledger", begin_late)
        changes = client.watch_ledger(writer.ledger_id)
        first = asyncio.ensure_future(anext(changes))
        # A call that the store's thread has not begun with is simply dropped.
        await wait_until_async(is_asked.is_set, "the store's thread is at it")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        may_begin.set()
        await wait_until_async(lambda: bool(watches) and watches[0].is_closed, "it is closed")
        await writer.close()
