"""The janitor's passes on ledgers in memory: S17 and S18 of the design, INV-S9, many streams, many janitors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.meta.records import Change
from fastbk.stream import janitor
from fastbk.stream.cursor.state import CursorRecord, CursorState, put_record
from fastbk.stream.deletion import AuditFile, Event
from fastbk.stream.janitor import Janitor, JanitorOptions, LeftSegments
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path, cursors_path
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk
from fastbk.stream.stream import truncate
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, Counting, FakeClient, Plan
from tests.fixtures.streams import (
    as_client,
    chain_of,
    cluster_with_stream,
    context_of,
    named_ledgers,
    new_stream,
    write_segments,
)
from tests.fixtures.wait import wait_until_async

HOUR_S = 3600.0


class Clock:
    """The janitor's clock; writers have the real one."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + int(self.ahead_s * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(janitor, "clock_us", found)
    return found


def janitor_of(cluster: Cluster, events: list[Event] | None = None) -> Janitor:
    def keep(some: Sequence[Event]) -> None:
        if events is not None:
            events.extend(some)

    return Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1), keep)


async def writing(cluster: Cluster, records: int, stream_id: str = "ab") -> StreamWriter:
    writer = StreamWriter(context_of(cluster.client(), stream_id=stream_id), WriterOptions())
    await writer.open()
    for _ in range(records):
        await writer.append(bytes(100))
    return writer


async def put_cursor(cluster: Cluster, name: str, mark: DLSN, **fields: object) -> None:
    record = CursorRecord(CursorState(mark=mark), **fields)  # type: ignore[arg-type]
    await cluster.client().records.change(
        Change(f"{cursors_path('ab')}/{name}", put_record(record))
    )


async def test_an_idle_stream_rolls_by_age_and_obeys_retention(clock: Clock) -> None:
    """S17. Its writer was killed; nobody opens it again."""
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(roll_age_s=HOUR_S, retention_age_s=3 * HOUR_S))
    await write_segments(cluster.client(), 3)
    (await writing(cluster, 2)).abort()
    one = janitor_of(cluster)
    assert (await one.pass_once()).rolled == 0
    clock.ahead_s = HOUR_S + 30
    assert (await one.pass_once()).rolled == 0, "within the grace"
    clock.ahead_s = HOUR_S + 90
    counts = await one.pass_once()
    assert (counts.rolled, counts.segments_deleted) == (1, 0)
    chain = await chain_of(cluster)
    assert not chain.open_rows and (chain.end_seq, len(chain.rows)) == (11, 4)
    clock.ahead_s = 4 * HOUR_S
    counts = await one.pass_once()
    assert (counts.rolled, counts.segments_deleted) == (0, 3)
    chain = await chain_of(cluster)
    assert [row.number for row in chain.rows] == [4] and chain.last_dlsn == DLSN(4, 1, 0)
    assert set(cluster.ledgers) == await named_ledgers(cluster)


async def test_who_still_writes_is_not_fenced(clock: Clock) -> None:
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(roll_age_s=HOUR_S))
    one = janitor_of(cluster)
    empty = await writing(cluster, 1)
    await empty.roll()
    # the ledger's row seems young, then old; its record is what counts
    clock.ahead_s = -10 * HOUR_S
    await one.pass_once()
    clock.ahead_s = 0.5 * HOUR_S
    await one.pass_once()
    assert await empty.append(b"still ours") == DLSN(2, 0, 0)
    await empty.roll()
    clock.ahead_s = 10 * HOUR_S
    await one.pass_once()
    counts = await one.pass_once()
    chain = await chain_of(cluster)
    assert counts.rolled == 0 and [row.is_open for row in chain.rows][-1]
    assert await empty.append(b"and here") == DLSN(3, 0, 0), (
        "a segment without records is nobody's business"
    )
    empty.abort()


async def test_records_that_a_dead_writer_told_nobody_of_come_to_light(clock: Clock) -> None:
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(roll_age_s=HOUR_S))
    writer = await writing(cluster, 3)
    writer.abort()
    ledger = next(iter(cluster.ledgers.values()))
    # Its process died before it sent another entry, or told how far readers may read.
    ledger.visible = ledger.acknowledged = 0
    clock.ahead_s = 2 * HOUR_S
    assert (await janitor_of(cluster).pass_once()).rolled == 1
    assert (await chain_of(cluster)).end_seq == 3


