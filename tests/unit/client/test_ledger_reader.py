"""The reader against fake bookies: replicas, digests, LAC, tailing."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import pickle
import random
import time
from typing import TYPE_CHECKING, cast

import pytest

from fastbk.client.bookie_requests import LedgerRequests
from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import SUSPECT_S, KnownBookies
from fastbk.client.ledger_reader import AVOID_S, Batch, Entry, ReadOrder
from fastbk.errors import ClientClosed, ConfigError, DigestMismatch, NoSuchEntry, NotEnoughBookies
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster, numbers, one_ledger, some_turns, written

if TYPE_CHECKING:
    from fastbk.client import Client, LedgerWriter
    from fastbk.stream.client import Client as StreamClient
    from tests.fixtures.fake_bookie import FakeBookie

CANNOT_TELL = 12


def datas(count: int) -> list[bytes]:
    return [b"entry %d" % one for one in range(count)]


async def filled(client: Client, count: int = 50, **options: object) -> LedgerWriter:
    writer = await client.create_ledger(**options)
    await writer.append_many(datas(count))
    return writer


def all_have(fakes: list[FakeBookie], ledger_id: int, count: int) -> bool:
    return all(len(fake.ids(ledger_id)) == count for fake in fakes)


@pytest.mark.uvloop_too
@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
async def test_what_was_appended_is_read_back(digest: str) -> None:
    async with fake_cluster() as (client, _, _):
        writer = await filled(client, digest=digest, password=b"secret")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id, password=b"secret")
        entries = [entry async for entry in reader.read()]
        assert [entry.entry_id for entry in entries] == list(range(50))
        assert [bytes(entry.data) for entry in entries] == datas(50)
        part = [entry.entry_id async for entry in reader.read(10, 19)]
        assert part == list(range(10, 20))
        batches = [batch async for batch in reader.read_batches(5, 8)]
        assert [one.entry_id for batch in batches for one in batch] == [5, 6, 7, 8]
        assert (batches[0].first_entry_id, batches[-1].last_entry_id) == (5, 8)
        assert b"".join(batches[0].datas).startswith(b"entry 5")


async def test_large_ranges_come_in_many_bounded_answers() -> None:
    async with fake_cluster(read_batch_bytes=2000, read_batch_entries=7) as (client, _, _):
        writer = await filled(client, 500)
        await writer.append(b"x" * 100_000)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        sizes = [len(batch) async for batch in reader.read_batches()]
        assert sum(sizes) == 501
        assert max(sizes) <= 7


@pytest.mark.slow
@pytest.mark.parametrize("quorums", [(3, 3), (4, 2)])
async def test_a_missing_damaged_or_silent_copy_is_read_from_the_next_bookie(
    quorums: tuple[int, int],
) -> None:
    ensemble, write_quorum = quorums
    async with fake_cluster(ensemble, read_timeout=1.5) as (client, fakes, _):
        writer = await filled(client, ensemble=ensemble, write_quorum=write_quorum)
        await writer.close()
        names = writer.metadata.fragments[0].ensemble
        fakes.sort(key=lambda fake: names.index(fake.bookie_id))
        fakes[0].faults.damage_reads = lambda _, entry_id: entry_id % 5 == 2
        fakes[1].faults.hide = lambda _, entry_id: entry_id % 5 == 3
        for fault in ("none", "refuses", "silent", "dead"):
            if fault == "refuses":
                fakes[2].faults.read_status = CANNOT_TELL
            elif fault == "silent":
                fakes[2].faults.read_status = 0
                fakes[2].faults.silent = True
            elif fault == "dead":
                await fakes[2].stop()
            for _ in range(3):
                reader = await client.open_ledger(writer.ledger_id)
                if (ensemble, write_quorum) == (4, 2) and fault != "none":
                    # Entries that only the damaged one and the faulty one hold cannot be had.
                    continue
                found = [bytes(entry.data) async for entry in reader.read()]
                assert found == datas(50)
        if ensemble == 4:
            found = [bytes(entry.data) async for entry in reader.read(0, 1)]
            assert found == [b"entry 0", b"entry 1"]


async def test_what_every_bookie_said_is_in_the_error() -> None:
    async with fake_cluster() as (client, fakes, _):
        reader = await written(client, datas(50))
        fakes[0].faults.damage_reads = lambda _, entry_id: entry_id == 5
        fakes[1].faults.hide = lambda _, entry_id: entry_id == 5
        fakes[2].faults.damage_reads = lambda _, entry_id: entry_id == 5
        got = []
        with pytest.raises(DigestMismatch) as caught:
            async for entry in reader.read():
                got.append(entry.entry_id)
        assert got == list(range(5))
        assert caught.value.entry_id == 5
        assert set(caught.value.replicas) == {"b0", "b1", "b2"}
        assert caught.value.replicas["b1"] == "NO_ENTRY"
        fakes[0].faults.damage_reads = fakes[2].faults.damage_reads = None
        fakes[0].faults.read_status = CANNOT_TELL
        fakes[2].faults.hide = fakes[1].faults.hide
        with pytest.raises(NoSuchEntry):
            _ = [entry async for entry in reader.read()]
        fakes[1].faults.read_status = fakes[2].faults.read_status = CANNOT_TELL
        with pytest.raises(NotEnoughBookies) as unknown:
            _ = [entry async for entry in reader.read()]
        assert set(unknown.value.replicas.values()) == {"CANNOT_TELL"}
        assert reader.stats().copies_skipped > 0


@pytest.mark.parametrize(("prefetch_batches", "under_way"), [(1, 1), (4, 4)])
async def test_leaving_an_iteration_stops_fetching(prefetch_batches: int, under_way: int) -> None:
    async with fake_cluster(read_batch_entries=2, prefetch_batches=prefetch_batches) as (
        client,
        fakes,
        _,
    ):
        reader = await written(client, datas(500))
        before = sum(fake.requests for fake in fakes)
        async with contextlib.aclosing(reader.read()) as entries:
            async for entry in entries:
                if entry.entry_id == 10:
                    break
        # What was under way arrives, and nothing more is asked for.
        asked = sum(fake.requests for fake in fakes)
        await some_turns()
        assert sum(fake.requests for fake in fakes) <= asked + under_way
        assert asked - before < 50
        assert [entry.entry_id async for entry in reader.read(3, 4)] == [3, 4]


async def test_ranges_and_readers_that_were_closed_are_refused() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await filled(client, password=b"x")
        await writer.close()
        for recovery in (True, False):
            reader = await client.open_ledger(writer.ledger_id, recovery, password=b"x")
            assert reader.is_closed
            assert await reader.last_add_confirmed() == 49
        with pytest.raises(NoSuchEntry, match="beyond the last acknowledged one, 49"):
            _ = [entry async for entry in reader.read(0, 50)]
        with pytest.raises(ConfigError, match="ascend"):
            _ = [entry async for entry in reader.read(5, 4)]
        await reader.close()
        with pytest.raises(ClientClosed):
            await reader.last_add_confirmed()


async def test_the_lac_follows_an_idle_writer_and_is_never_taken_on_trust() -> None:
    async with one_ledger(closes=True) as (client, fakes, _, writer):
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() == -1
        assert [entry async for entry in reader.read()] == []
        await writer.append_many([b"x"] * 10)

        async def lac() -> bool:
            return await reader.last_add_confirmed() == 9

        await wait_until_async(lac, "the explicit LAC")
        for fake in fakes:
            fake.faults.lac_lie = 1000
        assert await reader.last_add_confirmed() == 9
        for fake in fakes[:2]:
            fake.faults.damage_reads = lambda *_: True
        with pytest.raises(DigestMismatch, match="LAC") as caught:
            await reader.last_add_confirmed()
        assert set(caught.value.replicas.values()) == {"the copy fails its digest"}


@pytest.mark.slow
async def test_the_lac_needs_enough_answers_to_be_the_newest() -> None:
    async with fake_cluster(explicit_lac_interval=0, read_timeout=0.3) as (client, fakes, _):
        writer = await filled(client)
        await wait_until_async(lambda: all_have(fakes, writer.ledger_id, 50), "all copies")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        fakes[0].faults.silent = True
        assert await reader.last_add_confirmed() <= 49
        fakes[1].faults.silent = True
        with pytest.raises(NotEnoughBookies):
            await reader.last_add_confirmed()
        await writer.close()


async def test_unconfirmed_entries_are_read_up_to_the_first_missing() -> None:
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger(ack_quorum=3)
        await writer.append_many([b"x"] * 5)
        fakes[2].faults.swallow_adds = True
        futures = [writer.append_nowait(b"y") for _ in range(5)]
        await wait_until_async(lambda: all_have(fakes[:2], writer.ledger_id, 10), "two copies")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        found = await reader.read_unconfirmed(0, 100)
        assert [entry.entry_id for entry in found] == list(range(10))
        fakes[2].faults.swallow_adds = False
        fakes[2].cut()
        await asyncio.gather(*futures)
        await writer.close()


@pytest.mark.uvloop_too
async def test_a_tail_follows_the_writer_to_the_end() -> None:
    async with one_ledger(poll_interval=0.2) as (client, _, _, writer):
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        seen: list[int] = []

        async def follow() -> None:
            async for entry in reader.tail(2):
                assert bytes(entry.data) == b"%d" % entry.entry_id
                seen.append(entry.entry_id)

        task = asyncio.create_task(follow())
        for one in range(5):
            await writer.append(b"%d" % one)
        await wait_until_async(lambda: seen == [2, 3, 4], "the idle writer's last entry")
        await writer.append_many(numbers(5, 300))
        await wait_until_async(lambda: seen == list(range(2, 300)), "a burst")
        await writer.append(b"300")
        await writer.close()
        await asyncio.wait_for(task, 5)
        assert seen == list(range(2, 301))


async def test_a_tail_by_batches_hands_out_together_what_came_together() -> None:
    async with fake_cluster(poll_interval=0.2) as (client, _, _):
        writer = await filled(client, 500)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        await reader.last_add_confirmed()
        sizes: list[int] = []
        seen, tail = 3, reader.tail_batches(3)
        async for batch in tail:
            assert batch.first_entry_id == seen
            seen = batch.last_entry_id + 1
            sizes.append(len(batch))
            if seen == 500:
                await writer.append(b"alone")
                await writer.close()
        assert seen == 501 and len(sizes) < 20, "no object an entry"


@pytest.mark.parametrize("call", ["read", "read_batches", "tail", "tail_batches"])
async def test_an_iterator_that_has_raised_or_was_cancelled_is_never_at_its_end(call: str) -> None:
    """INV-C6: whoever asked again was told that nothing comes any more."""
    async with fake_cluster() as (client, fakes, _):
        writer = await filled(client, 20)
        held = await client.open_ledger(writer.ledger_id, recovery=False)
        tail = held.tail(20)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(tail), 0.01)
        with pytest.raises(ClientClosed, match="was cancelled: begin another one"):
            await anext(tail)
        await writer.close()
        for fake in fakes:
            fake.faults.hide = lambda _, entry_id: entry_id == 10
        reader = await client.open_ledger(writer.ledger_id)
        entries, seen = getattr(reader, call)(0), 0
        for _ in range(3):
            with pytest.raises(NoSuchEntry):
                while True:
                    item = await anext(entries)
                    seen += len(item) if call.endswith("batches") else 1
        assert seen == 10
        await entries.aclose()


@pytest.mark.slow
async def test_a_tail_outlives_a_bookie_and_reports_the_loss_of_all() -> None:
    async with fake_cluster(poll_interval=0.05, read_timeout=0.4) as (client, fakes, _):
        writer = await filled(client, 5)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        seen: list[int] = []

        async def follow() -> None:
            async for entry in reader.tail():
                seen.append(entry.entry_id)

        task = asyncio.create_task(follow())
        await wait_until_async(lambda: len(seen) == 5, "the start")
        await fakes[0].stop()
        await writer.append(b"x")
        await wait_until_async(lambda: len(seen) == 6, "goes on without one")
        for fake in fakes[1:]:
            await fake.stop()
        with pytest.raises(NotEnoughBookies, match="tail again"):
            await asyncio.wait_for(task, 5)
        for fake in fakes:
            await fake.start()
        await writer.close()


async def test_an_idle_tail_makes_no_calls_of_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watches stand: neither the ledger's reader nor the stream's looks at what they would tell."""
    async with fake_cluster(poll_interval=0.01) as (client, fakes, _):
        namespace = cast("StreamClient", client).namespace("idle")
        await namespace.create()
        stream = await namespace.create_stream("s")
        ledger = await client.create_ledger()
        async with stream.writer() as writer, stream.reader() as reader:
            await writer.append(b"x")
            assert len(await reader.read() or ()) == 1
            await ledger.append(b"x")
            tail = (await client.open_ledger(ledger.ledger_id, recovery=False)).tail()
            await anext(tail)
            waiting = [asyncio.ensure_future(reader.read()), asyncio.ensure_future(anext(tail))]

            async def polls(count: int) -> None:
                wanted = sum(fake.requests for fake in fakes) + count
                await wait_until_async(
                    lambda: sum(fake.requests for fake in fakes) >= wanted, "polls"
                )

            await polls(30)  # until both follow
            calls: list[object] = []
            monkeypatch.setattr(client._store, "_call_store", lambda call: calls.append(call))
            await polls(200)
            assert not calls
            monkeypatch.undo()
            await asyncio.gather(writer.append(b"y"), ledger.append(b"y"))
            await asyncio.wait_for(asyncio.gather(*waiting), 5)
        await tail.aclose()
        await ledger.close()


