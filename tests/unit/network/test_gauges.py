"""What a worker says is under way and what waits, for Apache's clients and ours, until all is answered."""

from __future__ import annotations

from fastbk.observe.names import SLOTS
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import hear_v3
from tests.fixtures.worker_harness import Served, WorkerHarness, served


def under_way(worker_harness: WorkerHarness, bookie: Served) -> list[int]:
    """Adds and reads in progress, connections that wait to get there, and bytes in the rings."""
    bookie.worker.sweep()
    names = (
        "ADDS_IN_PROGRESS",
        "READS_IN_PROGRESS",
        "ADDS_BLOCKED",
        "READS_BLOCKED",
        "RING_BYTES",
    )
    return [worker_harness.counter(SLOTS[f"FBK_C_WORKER_{name}"]) for name in names]


async def test_what_is_under_way_and_what_waits() -> None:
    with WorkerHarness() as worker_harness:
        async with served(
            worker_harness, apache_adds_in_progress_max=2, apache_reads_in_progress_max=1
        ) as bookie:
            client, reader = await bookie.connect(), await bookie.connect()
            client.send(b"".join(apache.v3_add(txn, txn) for txn in range(3)))
            adds = await bookie.take(2)
            reader.send(apache.v3_read(10, 1) + apache.v3_read(11, 1))
            read = await bookie.take_request()
            bytes_of_two = 2 * (96 + 48)
            assert len(apache.entry(0)) <= 48
            assert under_way(worker_harness, bookie) == [2, 1, 1, 1, bytes_of_two]
            worker_harness.publish()
            assert [(await hear_v3(client)).txn for _ in adds] == [0, 1]
            await bookie.take(1)
            assert under_way(worker_harness, bookie) == [1, 1, 0, 1, bytes_of_two // 2]
            worker_harness.publish()
            assert (await hear_v3(client)).txn == 2
            worker_harness.say(read, "status", 0)
            assert (await hear_v3(reader)).txn == 10
            worker_harness.say(await bookie.take_request(), "status", 0)
            assert (await hear_v3(reader)).txn == 11
            assert under_way(worker_harness, bookie) == [0, 0, 0, 0, 0]
            await client.close()
            await reader.close()


async def test_a_poll_is_not_in_progress() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_read(3, 4, previous_lac=6, timeout_ms=50))
            await bookie.take_request()
            assert under_way(worker_harness, bookie) == [0, 0, 0, 0, 0]
            await client.close()
