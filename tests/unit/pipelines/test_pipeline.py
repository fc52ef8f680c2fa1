"""Pipelines on ledgers in memory: outputs are exact over crashes, takeovers and whatever else happens to a sink.

INV-S44, INV-S45, INV-S46 with real writers, readers and entries: fastbk/pipelines/README.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

import fastbk
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    Error,
    NotEnoughBookies,
    PositionTruncated,
    RecordTooLarge,
    WriterFenced,
)
from fastbk.formats import LEVEL_MAX
from fastbk.meta.format_level import LEVEL_PATH
from fastbk.meta.records import Change
from fastbk.pipelines.pipeline import Output, Pipeline, pipeline
from fastbk.pipelines.sink import sources_of_log
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Chunk, Record
from fastbk.stream.stream import Stream
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.fixtures.streams import context_of, new_stream, records_of

SOURCES = ("a1", "a2")
SINKS = ("b1", "b2")
SEEDS = 20


def stream_of(client: FakeClient, stream_id: str, policy: StreamPolicy | None = None) -> Stream:
    return Stream(cast("Any", None), ("test",), stream_id, context_of(client, policy, stream_id))


async def cluster_of(
    plan: Plan | None = None, streams: Sequence[str] = (*SOURCES, *SINKS)
) -> Cluster:
    cluster = Cluster(plan or Plan())
    for stream_id in streams:
        await new_stream(cluster, stream_id)
    return cluster


async def write(cluster: Cluster, stream_id: str, first: int, count: int) -> None:
    async with StreamWriter(
        context_of(cluster.client(), None, stream_id), WriterOptions()
    ) as writer:
        for number in range(first, first + count):
            await writer.append(b"%s %d" % (stream_id.encode(), number))


async def payloads_of(cluster: Cluster, stream_id: str) -> list[bytes]:
    return [bytes(record.payload) for record in await records_of(cluster, stream_id)]


async def crash(client: FakeClient, running: Pipeline) -> None:
    """Have a process die: nothing of it happens any more."""
    client.crash()
    for sink in running._sinks.values():
        if sink._engine is not None:
            sink.abort()
    for source in running._sources:
        await source.close()
    # What it waits for never comes.
    ledgers = [
        ledger
        for sink in running._sinks.values()
        if sink._engine
        for ledger in sink._engine._ledgers
    ]
    tasks = [task for ledger in ledgers for task in cast("Any", ledger)._tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def doubled(record: Record) -> list[bytes]:
    """Return two outputs of a record, none of every third."""
    number = int(bytes(record.payload).split()[1])
    return [] if number % 3 == 2 else [record.value + b"!", record.value + b"?"]


def expected(stream_id: str, count: int) -> list[bytes]:
    return [
        b"%s %d%s" % (stream_id.encode(), number, mark)
        for number in range(count)
        if number % 3 != 2
        for mark in (b"!", b"?")
    ]


async def test_outputs_are_stored_once_over_runs() -> None:
    cluster = await cluster_of()
    for first in (0, 7, 14):
        await write(cluster, "a1", first, 7)
        client = cluster.client()
        async with pipeline(
            source=stream_of(client, "a1"), sinks=stream_of(client, "b1"), transform=doubled
        ) as running:
            stats = await running.run(until_caught_up=True)
        assert stats.records == 7
        assert stats.lag.records == 0
    assert await payloads_of(cluster, "b1") == expected("a1", 21)


async def test_chunks_are_transformed_together_and_keys_and_headers_stay() -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 5)

    def each(chunk: Chunk) -> list[Any]:
        return [
            None
            if index == 1
            else Output(view, key=b"k%d" % index, headers={"n": b"%d" % index})
            if index % 2
            else bytes(view)
            for index, view in enumerate(chunk.payloads())
        ]

    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"), sinks=[stream_of(client, "b1")], transform_many=each
    ) as running:
        await running.run(until_caught_up=True)
        assert running.positions == {"b1": {"test/a1": DLSN(1, 5, 0)}}
    records = await records_of(cluster, "b1")
    assert [record.value for record in records] == [b"a1 0", b"a1 2", b"a1 3", b"a1 4"]
    assert [record.key for record in records] == [None, None, b"k3", None]
    assert records[2].headers == (("n", b"3"),)


async def test_transforms_may_wait() -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 5)

    async def slowly(record: Record) -> bytes:
        await asyncio.sleep(0)
        return record.value

    async def slowly_many(chunk: Chunk) -> list[bytes]:
        await asyncio.sleep(0)
        return [bytes(view) for view in chunk.payloads()]

    client = cluster.client()
    source = stream_of(client, "a1")
    async with pipeline(source=source, sinks=stream_of(client, "b1"), transform=slowly) as one:
        await one.run(until_caught_up=True)
    async with pipeline(
        source=source, sinks=stream_of(client, "b2"), transform_many=slowly_many
    ) as many:
        await many.run(until_caught_up=True)
    assert await payloads_of(cluster, "b1") == await payloads_of(cluster, "b2")
    assert len(await payloads_of(cluster, "b1")) == 5


async def test_a_transform_that_raises_ends_the_run_behind_what_was_before() -> None:
    """What it made is stored, and the record that it failed at comes again."""
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 6)
    is_broken = True

    def fragile(record: Record) -> bytes:
        if is_broken and record.value == b"a1 4":
            raise ZeroDivisionError("this one")
        return record.value

    client = cluster.client()
    streams = {"source": stream_of(client, "a1"), "sinks": stream_of(client, "b1")}
    for _ in range(2):
        async with pipeline(**streams, transform=fragile) as running:
            with pytest.raises(ZeroDivisionError):
                await running.run(until_caught_up=True)
            assert running.positions == {"b1": {"test/a1": DLSN(1, 4, 0)}}
            with pytest.raises(ClientClosed):
                await running.run(until_caught_up=True)
        assert await payloads_of(cluster, "b1") == [b"a1 %d" % number for number in range(4)]
    is_broken = False
    async with pipeline(**streams, transform=fragile) as running:
        await running.run(until_caught_up=True)
    assert await payloads_of(cluster, "b1") == [b"a1 %d" % number for number in range(6)]


class UnreadablePlan(Plan):
    """No ledger can be opened while `is_away`."""

    is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away and what == "open":
            raise NotEnoughBookies("bookies are away")


async def test_a_source_that_cannot_be_read_now_ends_no_pipeline() -> None:
    plan = UnreadablePlan()
    cluster = await cluster_of(plan)
    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"),
        sinks=stream_of(client, "b1"),
        transform=lambda record: record.value,
    ) as running:
        plan.is_away = True  # the reader opens a segment as soon as the chain has it
        await write(cluster, "a1", 0, 3)
        with pytest.raises(NotEnoughBookies):
            await running.run()
        plan.is_away = False
        assert (await running.run(until_caught_up=True)).records == 3


@pytest.mark.parametrize("wrong", ["text", 7, [b"a", "b"], [Output(b"a", sink="b9")]])
async def test_wrong_outputs_end_the_run_behind_what_was_before(wrong: object) -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"),
        sinks=stream_of(client, "b1"),
        transform=lambda record: cast("Any", wrong) if record.seq == 2 else [record.value],
    ) as running:
        with pytest.raises(ConfigError):  # WrongType is one
            await running.run(until_caught_up=True)
    assert await payloads_of(cluster, "b1") == [b"a1 0", b"a1 1"]
    assert await run_once(cluster) == 2
    assert await payloads_of(cluster, "b1") == [b"a1 %d" % number for number in range(4)]


@pytest.mark.parametrize("many", [False, True])
async def test_outputs_of_one_record_that_no_entry_takes_are_refused(many: bool) -> None:
    """INV-S44: they are never spread over two entries, and those of the records before are stored."""
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 3)
    client = cluster.client()
    streams = {"source": stream_of(client, "a1"), "sinks": stream_of(client, "b1")}
    if many:
        made = pipeline(
            **streams,
            transform_many=lambda _: [b"a", b"b", bytes(2000)],
            entry_bytes_max=2000,
        )
    else:
        made = pipeline(
            **streams,
            transform=lambda record: [bytes(300)] * (9 if record.seq == 2 else 3),
            entry_bytes_max=2000,
            batch_bytes=1,
        )
    async with made as running:
        with pytest.raises(RecordTooLarge, match=r"1\.2\.0"):
            await running.run(until_caught_up=True)
    assert len(await payloads_of(cluster, "b1")) == (2 if many else 6)
    assert await run_once(cluster) == 1


async def test_several_sinks_need_a_deterministic_transform() -> None:
    cluster = await cluster_of()
    client = cluster.client()
    sinks = [stream_of(client, name) for name in SINKS]
    with pytest.raises(ConfigError, match="deterministic"):
        pipeline(source=stream_of(client, "a1"), sinks=sinks, transform=doubled)
    with pytest.raises(ConfigError, match="twice"):
        await pipeline(source=sinks[0], sinks=sinks[0], transform=doubled).open()
    with pytest.raises(ConfigError):
        pipeline(source=sinks[0], sinks=sinks[1])
    await write(cluster, "a1", 0, 1)
    async with pipeline(
        source=stream_of(client, "a1"), sinks=sinks, transform=doubled, deterministic=True
    ) as running:
        with pytest.raises(ConfigError, match="b1, b2"):
            await running.run(until_caught_up=True)


async def test_a_cluster_below_level_4_has_no_pipelines() -> None:
    """INV-U1: older readers refuse the entries."""
    cluster = await cluster_of()
    client = cluster.client()
    held = cluster.records.values[LEVEL_PATH]
    level = b'{"level": %d}' % (LEVEL_MAX - 1)
    await client.records.change(Change(LEVEL_PATH, level, held.version))
    before = await context_of(client, None, "b1").store.read()
    with pytest.raises(ConfigError, match="finalize"):
        await pipeline(
            source=stream_of(client, "a1"), sinks=stream_of(client, "b1"), transform=doubled
        ).open()
    assert await context_of(client, None, "b1").store.read() == before


# --- where it goes on -----------------------------------------------------------------------------------------------


async def run_once(cluster: Cluster, **options: Any) -> int:
    """Run a pipeline to the end; return how many records it read."""
    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"),
        sinks=stream_of(client, "b1"),
        transform=lambda record: record.value,
        **options,
    ) as running:
        return (await running.run(until_caught_up=True)).records


async def test_what_others_append_to_a_sink_changes_nothing() -> None:
    """INV-S45: an ordinary writer fences the pipeline; the next one finds its last entry before the writer's."""
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"),
        sinks=stream_of(client, "b1"),
        transform=lambda record: record.value,
    ) as running:
        await running.run(until_caught_up=True)
        await write(cluster, "b1", 100, 2)
        await write(cluster, "a1", 4, 2)
        with pytest.raises(WriterFenced):
            await running.run(until_caught_up=True)
    await write(cluster, "b1", 102, 1)
    assert await run_once(cluster) == 2
    await write(cluster, "b1", 103, 0)  # opened, and nothing appended
    assert await run_once(cluster) == 0
    assert await payloads_of(cluster, "b1") == [
        *(b"a1 %d" % number for number in range(4)),
        b"b1 100",
        b"b1 101",
        b"b1 102",
        b"a1 4",
        b"a1 5",
    ]