async def test_a_tail_keeps_up_with_a_writer_that_never_falls_idle() -> None:
    async with one_ledger(explicit_lac_interval=0) as (client, _, _, writer):
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        seen = 0

        async def follow() -> None:
            nonlocal seen
            async for entry in reader.tail():
                assert entry.entry_id == seen
                seen += 1

        task = asyncio.create_task(follow())
        while seen < 200:
            await asyncio.wait_for(writer.append(b"x"), 5)
            assert not task.done()
        await writer.close()
        await task
        assert seen == writer.last_add_confirmed + 1


async def test_a_fault_of_ours_ends_a_read_and_does_not_hang_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster() as (client, _, _):
        reader = await written(client, datas(50))

        def broken(*_: object) -> None:
            raise RuntimeError("not an error that bookies cause")

        monkeypatch.setattr(LedgerRequests, "reply", broken)
        async with asyncio.timeout(5):
            with pytest.raises(RuntimeError, match="not an error"):
                async for _ in reader.read():
                    pass


# --- batches that are read ahead -------------------------------------------------------------------------------------

AHEAD = {"read_batch_entries": 7, "prefetch_batches": 5, "read_timeout": 5.0}


@pytest.mark.parametrize("speculative_read", [0.0, 0.02])
async def test_order_is_kept_whatever_bookies_do(speculative_read: float) -> None:
    rng = random.Random(7)
    async with fake_cluster(**AHEAD, speculative_read=speculative_read) as (client, fakes, _):
        writer = await filled(client, 500)
        await writer.close()
        fakes[0].faults.damage_reads = lambda _, entry_id: entry_id % 40 == 2
        fakes[1].faults.hide = lambda _, entry_id: entry_id % 40 == 13
        for fake in fakes:
            fake.faults.delay_s = lambda: rng.choice([0, 0, 0, 0.001, 0.005])
        for _ in range(2):
            reader = await client.open_ledger(writer.ledger_id)
            batches = [batch async for batch in reader.read_batches()]
            found = [bytes(data) for batch in batches for data in batch.datas]
            assert found == datas(500)
            assert max(map(len, batches)) <= 7