async def left_by_a_dead_writer(cluster: Cluster, seen: int = 1) -> None:
    """Append three records whose writer dies before bookies have the LAC of all but so many."""
    writer = await writing(cluster, 3)
    writer.abort()
    ledger = next(iter(cluster.ledgers.values()))
    ledger.visible = ledger.acknowledged = seen


async def test_what_a_dead_writer_left_above_its_lac_is_soon_seen() -> None:
    """INV-S18: by a close of the ledger alone; the chain and its writers' epoch stay."""
    cluster, _ = await cluster_with_stream()
    await left_by_a_dead_writer(cluster)
    one = Janitor(as_client(cluster.client()), JanitorOptions(left_after_s=0))
    async with StreamReader(context_of(cluster.client())) as reader:
        assert len(await anext(reader.chunks())) == 1
        before = await chain_of(cluster)
        assert await one.close_left_segments() == 0, "it may be about to send its LAC"
        assert await reader.read(timeout=0) is None
        assert await one.close_left_segments() == 1
        chunk = await reader.read(timeout=10)
        assert isinstance(chunk, Chunk) and len(chunk) == 2
        assert await chain_of(cluster) == before
        assert await one.close_left_segments() == 0
    assert one.counts.left_closed == 1


@pytest.mark.parametrize("seen", [0, 1])
async def test_a_lac_that_stands_still_is_found_by_the_second_look(seen: int) -> None:
    """INV-S18: also where none was ever sent."""
    cluster, _ = await cluster_with_stream()
    await left_by_a_dead_writer(cluster, seen)
    left = LeftSegments(as_client(cluster.client()), 25.0)
    chain = await chain_of(cluster)
    assert [await left.close_left(chain, now_s) for now_s in (0.0, 24.0, 25.0)] == [0, 0, 1]


async def test_a_lac_has_to_stand_still_for_a_while() -> None:
    """INV-S18"""
    cluster, _ = await cluster_with_stream()
    await left_by_a_dead_writer(cluster)
    ledger = next(iter(cluster.ledgers.values()))
    left = LeftSegments(as_client(cluster.client()), 25.0)
    chain = await chain_of(cluster)

    async def look(now_s: float) -> int:
        left.begin()
        return await left.close_left(chain, now_s)

    assert [await look(0.0), await look(24.0)] == [0, 0]
    ledger.visible += 1  # the writer lives
    assert [await look(26.0), await look(50.0)] == [0, 0]
    assert await look(51.0) == 1


async def test_a_writer_that_was_thought_dead_goes_on_in_another_segment() -> None:
    """INV-S16: nobody opened the stream, so its writer keeps it."""
    cluster, _ = await cluster_with_stream()
    writer = await writing(cluster, 3)
    next(iter(cluster.ledgers.values())).visible = 1
    one = Janitor(as_client(cluster.client()), JanitorOptions(left_after_s=0))
    assert [await one.close_left_segments(), await one.close_left_segments()] == [0, 1]
    assert await writer.append(b"still ours") == DLSN(2, 0, 0)
    await writer.close()
    assert (await chain_of(cluster)).end_seq == 4


async def test_looking_for_what_is_left_costs_no_metadata_of_ledgers() -> None:
    cluster = Cluster()
    for at in range(300):
        await new_stream(cluster, f"s{at}")
        (await writing(cluster, 1, f"s{at}")).abort()
    one = Janitor(as_client(cluster.client()), JanitorOptions(left_after_s=0))
    await one.close_left_segments()
    plan = cluster.plan = Counting()
    assert await one.close_left_segments() == 0
    assert plan.calls["open"] == 0 and plan.calls["metadata.read"] <= 5
    assert plan.calls["read"] == 300, "one for each open segment"