async def test_a_sink_that_has_records_of_others_only_is_begun_at_the_start() -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    await write(cluster, "b1", 100, 2)
    assert await run_once(cluster) == 4


async def test_a_sink_whose_positions_were_deleted_is_refused() -> None:
    """INV-S45: it may have had outputs that nothing says any more. The option begins anew, and only there."""
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    assert await run_once(cluster) == 4
    await write(cluster, "b1", 100, 2)
    await delete_first_segments(cluster, "b1", 2)
    with pytest.raises(ConfigError, match="on_unknown"):
        await run_once(cluster)
    assert await run_once(cluster, on_unknown="start") == 4
    assert await run_once(cluster, on_unknown="start") == 0


async def delete_first_segments(cluster: Cluster, stream_id: str, kept: int) -> None:
    """Truncate a stream before its segment `kept`, and delete what lies before."""
    from fastbk.stream.chain import drop_deleted, mark_deleting, truncate

    context = context_of(cluster.client(), None, stream_id)
    known = await context.store.change(lambda chain: truncate(chain, DLSN(kept, 0, 0)))
    known = await context.store.change(lambda chain: mark_deleting(chain, kept), known)
    first = known.chain.row(kept)
    assert first is not None
    for row in known.chain.rows:
        if row.number < kept:
            await context.client.delete_ledger(row.ledger_id)
    await context.store.change(lambda chain: drop_deleted(chain, kept, first.base_seq), known)