async def test_a_bookie_that_falls_silent_while_it_is_read_costs_no_entry() -> None:
    async with fake_cluster(**AHEAD, speculative_read=0.02) as (client, fakes, _):
        reader = await written(client, datas(500))
        found: list[bytes] = []
        async for entry in reader.read():
            if entry.entry_id == 100:
                asked = max(fakes, key=lambda fake: fake.requests)
                asked.faults.silent = True
            found.append(bytes(entry.data))
        assert found == datas(500)


# Reads around bookies that are slow, silent, busy or away: whom a reader asks, and for how long
# (INV-B1).


PATIENT_S = 30.0
"""A timeout that no test waits for."""
SOON_S = 10.0


async def stop_all(fakes: list[FakeBookie]) -> None:
    for fake in fakes:
        await fake.stop()


@pytest.mark.slow
async def test_a_read_outlives_the_absence_of_every_bookie() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        reader = await written(client, numbers(0, 50))
        await stop_all(fakes)

        async def read() -> list[bytes]:
            return [bytes(entry.data) async for entry in reader.read()]

        reading = asyncio.create_task(read())
        done, _ = await asyncio.wait([reading], timeout=0.3)
        assert not done, "nobody is there: it waits"
        for fake in fakes[1:]:
            await fake.start()
        assert await asyncio.wait_for(reading, SOON_S) == numbers(0, 50)


