"""Whatever is appended, rolled and away: appends go on (S13), and a tailing reader has all of it by itself (S16)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.errors import MetadataUnavailable
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.reader import read_ahead
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk
from fastbk.stream.writer import segment_lifecycle
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import new_stream, writer_of

PATIENCE_S = 10.0
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("batch"), st.integers(1, 5)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("away"), st.integers(1, 30)),
        st.tuples(st.just("turns"), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=12,
)


class Away(Plan):
    """Metadata is away, while told so."""

    def __init__(self) -> None:
        self.is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away and what.startswith("metadata"):
            raise MetadataUnavailable("it is away")


async def _read(reader: StreamReader, count: int) -> list[int]:
    """Return the ids of what comes, in the time that it may take."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            chunk = await reader.read()
            assert isinstance(chunk, Chunk)
            found += chunk.txids()
    return found


async def _history(steps: list[tuple[str, int]]) -> None:
    plan = Away()
    cluster = Cluster(plan)
    context = await new_stream(cluster)
    txid = 0
    async with writer_of(cluster, StreamPolicy(roll_bytes=600)) as writer:
        await writer.append(b"the first one makes a segment")
        async with StreamReader(context) as reader:
            assert await _read(reader, 1) == [0]
            for step, count in steps:
                begin = txid
                if step == "roll":
                    await writer.roll()
                elif step == "turns":
                    for _ in range(count):
                        await asyncio.sleep(0)
                else:
                    plan.is_away = step == "away"
                    futures: list[asyncio.Future[DLSN]] = []
                    if step == "batch":
                        futures.append(writer.append_batch_nowait([bytes(50)] * count))
                    else:
                        futures += [writer.append_nowait(bytes(100)) for _ in range(count)]
                    txid += count
                    await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
                    plan.is_away = False
                # Nothing more is appended: what is acknowledged comes into sight by itself.
                assert await _read(reader, txid - begin) == list(range(begin + 1, txid + 1))


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_what_is_acknowledged_is_seen_without_another_append(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (read_ahead, segment_lifecycle):
            patch.setattr(module, "AGAIN_S", 0.001)
            patch.setattr(module, "AGAIN_S_MAX", 0.01)
        asyncio.run(_history(steps))


def _hidden(cluster: Cluster) -> list[int]:
    """Return how many acknowledged entries of each ledger readers cannot see at this moment."""
    return [ledger.acknowledged - ledger.visible for ledger in cluster.ledgers.values()]


@pytest.mark.parametrize("tasks", [1, 2, 30])
async def test_readers_see_a_record_before_its_appender_goes_on(tasks: int) -> None:
    """INV-S17: whatever the appender does then, such as to keep the loop for itself."""
    cluster = Cluster()
    await new_stream(cluster)
    async with writer_of(cluster, StreamPolicy(roll_bytes=2000), entries_in_flight=3) as writer:
        await writer.append(b"the first one makes a segment")

        async def append(number: int) -> None:
            for at in range(10):
                await writer.append(b"%d" % number * (1 + at))
                assert not any(_hidden(cluster))

        await asyncio.gather(*map(append, range(tasks)))


class _Stop(Exception):
    pass


@pytest.mark.parametrize("publish", ["immediate", "piggyback"])
async def test_readers_see_what_a_block_that_failed_has_appended(publish: str) -> None:
    """INV-S17"""
    cluster = Cluster()
    context = await new_stream(cluster)
    with suppress(_Stop):
        async with writer_of(cluster, publish=publish) as writer:
            await writer.append(b"0")
            raise _Stop
    async with StreamReader(context) as reader:
        assert await _read(reader, 1) == [0]