async def test_a_source_that_was_truncated_behind_the_position_is_no_gap() -> None:
    """The number beside the position says so, where the segment is gone whose end it was."""
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    assert await run_once(cluster) == 4
    await write(cluster, "a1", 4, 3)
    await delete_first_segments(cluster, "a1", 2)
    assert await run_once(cluster) == 3
    await write(cluster, "a1", 7, 2)
    await write(cluster, "a1", 9, 2)
    await delete_first_segments(cluster, "a1", 4)
    with pytest.raises(PositionTruncated):
        await run_once(cluster)
    assert await run_once(cluster, on_gap="skip") == 2
    numbers = [int(payload.split()[1]) for payload in await payloads_of(cluster, "b1")]
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 9, 10]


async def test_where_a_source_is_begun_is_stored_before_anything_of_it() -> None:
    """INV-S45: "latest" is a place, and not another one after each crash."""
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    client = cluster.client()
    first = pipeline(
        source=stream_of(client, "a1"),
        sinks=stream_of(client, "b1"),
        transform=lambda record: record.value,
        start="latest",
    )
    await first.open()
    await crash(client, first)
    await write(cluster, "a1", 4, 2)
    assert await run_once(cluster, start="latest") == 2


async def test_a_cursor_holds_records_back_until_all_sinks_have_their_outputs() -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    client = cluster.client()
    running = pipeline(
        source=stream_of(client, "a1"),
        sinks=stream_of(client, "b1"),
        transform=lambda record: record.value,
        hold="to-b1",
    )
    await running.open()
    (cursor,) = await stream_of(client, "a1").cursors()
    assert (cursor.name, cursor.holds, cursor.mark) == ("to-b1", True, DLSN(1, 0, 0))
    await running.run(until_caught_up=True)
    (cursor,) = await stream_of(client, "a1").cursors()
    assert cursor.mark == DLSN(1, 4, 0)
    await running.close()
    assert await run_once(cluster, hold="to-b1") == 0