@pytest.mark.slow
async def test_the_lac_of_an_open_ledger_is_asked_for_until_enough_bookies_are_back() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        writer = await client.create_ledger(write_quorum=3, ack_quorum=2)
        for one in range(5):  # each carries the LAC before it
            await writer.append(b"%d" % one)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        await stop_all(fakes)
        asking = asyncio.create_task(reader.last_add_confirmed())
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        for fake in fakes[:2]:
            await fake.start()
        assert await asyncio.wait_for(asking, SOON_S) >= 3
        fakes[1].faults.read_status = fakes[2].faults.read_status = Status.CANNOT_TELL
        await fakes[2].start()
        with pytest.raises(NotEnoughBookies) as caught:
            await asyncio.wait_for(reader.last_add_confirmed(), SOON_S)
        assert caught.value.replicas["b1"] == "CANNOT_TELL"


@pytest.mark.parametrize("status", [Status.NOT_READY, Status.TOO_MANY_REQUESTS])
async def test_a_read_outlives_busy_bookies(status: int) -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        reader = await written(client, [b"x"])
        for fake in fakes:
            fake.faults.read_status = status
        reading = asyncio.create_task(reader.read_unconfirmed(0, 0))
        done, _ = await asyncio.wait([reading], timeout=0.2)
        assert not done
        fakes[2].faults.read_status = 0
        (entry,) = await asyncio.wait_for(reading, SOON_S)
        assert bytes(entry.data) == b"x"


