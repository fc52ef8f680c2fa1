"""A worker between several journal/index pairs (A19): each ledger's requests go to its own pair, and a pair that stands
still holds up nobody but those who ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from fastbk.native.ffi import LayoutError
from fastbk.native.segment import SHARD_COUNT, shard_of
from fastbk.native.worker import Worker
from fastbk.observe.names import SLOTS
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.frames import KEY, answer_of
from tests.fixtures.worker_harness import (
    ADD,
    CANCEL,
    FENCE,
    FORCE,
    READ_LAC,
    Record,
    Served,
    WorkerHarness,
    greeted,
    served,
    until,
)

OK, FENCED, READ_ONLY = 0, 20, 24
MINE, THEIRS = 5, 6
"""Ledgers of the first and the second pair."""
SHARDS = [int(shard != shard_of(MINE)) for shard in range(SHARD_COUNT)]


@contextmanager
def two_pairs() -> Iterator[tuple[WorkerHarness, WorkerHarness]]:
    with WorkerHarness() as first, WorkerHarness(pair=1, epoch=first.epoch) as second:
        second.share_bell(first)
        yield first, second


@asynccontextmanager
async def two_served(*, credit: int | None = None) -> AsyncIterator[tuple[Served, Served]]:
    """The same worker twice, once with each of its pairs. `credit`: that the first pair begins with."""
    with two_pairs() as (first, second):
        if credit is not None:
            first.grant(credit)
        pairs = [first.pair, second.pair]
        async with served(first, pairs=pairs, pair_of_shard=SHARDS) as bookie:
            yield (
                bookie,
                Served(second, bookie.worker, bookie.network, bookie.port, bookie.supervisor),
            )


async def test_each_ledger_s_requests_go_to_its_pair() -> None:
    """INV-D3."""
    async with two_served() as (mine, theirs):
        client = await greeted(mine)
        for ledger, bookie in ((MINE, mine), (THEIRS, theirs)):
            client.send(frames.add(2, 0, ledger_id=ledger))
            client.send(frames.read(3, -1, flags=1, key=KEY, ledger_id=ledger))
            client.send(frames.force(4, ledger_id=ledger))
            client.send(frames.read_lac(5, 0, 60_000, ledger_id=ledger))
            records = await bookie.take(3)
            assert [record.kind for record in records] == [ADD, FENCE, FORCE]
            poll = await bookie.take_request()
            assert poll.kind == READ_LAC
            assert {record.ledger_id for record in [*records, poll]} == {ledger}
        assert mine.worker_harness.next() is None
        assert mine.worker_harness.next_request() is None
        await client.close()


async def test_acknowledgements_of_one_pair_wait_for_no_other() -> None:
    async with two_served() as (mine, theirs):
        client = await greeted(mine)
        client.send(frames.add(2, 0, ledger_id=MINE))
        client.send(frames.add(3, 0, ledger_id=THEIRS) + frames.add(4, 1, ledger_id=THEIRS))
        await mine.take(1)
        records: list[Record] = await theirs.take(2)
        theirs.worker_harness.verdict(records[1], FENCED)
        theirs.worker_harness.publish()
        assert answer_of(await client.frame()) == (3, OK)
        assert answer_of(await client.frame()) == (4, FENCED)
        assert mine.worker.pending == 1
        mine.worker_harness.publish()
        assert answer_of(await client.frame()) == (2, OK)
        await client.close()


async def test_a_pair_without_credit_holds_up_only_those_who_wait_for_it() -> None:
    """INV-R3, for each pair by itself."""
    async with two_served(credit=0) as (mine, theirs):
        stuck, other = await greeted(mine), await greeted(mine)
        stuck.send(frames.add(2, 0, ledger_id=MINE))
        await until(lambda: mine.worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_CREDIT"]) == 1)
        other.send(b"".join(frames.add(10 + n, n, ledger_id=THEIRS) for n in range(20)))
        await theirs.take(20)
        theirs.worker_harness.publish()
        for n in range(20):
            assert answer_of(await other.frame()) == (10 + n, OK)
        mine.worker_harness.grant(1 << 20)
        await mine.take(1)
        mine.worker_harness.publish()
        assert answer_of(await stuck.frame()) == (2, OK)
        await stuck.close()
        await other.close()


async def test_only_pairs_with_long_polls_hear_of_a_connection_s_end() -> None:
    async with two_served() as (mine, theirs):
        client = await greeted(mine)
        client.send(frames.read_lac(2, 5, 60_000, ledger_id=THEIRS))
        poll = await theirs.take_request()
        await client.close()
        cancel = await theirs.take_request()
        assert (cancel.kind, cancel.connection_id) == (CANCEL, poll.connection_id)
        assert mine.worker_harness.next_request() is None


async def test_one_pair_refuses_normal_adds_while_the_other_takes_them() -> None:
    async with two_served() as (mine, theirs):
        theirs.worker_harness.read_only(1)
        client = await greeted(mine)
        assert mine.worker.is_read_only, "a bookie that refuses some ledgers says so"
        client.send(frames.add(2, 0, ledger_id=THEIRS))
        assert answer_of(await client.frame()) == (2, READ_ONLY)
        client.send(frames.add(3, 0, flags=1, ledger_id=THEIRS))
        await theirs.take(1)
        client.send(frames.add(4, 0, ledger_id=MINE))
        await mine.take(1)
        await client.close()


def test_a_worker_takes_no_segments_of_another_pair() -> None:
    with two_pairs() as (first, second):
        for pairs in ([second.pair, first.pair], [second.pair], [first.pair, first.pair]):
            with pytest.raises(LayoutError):
                Worker(first.options(pairs=pairs))
        with pytest.raises(ValueError, match="at most 8"):
            Worker(first.options(pairs=[first.pair] * 9))
        with pytest.raises(OSError, match="Invalid"):  # a shard without a pair
            Worker(first.options(pairs=[first.pair], pair_of_shard=SHARDS))
        Worker(first.options(pairs=[first.pair, second.pair], pair_of_shard=SHARDS)).close()


async def test_requests_of_apaches_clients_go_to_the_pair_of_their_ledger() -> None:
    """Second steps, too; and answers of two pairs find the same connection, in whichever order they come."""
    async with two_served() as (first, second):
        client = await first.connect()
        for ledger_id in (MINE, THEIRS):
            client.send(apache.v2_add(0, body=apache.entry(1, ledger_id=ledger_id)))
            client.send(
                apache.v3_read(ledger_id, 4, previous_lac=6, timeout_ms=50, ledger_id=ledger_id)
            )
        for bookie, ledger_id in ((second, THEIRS), (first, MINE)):
            (record,) = await bookie.take(1)
            assert record.ledger_id == ledger_id
            bookie.worker_harness.publish()
            added = await apache.hear_v2(client)
            assert (added.error, added.ledger_id, added.entry_id) == (OK, ledger_id, 1)
            poll = await bookie.take_request()
            bookie.worker_harness.say(poll, "lac", 9, b"", 0, -1, b"", 0)
            read = await bookie.take_request()
            assert (read.ledger_id, read.entry_id) == (ledger_id, 4)
            bookie.worker_harness.say(read, "read", 4, 9, b"x" * 32, 32)
            reply = await apache.hear_v3(client)
            assert (reply.txn, reply.status, reply.fields[2]) == (ledger_id, apache.EOK, ledger_id)
        await client.close()
