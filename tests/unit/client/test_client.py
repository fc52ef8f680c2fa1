"""Opening: recovery closes behind everything acknowledged, other clients notice, and what is wrong is said (INV-M1)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

import fastbk
import fastbk.sync
from fastbk.client import Client, LedgerWriter, metadata_calls
from fastbk.client.metadata_calls import LockLost, _Taking
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    DigestMismatch,
    Error,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Unauthorized,
)
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.entry import DigestType
from fastbk.model.ledger import LedgerState
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import (
    by_id,
    fake_cluster,
    numbers,
    one_ledger,
    read_all,
    some_turns,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from fastbk.meta.api import Watch
    from fastbk.stream.client import Client as StreamsClient


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
    async with one_ledger(4) as (_, fakes, store, writer):
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
    async with one_ledger(read_timeout=0.3) as (client, fakes, _, writer):
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
    async with (
        one_ledger(6, replace_after=0.02, poll_interval=30) as (_, fakes, store, writer),
        fastbk.connect(store) as other,
    ):
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
    async with (
        one_ledger(poll_interval=30) as (_, _, store, writer),
        fastbk.connect(store) as other,
    ):
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
                await wait_until_async(lambda number=number: len(seen) == number + 1, "it is read")
            assert tries > 0 and not task.done()
            is_away = False
            await writer.close()
            await asyncio.wait_for(task, 10)
        assert seen == [0, 1, 2]


async def test_a_tail_of_a_ledger_that_is_deleted_or_whose_client_is_closed_ends() -> None:
    async with one_ledger(poll_interval=30) as (_, _, store, writer):
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
    async with one_ledger() as (client, _, store, writer):
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
    async with one_ledger(closes=True) as (client, _, store, writer):
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


# Creating, listing and deleting ledgers, and which bookies are taken for it.


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
    # Without the timer: once the machine keeps this loop waiting, the LAC's guard connects as well (INV-C7).
    async with fake_cluster(explicit_lac_interval=0) as (client, fakes, _):
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


# Closing a client ends whatever waits by it, at once and with ClientClosed.


IN_TIME_S = 5.0
"""Less than anybody waits by a clock, and more than a turn of a busy machine."""


async def _tail_a_ledger(client: StreamsClient) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    reader = await client.open_ledger(writer.ledger_id, recovery=False)
    async for _ in reader.tail():
        pass


async def _watch_a_ledger(client: StreamsClient) -> None:
    writer = await client.create_ledger()
    async for _ in client.watch_ledger(writer.ledger_id):
        pass


async def _iterate(client: StreamsClient) -> None:
    async with client.namespace("").stream("s").reader() as reader:
        async for _ in reader:
            pass


async def _read(client: StreamsClient) -> None:
    async with client.namespace("").stream("s").reader() as reader:
        while True:
            await reader.read()


async def _wait_caught_up(client: StreamsClient) -> None:
    async with client.namespace("").stream("s").reader() as reader:
        await reader.wait_caught_up()


async def _hold_a_cursor(client: StreamsClient) -> None:
    cursor = client.namespace("").stream("s").cursor("c")
    await cursor.open()
    try:
        async for _ in cursor:
            pass
    finally:
        await cursor.abort()


async def _watch_a_namespace(client: StreamsClient) -> None:
    async for _ in client.namespace("").watch():
        pass


@pytest.mark.parametrize(
    "wait",
    [
        _tail_a_ledger,
        _watch_a_ledger,
        _iterate,
        _read,
        _wait_caught_up,
        _hold_a_cursor,
        _watch_a_namespace,
    ],
)
async def test_whoever_waits_is_told(wait: Callable[[StreamsClient], Awaitable[None]]) -> None:
    async with fake_cluster(poll_interval=30.0) as (made, _, _):
        client = cast("StreamsClient", made)
        async with client.namespace("").stream("s").writer(create=True) as writer:
            await writer.append(b"x")
        waiting = asyncio.ensure_future(wait(client))
        await wait_until_async(lambda: bool(client._store._callbacks), "it has begun to wait")
        await some_turns()
        assert not waiting.done()
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, IN_TIME_S)


@pytest.mark.parametrize("kind", ["ledger", "reader", "cursor", "pattern reader", "pattern cursor"])
async def test_whoever_waits_by_what_is_closed_itself_is_told(kind: str) -> None:
    async with fake_cluster(poll_interval=30.0) as (made, _, _):
        client = cast("StreamsClient", made)
        space = client.namespace("")
        async with space.stream("s").writer(create=True) as writer:
            await writer.append(b"x")
        made_by = {
            "reader": lambda: space.stream("s").reader(),
            "cursor": lambda: space.stream("s").cursor("c"),
            "pattern reader": lambda: space.reader("*"),
            "pattern cursor": lambda: space.cursor("*", "c"),
        }
        source: Any
        if kind == "ledger":
            ledger = await client.create_ledger()
            await ledger.append(b"x")
            source = await client.open_ledger(ledger.ledger_id, recovery=False)
            items = source.tail()
        else:
            source = items = made_by[kind]()
            await source.open()
        await anext(items)
        waiting = asyncio.ensure_future(anext(items))
        await wait_until_async(lambda: bool(client._store._callbacks), "it has begun to wait")
        await some_turns()
        assert not waiting.done()
        await source.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, IN_TIME_S)
        if kind == "ledger":
            await ledger.close()


async def test_a_close_that_was_cancelled_goes_on_and_can_be_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster() as (client, _, _):
        reached, let_go, steps = asyncio.Event(), asyncio.Event(), list[str]()
        close_marks, close_store = client.marks.close, client._store.close

        async def marks_closed(timeout_s: float) -> None:
            reached.set()
            await let_go.wait()
            await close_marks(timeout_s)

        async def store_closed(timeout_s: float) -> None:
            await close_store(timeout_s)
            steps.append("closed")

        monkeypatch.setattr(client.marks, "close", marks_closed)
        monkeypatch.setattr(client._store, "close", store_closed)
        first = asyncio.ensure_future(client.close())
        await reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = asyncio.ensure_future(client.close())
        await some_turns()
        assert not again.done(), "it waits for the end"
        let_go.set()
        await asyncio.wait_for(again, IN_TIME_S)
        assert steps == ["closed"]
        await client.close()
        assert steps == ["closed"]


# Locks of ledgers through the asyncio client: no way out of the block leaves one behind. INV-H2.


T = TypeVar("T")


async def test_a_lock_is_held_during_the_block_and_another_one_is_refused(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/meta.db"
    open_store(uri).close()
    async with Client(uri) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.locks.hold(7, "host-1") as lock:
                assert lock is not None
                assert lock.is_held()
                assert await client.locks.holder_of(7) == "host-1"
                async with client.locks.hold(7, "host-2") as other:
                    assert other is None
                assert await client.locks.holder_of(7) == "host-1"
                _ = 1 / 0
        assert await client.locks.holder_of(7) is None


def test_a_lock_that_comes_after_its_caller_gave_up_is_released() -> None:
    with closing(MemoryStore("late lock")) as store:
        taking = _Taking(7, "host")
        assert taking.give_up() is None
        taking.take(store)
        assert list(store.coordination.locks()) == []


async def test_a_call_that_is_cancelled_while_the_store_is_busy_leaves_no_lock(
    tmp_path: Path,
) -> None:
    path = f"{tmp_path}/meta.db"
    open_store(f"sqlite:{path}").close()
    async with Client(f"sqlite:{path}") as client:
        assert await client.locks.holder_of(7) is None

        async def take() -> None:
            async with client.locks.hold(7, "host"):
                pass

        with closing(sqlite3.connect(path, isolation_level=None)) as busy:
            busy.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(take())
            await asyncio.sleep(0)
            await wait_until_async(lambda: not client._store._waiting, "the thread makes the call")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            busy.execute("ROLLBACK")
        assert await client.locks.holder_of(7) is None
    with closing(open_store(f"sqlite:{path}")) as store:
        assert store.records.children("autorecovery/locks") == []


async def test_a_release_that_was_never_made_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for its thread until its deadline is not made at all: the lock would stay with the session."""
    with closing(MemoryStore("late release")) as store:
        async with Client(store) as client:
            call, failed = client.locks._store.call, 0

            async def fails_twice(one: Callable[[MetadataStore], T]) -> T:
                nonlocal failed
                if failed < 2:
                    failed += 1
                    raise MetadataUnavailable("no answer in time")
                return await call(one)

            async with client.locks.hold(7, "host") as lock:
                assert lock is not None
                monkeypatch.setattr(client.locks._store, "call", fails_twice)
            await wait_until_async(
                lambda: not store.records.children("autorecovery/locks"), "it is released"
            )
        assert failed == 2


async def test_work_ends_with_the_lock_that_it_is_done_under(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_calls, "CHECK_INTERVAL_S", 0.01)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("it was cancelled")

    with closing(MemoryStore("lost lock")) as store:
        async with Client(store) as client, client.locks.hold(7, "host") as lock:
            assert lock is not None
            assert await client.locks.run(lock, client.locks.holder_of(7)) == "host"
            store.coordination.sessions.close()
            with pytest.raises(LockLost):
                await client.locks.run(lock, work())
    assert ended == ["it was cancelled"]