@pytest.mark.slow
async def test_bookies_that_stay_away_end_a_read_with_its_time_and_their_reasons() -> None:
    async with fake_cluster(read_timeout=0.5) as (client, fakes, _):
        reader = await written(client, [b"x"])
        await stop_all(fakes)
        began_s = time.monotonic()
        with pytest.raises(NotEnoughBookies) as caught:
            _ = [entry async for entry in reader.read()]
        assert time.monotonic() - began_s >= 0.4
        assert set(caught.value.replicas) == {"b0", "b1", "b2"}
        assert all("127.0.0.1:" in said for said in caught.value.replicas.values())


async def test_bad_digests_and_proven_absence_are_not_waited_for() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        reader = await written(client, [b"x"])
        for fake in fakes:
            fake.faults.damage_reads = lambda _, entry_id: True
        async with asyncio.timeout(SOON_S):
            with pytest.raises(DigestMismatch):
                _ = [entry async for entry in reader.read()]
            await fakes[0].stop()
            fakes[1].faults.damage_reads = fakes[2].faults.damage_reads = None
            fakes[1].faults.hide = fakes[2].faults.hide = lambda _, entry_id: True
            with pytest.raises(NoSuchEntry):
                _ = [entry async for entry in reader.read()]


def test_whoever_fails_or_is_slow_comes_last_for_a_while() -> None:
    known = KnownBookies(ClientConfig())
    order = ReadOrder(known, 1, is_striped=False)
    assert list(order.at(0.0)(["a", "b", "c"])) == ["b", "c", "a"]
    order.were_slow(["b"])
    assert list(order(["a", "b", "c"])) == ["c", "a", "b"]
    known.failed("c", 0.0)
    assert list(order(["a", "b", "c"])) == ["a", "b", "c"], "slow is better than failing"
    later_s = max(AVOID_S, SUSPECT_S) + 1
    assert list(order.at(later_s)(["a", "b", "c"])) == ["b", "c", "a"]
    striped = ReadOrder(known, 1, is_striped=True)
    assert list(striped.at(later_s)(["a", "b", "c"])) == ["a", "b", "c"], "the longest run first"
    assert list(order([])) == []