async def test_records_without_outputs_move_the_position() -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    client = cluster.client()
    running = pipeline(
        source=stream_of(client, "a1"), sinks=stream_of(client, "b1"), transform=lambda _: None
    )
    await running.open()
    await running.run(until_caught_up=True)
    await crash(client, running)
    assert await run_once(cluster) == 0
    assert await payloads_of(cluster, "b1") == []


async def test_sources_that_are_read_no_more_are_remembered() -> None:
    cluster = await cluster_of()
    await write(cluster, "a1", 0, 4)
    await write(cluster, "a2", 0, 3)
    for names, count in ((("a1",), 4), (("a2",), 3), (SOURCES, 0)):
        client = cluster.client()
        async with pipeline(
            source=[stream_of(client, name) for name in names],
            sinks=stream_of(client, "b1"),
            transform=lambda record: record.value,
        ) as running:
            assert (await running.run(until_caught_up=True)).records == count


async def test_records_of_several_sources_say_where_they_are_from() -> None:
    cluster = await cluster_of()
    for name in SOURCES:
        await write(cluster, name, 0, 2)
    client = cluster.client()
    async with pipeline(
        source=[stream_of(client, name) for name in SOURCES],
        sinks=stream_of(client, "b1"),
        transform=lambda record: cast("Any", record).stream.encode(),
    ) as running:
        await running.run(until_caught_up=True)
    assert sorted(await payloads_of(cluster, "b1")) == [b"test/a1"] * 2 + [b"test/a2"] * 2


async def test_a_run_for_ever_ends_by_stop_and_at_the_end_of_sealed_sources() -> None:
    cluster = await cluster_of()
    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"), sinks=stream_of(client, "b1"), transform=doubled
    ) as running:
        for first in (0, 3):
            run = asyncio.get_running_loop().create_task(running.run())
            await write(cluster, "a1", first, 3)
            async with asyncio.timeout(10):
                while running.stats().records < first + 3:
                    await asyncio.sleep(0)
            running.stop()
            await run
        async with StreamWriter(context_of(client, None, "a1"), WriterOptions()) as writer:
            await writer.append(b"a1 6")
            await writer.seal()
        async with asyncio.timeout(10):
            await running.run()
    assert await payloads_of(cluster, "b1") == expected("a1", 7)


async def test_an_idle_run_is_told_of_a_sink_that_another_pipeline_took() -> None:
    cluster = await cluster_of()
    client = cluster.client()
    async with pipeline(
        source=stream_of(client, "a1"), sinks=stream_of(client, "b1"), transform=doubled
    ) as running:
        run = asyncio.get_running_loop().create_task(running.run())
        assert await run_once(cluster) == 0
        await write(cluster, "a1", 0, 1)
        async with asyncio.timeout(10):
            with pytest.raises(WriterFenced):
                await run