async def test_looks_go_on_beside_passes() -> None:
    cluster, _ = await cluster_with_stream()
    await left_by_a_dead_writer(cluster)
    options = JanitorOptions(interval_s=60, left_check_s=0.05, left_after_s=0)
    one, stop = Janitor(as_client(cluster.client()), options), asyncio.Event()
    running = asyncio.create_task(one.run(stop))
    await wait_until_async(lambda: one.counts.left_closed == 1, "it was closed")
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_a_cursor_holds_what_it_needs_until_it_expires(clock: Clock) -> None:
    events: list[Event] = []
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(retention_bytes=1))
    await write_segments(cluster.client(), 8)
    used_us = clock()
    await put_cursor(cluster, "slow", DLSN(6, 1, 0), expire_after_s=HOUR_S, used_at_us=used_us)
    await put_cursor(cluster, "free", DLSN(1, 0, 0), holds=False)
    one = janitor_of(cluster, events)
    await one.pass_once()
    chain = await chain_of(cluster)
    assert (chain.head, chain.trim) == (6, DLSN(6, 0, 0))
    clock.ahead_s = HOUR_S + 1
    counts = await one.pass_once()
    assert (counts.cursors_expired, counts.segments_deleted) == (1, 2)
    assert [row.number for row in (await chain_of(cluster)).rows] == [8]
    assert [one["ledger"] for one in events if "ledger" in one] == [0, 1, 2, 3, 4, 5, 6]
    assert [one["cursor"] for one in events if "cursor" in one] == ["slow"]
    assert all(one["reason"] and one["stream"] == "ab" for one in events)


async def test_a_hard_limit_goes_past_a_cursor() -> None:
    cluster, _ = await cluster_with_stream()
    await write_segments(cluster.client(), 8)
    size = (await chain_of(cluster)).rows[0].size_bytes
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(retention_bytes=1, hard_bytes=4 * size))
    await write_segments(cluster.client(), 8)
    await put_cursor(cluster, "slow", DLSN(1, 1, 0))
    await janitor_of(cluster).pass_once()
    assert (await chain_of(cluster)).head == 5


async def test_one_streams_trouble_does_not_stop_the_others() -> None:
    cluster = Cluster()
    for name in ("ab", "bad", "cd"):
        await new_stream(cluster, name)
        await write_segments(cluster.client(), 3, stream_id=name)
        await truncate(context_of(cluster.client(), stream_id=name), DLSN(3, 0, 0))
    path = chain_path("bad")
    held = await cluster.client().records.read(path)
    assert held is not None
    await cluster.client().records.change(Change(path, b"FBKC\x01damaged", held.version))
    counts = await janitor_of(cluster).pass_once()
    assert (counts.streams, counts.errors, counts.segments_deleted) == (3, 1, 4)


async def test_streams_are_not_read_one_by_one() -> None:
    cluster = Cluster()
    for at in range(400):
        await new_stream(cluster, f"s{at}")
    plan = cluster.plan = Counting()
    one = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=10))
    assert (await one.pass_once()).streams == 400
    assert plan.calls.total() < 60, (
        "one request for 200 streams, and one for the cursors of every tenth"
    )
    for _ in range(9):
        await one.pass_once()
    # Each pass lists six folders: of streams, of counts of bytes, of cursors of patterns, of coordination, of objects,
    # of uploads. Each stream's cursors have their turn once.
    assert plan.calls["metadata.children"] == 460, "each has its turn"


async def test_without_metadata_a_pass_ends_and_the_next_one_goes_on() -> None:
    cluster, _ = await cluster_with_stream()
    await write_segments(cluster.client(), 3)
    await truncate(context_of(cluster.client()), DLSN(3, 0, 0))

    class Away(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            raise MetadataUnavailable("away")

    cluster.plan = Away()
    one = Janitor(as_client(cluster.client()), JanitorOptions(interval_s=0.1))
    with pytest.raises(MetadataUnavailable):
        await one.pass_once()
    stop = asyncio.Event()
    running = asyncio.create_task(one.run(stop))
    async with asyncio.timeout(20):
        while one.counts.passes < 2:
            await asyncio.sleep(0)
        cluster.plan = Plan()
        while one.counts.segments_deleted < 2:
            await asyncio.sleep(0)
    stop.set()
    await running


def test_an_audit_file_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"cut":')
    sink = AuditFile(path)
    sink([{"ledger": 1}])
    sink([{"ledger": 2}, {"ledger": 3}])
    lines = path.read_bytes().splitlines()
    assert lines[0] == b'{"cut":'
    assert [msgspec.json.decode(line) for line in lines[1:]] == [{"ledger": n} for n in (1, 2, 3)]


def test_a_long_audit_file_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbk.stream.deletion.SIZE_BYTES_MAX", 20)
    sink = AuditFile(tmp_path / "audit.log")
    for number in range(3):
        sink([{"ledger": number}])
    assert (tmp_path / "audit.log.1").read_text() == '{"ledger":0}\n{"ledger":1}\n'
    assert (tmp_path / "audit.log").read_text() == '{"ledger":2}\n'