@pytest.mark.slow
@pytest.mark.uvloop_too
@pytest.mark.parametrize("how", [{"speculative_read": 0.05}, {"parallel_reads": True}])
async def test_a_read_does_not_wait_for_a_silent_bookie(how: dict[str, object]) -> None:
    async with one_ledger(read_timeout=PATIENT_S, **how) as (client, fakes, _, writer):
        await writer.append_many(numbers(0, 20))
        await writer.close()
        for silent in fakes:
            silent.faults.silent = True
            for _ in range(3):  # whomever the reader begins with
                reader = await client.open_ledger(writer.ledger_id)
                async with asyncio.timeout(PATIENT_S / 6):
                    found = [bytes(one.data) async for one in reader.read()]
                assert found == numbers(0, 20)
            silent.faults.silent = False
            silent.cut()  # a hello that it swallowed is not answered later


@pytest.mark.slow
async def test_without_speculation_the_silent_one_costs_its_share_of_the_time() -> None:
    async with one_ledger(read_timeout=4.0, speculative_read=0) as (client, fakes, _, writer):
        await writer.append(b"x")
        await writer.close()
        for fake in fakes[:2]:
            fake.faults.silent = True
        reader = await client.open_ledger(writer.ledger_id)
        began_s = time.monotonic()
        (entry,) = [one async for one in reader.read()]
        assert bytes(entry.data) == b"x"
        assert time.monotonic() - began_s < 4.0


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with one_ledger(read_timeout=PATIENT_S) as (client, fakes, _, writer):
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.read_status = Status.NOT_READY
        opening = asyncio.create_task(client.open_ledger(writer.ledger_id))
        done, _ = await asyncio.wait([opening], timeout=0.1)
        assert not done
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(opening, 5)
        assert not client.pool.runs


async def test_a_ledger_with_a_weak_quorum_is_made_with_one_warning() -> None:
    from fastbk.errors import WeakQuorumWarning

    async with fake_cluster() as (client, _, _):
        with pytest.warns(WeakQuorumWarning, match="losing 1 may lose") as told:
            first = await client.create_ledger(3, 3, 1)
        assert [one.filename for one in told] == [__file__]
        second = await client.create_ledger(3, 3, 1)  # a second warning would be an error
        await first.close()
        await second.close()
        with pytest.raises(ConfigError):
            await client.create_ledger(3, 3, 0)


# What readers of ledgers hand out can be kept, copied, pickled and printed, as records of streams
# can.


async def test_entries_and_batches_go_through_pickle_and_say_what_they_are() -> None:
    async with fake_cluster() as (client, _, _):
        async with await client.create_ledger() as writer:
            await writer.append_many([b'{"n": %d}' % one for one in range(20)])
        reader = await client.open_ledger(writer.ledger_id)
        entries = [one async for one in reader.read()]
        batches = [one async for one in reader.read_batches(0, 19)]
        for entry in entries:
            assert type(entry.value) is bytes and entry.value == entry.data
            assert json.loads(entry.value) == {"n": entry.entry_id}
            for copied in (
                pickle.loads(pickle.dumps(entry)),
                copy.deepcopy(entry),
                copy.copy(entry),
            ):
                assert copied == entry and isinstance(copied.data, memoryview)
        assert (
            repr(entries[7]) == f"<Entry 7 of ledger {writer.ledger_id}: 8 bytes b'{{\"n\": 7}}'>"
        )
        for batch in batches:
            assert (
                repr(batch) == f"<Batch of ledger {writer.ledger_id}: 20 entries from 0, 170 bytes>"
            )
            for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
                assert isinstance(again, Batch) and list(again) == list(batch) == entries
                assert (again.lengths, again.size_bytes, len(again)) == (
                    batch.lengths,
                    batch.size_bytes,
                    20,
                )
                assert [bytes(one) for one in again.datas] == [one.value for one in entries]
                assert [len(one) for one in again.tables()] == [len(one) for one in batch.tables()]


def test_large_entries_are_shown_in_part() -> None:
    shown = repr(Entry(3, 4, memoryview(bytes(1 << 20))))
    assert shown.startswith("<Entry 4 of ledger 3: 1048576 bytes b'") and len(shown) < 300