# --- histories ------------------------------------------------------------------------------------------------------


def routed(record: Record) -> list[Output]:
    """Send a record to the first sink, the second, both or none, by its number alone."""
    number = int(bytes(record.payload).split()[1])
    return [Output(record.value, sink=sink) for bit, sink in enumerate(SINKS) if number >> bit & 1]


class History:
    """Pipelines over the same streams that are opened, crash, are fenced and go on unaware, at random."""

    def __init__(self, seed: int, sources: int, sinks: int) -> None:
        self.rng = random.Random(seed)
        self.sources = SOURCES[:sources]
        self.sinks = SINKS[:sinks]
        self.written = dict.fromkeys(self.sources, 0)
        self.running: list[tuple[FakeClient, Pipeline, asyncio.Task[object]]] = []
        self.cluster = Cluster()
        self.fenced = self.crashes = 0

    async def run(self, steps: int) -> None:
        self.cluster = await cluster_of()
        self.cluster.plan = RandomPlan(self.rng, lost=0.02)
        for _ in range(steps):
            await self.rng.choices(
                [self.begin, self.crash, self.write, self.intrude, self.wait], [3, 2, 5, 0.5, 8]
            )[0]()
        self.cluster.plan = Plan()
        while self.running:
            await self.crash()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        async with self.made(self.cluster.client()) as last:
            await last.run(until_caught_up=True)

    def made(self, client: FakeClient) -> Pipeline:
        policy = StreamPolicy(roll_bytes=self.rng.choice([0, 600]))
        is_many = len(self.sinks) > 1
        return pipeline(
            source=[stream_of(client, name) for name in self.sources],
            sinks={name: stream_of(client, name, policy) for name in self.sinks},
            transform=routed if is_many else lambda record: record.value,
            deterministic=is_many,
            max_records=self.rng.choice([1, 3, 100]),
            batch_bytes=self.rng.choice([1, 150, 1 << 16]),
            position_interval=1e-6,
        )

    async def begin(self) -> None:
        client = self.cluster.client()
        made = self.made(client)
        task = asyncio.get_running_loop().create_task(self._run(made))
        self.running.append((client, made, task))

    async def _run(self, made: Pipeline) -> None:
        try:
            await made.open()
            await made.run(until_caught_up=self.rng.random() < 0.3)
            await made.close()
        except WriterFenced:
            self.fenced += 1
        except Error:
            pass

    async def crash(self) -> None:
        if self.running:
            client, made, task = self.running.pop(self.rng.randrange(len(self.running)))
            client.crash()
            self.crashes += not task.done()
            task.cancel()
            await asyncio.wait([task])
            await crash(client, made)

    async def write(self) -> None:
        source = self.rng.choice(self.sources)
        count = self.rng.randint(1, 12)
        with suppress(Error):
            await write(self.cluster, source, self.written[source], count)
            self.written[source] += count

    async def intrude(self) -> None:
        """An ordinary writer appends to a sink."""
        with suppress(Error):
            await write(self.cluster, self.rng.choice(self.sinks), 0, 1)

    async def wait(self) -> None:
        for _ in range(self.rng.randrange(120)):
            await asyncio.sleep(0)


@pytest.mark.parametrize(("sources", "sinks"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_outputs_are_exact_whatever_happens(seed: int, sources: int, sinks: int) -> None:
    history = History(seed, sources, sinks)
    await history.run(60)
    for source in history.sources:
        given = await payloads_of(history.cluster, source)
        for bit, sink in enumerate(history.sinks):
            stored = [
                payload
                for payload in await payloads_of(history.cluster, sink)
                if payload.startswith(source.encode())
            ]
            wanted = [
                payload for payload in given if sinks == 1 or int(payload.split()[1]) >> bit & 1
            ]
            assert stored == wanted


async def test_histories_are_not_empty() -> None:
    """The histories above have crashes, fenced pipelines and records."""
    fenced = crashes = records = 0
    for seed in range(10):
        history = History(seed, 2, 2)
        await history.run(60)
        fenced += history.fenced
        crashes += history.crashes
        records += len(await payloads_of(history.cluster, "b1"))
    assert fenced > 10
    assert crashes > 10
    assert records > 300


async def test_the_public_names_are_there() -> None:
    assert fastbk.pipeline is pipeline
    assert fastbk.Output is Output
    assert sources_of_log is not None
