"""A bookie that is emptied while it runs, under load: no append fails, and nobody is told that somebody fenced."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import fastbk
from fastbk.admin.healing import BookieRecovery, RecoveryPlan
from fastbk.stream.context import StreamContext
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import beats, wait_until_async

RECORD = b"x" * 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One bookie more than the tests take away, beside those that a ledger needs."""
    with LocalCluster(5) as made:
        yield made


async def test_emptying_a_bookie_that_takes_adds_fails_no_append_of_a_stream(
    cluster: LocalCluster,
) -> None:
    """Open ledgers that nobody writes to are closed, as that of a prepared segment. The writer ended at the roll."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        context = await stream_of(client, "emptied")
        async with StreamWriter(context, WriterOptions()) as writer:
            payloads: list[bytes] = []

            async def append(count: int) -> None:
                for _ in range(count):
                    payloads.append(b"%d " % len(payloads) + RECORD)
                    await writer.append(payloads[-1])

            await append(120)  # more than half of the segment: the next one is prepared
            engine = writer._engine
            assert engine is not None
            await wait_until_async(lambda: engine.lifecycle.ready is not None, "the next is made")
            assert engine.lifecycle.ready is not None
            prepared = engine.lifecycle.ready.ledger
            bookie_id = prepared.metadata.fragments[0].ensemble[0]
            plan = RecoveryPlan(even_if_alive=True, grace_s=0.0)
            assert (await BookieRecovery(client, bookie_id, plan).run()).is_whole
            assert (await client.ledger_info(prepared.ledger_id)).metadata.is_closed
            await append(300)
        await check(client, "emptied", payloads)


async def test_a_drain_and_a_decommission_under_load_fail_no_append(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        cli = Cli(cluster.metadata_uri)
        context = await stream_of(client, "drained")
        idle = await client.create_ledger(3, 3, 2)
        async with (
            StreamWriter(context, WriterOptions()) as writer,
            await client.create_ledger(3, 3, 2) as ledger,
        ):
            payloads: list[bytes] = []
            is_over = False

            async def append_records() -> None:
                async for _ in beats(0.001):
                    if is_over:
                        return
                    payloads.append(b"%d " % len(payloads) + RECORD)
                    await writer.append(payloads[-1])

            async def append_entries() -> int:
                count = 0
                async for _ in beats(0.001):
                    if is_over:
                        break
                    assert await ledger.append(RECORD) == count
                    count += 1
                return count

            load = [asyncio.create_task(append_records()), asyncio.create_task(append_entries())]
            used = Counter(
                ledger.metadata.fragments[0].ensemble + idle.metadata.fragments[0].ensemble
            )
            bookie_id = used.most_common(1)[0][0]
            at = [one.name for one in cluster.bookies].index(bookie_id)
            code, _, said = await cli.answer_async(
                "bookie", "maintenance", bookie_id, "--for", "1h"
            )
            assert code == 0, said
            words = ("bookie", "recover", bookie_id, "--even-if-alive")
            code, answer, said = await cli.answer_async(*words)
            assert code == 0, said
            assert answer["entries_lost"] == 0
            await cluster.stop_bookie_async(at)
            code, _, said = await cli.answer_async("bookie", "decommission", bookie_id, "--yes")
            assert code == 0, said
            await idle.append(b"after it")
            await idle.close()
            is_over = True
            _, count = await asyncio.gather(*load)
        await check(client, "drained", payloads)
        assert (await client.ledger_info(ledger.ledger_id)).metadata.last_entry_id == count - 1


async def stream_of(client: fastbk.Client, name: str) -> StreamContext:
    namespace = client.namespace(name)
    await namespace.create(PolicyPatch(roll_bytes=200_000))
    return await (await namespace.create_stream("s")).context()


async def check(client: fastbk.Client, name: str, payloads: list[bytes]) -> None:
    found: list[bytes] = []
    async with client.namespace(name).stream("s").reader(tail=False) as reader:
        async for record in reader:
            found.append(bytes(record.payload))
    assert found == payloads
