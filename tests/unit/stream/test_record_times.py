"""One clock that is wrong sets the times of its own records alone (INV-S22)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fastbk.gateway.rules import change_of
from fastbk.stream import chain as chains
from fastbk.stream import chain_store, janitor, retention
from fastbk.stream.chain import Chain, Contents
from fastbk.stream.cursor import backlog
from fastbk.stream.policy import PolicyPatch, StreamPolicy
from fastbk.stream.positions import DLSN, AtTime, to_time
from fastbk.stream.reader import search
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Record
from fastbk.stream.writer import engine, segment_lifecycle
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import chain_of, cluster_with_stream, context_of, new_stream, writer_of
from tests.unit.stream.test_janitor import HOUR_S, janitor_of, writing
from tests.unit.stream.test_janitor import Clock as JanitorClock

if TYPE_CHECKING:
    from fastbk.stream.context import StreamContext
    from fastbk.stream.writer.stream_writer import StreamWriter

YEARS_S = 10 * 365 * 86_400.0
MINUTE_US = 60_000_000


class WriterClock:
    """The clock of the writers of this process, in place of the module `time`."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return time.time_ns() + int(self.ahead_s * 1e9)

    def time(self) -> float:
        return self.time_ns() / 1e9

    def us(self) -> int:
        return self.time_ns() // 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WriterClock:
    found = WriterClock()
    monkeypatch.setattr(engine, "time", found)
    monkeypatch.setattr(engine, "time", found)
    for module in (engine, segment_lifecycle):
        monkeypatch.setattr(module, "clock_us", found.us, raising=False)
    return found


@pytest.fixture
def janitors_clock(monkeypatch: pytest.MonkeyPatch) -> JanitorClock:
    found = JanitorClock()
    monkeypatch.setattr(janitor, "clock_us", found)
    return found


async def written(
    cluster: Cluster, count: int, how: str = "closed", left: list[StreamWriter] | None = None
) -> int:
    """Append records, by a writer of its own that ends so; return when it began, in µs. `left`: gets one left open."""
    began_us, writer = time.time_ns() // 1000, writer_of(cluster)
    await writer.open()
    for _ in range(count):
        await writer.append(b"x")
    if how == "closed":
        await writer.close()
    else:
        await writer.publish()
        if left is None:
            writer.abort()
        else:
            left.append(writer)
    return began_us


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if "times_ahead" in one]


async def all_of(context: StreamContext) -> list[Record]:
    async with StreamReader(context, tail=False) as reader:
        return [one async for one in reader]


@pytest.mark.parametrize("wrong_end", ["closed", "killed"])
@pytest.mark.parametrize("right_end", ["closed", "open"])
@pytest.mark.parametrize("before", [0, 3])
async def test_the_times_of_later_records_are_those_of_their_own_clock(
    clock: WriterClock,
    caplog: pytest.LogCaptureFixture,
    wrong_end: str,
    right_end: str,
    before: int,
) -> None:
    cluster, _ = await cluster_with_stream()
    if before:
        await written(cluster, before)
    clock.ahead_s = YEARS_S
    await written(cluster, 2, wrong_end)
    clock.ahead_s = 0.0
    left: list[StreamWriter] = []
    began_us = await written(cluster, 4, right_end, left)
    context = context_of(cluster.client())
    records = await all_of(context)
    assert [one.seq for one in records] == list(range(before + 6))
    right = records[before + 2 :]
    assert all(began_us <= one.time_us <= time.time_ns() // 1000 for one in right)
    assert await search.find(context, time=right[0].time) == right[0].dlsn
    assert await search.find(context, time=right[2].time) == right[2].dlsn
    assert await search.find(context, time=datetime.now(UTC) + timedelta(days=1)) is None
    assert len(warnings(caplog)) == 1
    tail = await search.tail_position(context)
    assert tail is not None and tail.time_us == right[-1].time_us
    for writer in left:
        writer.abort()
    await written(cluster, 1)
    assert len(warnings(caplog)) == 1, "who comes later has nothing to say"


async def test_a_writer_counts_what_it_does_not_carry_on(clock: WriterClock) -> None:
    cluster, _ = await cluster_with_stream()
    clock.ahead_s = 3600.0
    await written(cluster, 1)
    clock.ahead_s = 0.0
    async with writer_of(cluster) as writer:
        assert writer.stats().times_ahead == 0
        await writer.append(b"x")
        assert writer.stats().times_ahead == 1
        await writer.roll()
        await writer.append(b"x")
        assert writer.stats().times_ahead == 1


async def test_clocks_that_differ_a_little_make_no_time_fall(
    clock: WriterClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, _ = await cluster_with_stream()
    for ahead_s in (30.0, 0.0, 45.0, -10.0):
        clock.ahead_s = ahead_s
        await written(cluster, 3)
    records = await all_of(context_of(cluster.client()))
    times = [one.time_us for one in records]
    assert times == sorted(times) and not warnings(caplog)
    for one in records:
        first = next(other for other in records if other.time_us >= one.time_us)
        assert await search.find(context_of(cluster.client()), time=one.time) == first.dlsn


async def test_a_writer_whose_own_clock_goes_back_goes_on_in_another_segment(
    clock: WriterClock,
) -> None:
    cluster, _ = await cluster_with_stream()
    clock.ahead_s = YEARS_S
    async with writer_of(cluster) as writer:
        await writer.append(b"x")
        clock.ahead_s = 0.0
        async with asyncio.timeout(20):
            while (await writer.append(b"x")).segment == 1:
                await asyncio.sleep(0)
        last = await writer.append(b"x")
        context = context_of(cluster.client())
        assert (await search.get(context, last)).time_us <= clock.us()
    chain = await chain_of(cluster)
    assert all(row.first_time_us >= row.created_us for row in chain.rows)


async def test_a_reader_of_a_range_of_times_ends_at_no_wrong_one(clock: WriterClock) -> None:
    cluster, _ = await cluster_with_stream()
    await written(cluster, 3)
    clock.ahead_s = YEARS_S
    await written(cluster, 2)
    clock.ahead_s = 0.0
    await written(cluster, 3)
    middle_us = time.time_ns() // 1000
    await written(cluster, 3)
    context = context_of(cluster.client())
    for end, count in (
        (AtTime(to_time(middle_us)), 8),
        (AtTime(datetime.now(UTC) + timedelta(days=1)), 11),
    ):
        async with StreamReader(context, end=end, tail=False) as reader:
            assert [one.seq async for one in reader] == list(range(count))


async def test_what_an_older_fastbk_wrote_behind_a_wrong_time_is_found_by_segments(
    clock: WriterClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave all later records the wrong time."""
    cluster, _ = await cluster_with_stream()
    monkeypatch.setattr(chains, "CARRIED_US_MAX", 2**62)
    clock.ahead_s = YEARS_S
    await written(cluster, 2)
    clock.ahead_s = 0.0
    began = [await written(cluster, 2) for _ in range(6)]
    monkeypatch.undo()
    context = context_of(cluster.client())
    rows = (await chain_of(cluster)).rows
    assert len({row.last_time_us // 3_600_000_000 for row in rows}) == 1
    for at, began_us in enumerate(began[:-1]):
        found = await search.find(context, time=to_time(began_us))
        assert found is not None and at + 1 <= found.segment <= at + 2
    assert (await all_of(context))[-1].seq == 13


@pytest.mark.parametrize("behind_s", [HOUR_S, YEARS_S])
async def test_a_reader_whose_clock_is_behind_passes_by_nothing(
    behind_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = await cluster_with_stream()
    for _ in range(5):
        await written(cluster, 3)
    context = context_of(cluster.client())
    records = await all_of(context)
    monkeypatch.setattr(
        search, "clock_us", lambda: time.time_ns() // 1000 - int(behind_s * 1e6), raising=False
    )
    for one in records:
        assert await search.find(context, time=one.time) == next(
            other.dlsn for other in records if other.time_us >= one.time_us
        )


async def test_a_writer_whose_clock_is_behind_hides_no_record_of_others(clock: WriterClock) -> None:
    cluster, _ = await cluster_with_stream()
    await written(cluster, 3)
    clock.ahead_s = -YEARS_S
    await written(cluster, 3)
    clock.ahead_s = 0.0
    await written(cluster, 3)
    context = context_of(cluster.client())
    for one in await all_of(context):
        found = await search.find(context, time=one.time)
        assert found is not None and found <= one.dlsn


async def test_wrong_times_in_pages(clock: WriterClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of old segments lie in pages; a wrong time may be that of any of them, the last one too."""
    monkeypatch.setattr(chain_store, "ROWS_MAX", 6)
    monkeypatch.setattr(chain_store, "PAGE_ROWS", 4)
    for wrong in range(8):
        cluster, _ = await cluster_with_stream()
        for at in range(16):
            clock.ahead_s = YEARS_S if at == wrong else -YEARS_S if at == wrong + 4 else 0.0
            await written(cluster, 2)
        assert len((await chain_of(cluster)).pages) >= 2
        context = context_of(cluster.client())
        for one in await all_of(context):
            if one.dlsn.segment - 1 not in (wrong, wrong + 4):
                found = await search.find(context, time=one.time)
                assert found is not None and found == one.dlsn


async def test_a_segment_that_was_written_by_a_wrong_clock_is_attached_without_harm() -> None:
    now_us = time.time_ns() // 1000
    chain = chains.open_for_append(Chain("ab"), "w")
    poison = Contents(1, 0, 0, now_us + 10**15, now_us + 10**15, DLSN(1, 0, 0), -1, 10)
    right = Contents(1, 0, 0, now_us - 9, now_us - 5, DLSN(1, 0, 0), -1, 10)
    late = replace(right, first_time_us=now_us - 900, last_time_us=now_us - 800)
    chain = chains.attach(chain, ((1, poison), (2, right), (3, late)), "k", 1, now_us)
    assert [row.last_time_us - now_us for row in chain.rows] == [10**15, -5, -5]
    assert chain.rows[2].first_time_us == now_us - 900, "what is read by time is left out by it"
    assert chain.newest_time_us == now_us - 5
    assert chain.last_time_us == now_us + 10**15, "an older gateway lets it never fall"


def test_a_gateway_takes_times_that_fall_between_segments() -> None:
    now_us = time.time_ns() // 1000
    old = chains.open_for_append(Chain("ab"), "w")
    for number, ahead_us in ((1, 3600 * 10**6), (2, 0)):
        old = chains.reserve(old, 1, number)
        opened = chains.add_segment(old, 1, number, now_us + ahead_us)
        held = Contents(
            1, number, number, now_us + ahead_us, now_us + ahead_us, DLSN(number, 0, 0), -1, 10
        )
        closed = chains.close_segment(opened, number, held, 1)
        assert change_of("ab", opened, closed, {}, now_us).ended == ((number, 0),)
        old = closed
    spilled, page, moved = chains.spill(old, 2, 7)
    assert page.last_time_us == now_us + 3600 * 10**6
    change_of("ab", old, spilled, {page: moved}, now_us)


def chain_by(times: list[tuple[int, int]]) -> Chain:
    """Return a chain of closed segments, each made and last written then, by a writer of its own."""
    chain = Chain("a")
    for at, (made_us, last_us) in enumerate(times):
        chain = chains.open_for_append(chain, f"w{at}")
        chain = chains.add_segment(chains.reserve(chain, at + 1, at + 1), at + 1, at + 1, made_us)
        held = Contents(1, at, at, last_us, last_us, DLSN(at + 1, 0, 0), -1, 100)
        chain = chains.close_segment(chain, at + 1, held)
    return chain


@given(
    st.lists(st.integers(1, 100_000_000), min_size=1, max_size=12),
    st.integers(0, 11),
    st.sampled_from([-(10**9), -(10**7), 10**7, 10**8, 10**9, 10**15]),
    st.integers(0, 300),
)
def test_retention_takes_one_wrong_clock_for_what_it_is(
    steps: list[int], wrong: int, off_us: int, age_s: int
) -> None:
    """Nothing goes too early, and nothing is kept longer than a clock was ahead, or its segment and the next one."""
    ends: list[int] = []
    now_us = 2 * 10**9
    for step_us in steps:
        ends.append((ends[-1] if ends else 10**9) + step_us)
    now_us = max(now_us, ends[-1])
    times = [(end - 1, end) for end in ends]
    if wrong < len(times):
        times[wrong] = max(times[wrong][0] + off_us, 0), max(times[wrong][1] + off_us, 0)
    chain = chain_by(times)
    policy = StreamPolicy(retention_age_s=float(age_s + 1))
    below = retention.points(chain, retention.items_of(chain), policy, [], now_us).policy
    old_us = now_us - (age_s + 1) * 10**6
    too_early = [at for at in range(len(ends)) if ends[at] >= old_us and at + 1 < below]
    assert not [at for at in too_early if (at != wrong and at - 1 != wrong) or off_us > 0]
    if off_us > 10**8:  # ahead of now, too
        kept = [at for at in range(len(ends)) if ends[at] < old_us and at + 1 >= below]
        assert len(kept) <= 2


def test_a_clock_that_was_behind_ages_nothing() -> None:
    day_us, now_us = 86_400 * 10**6, 400 * 86_400 * 10**6
    chain = chain_by([(now_us - 3, now_us - 2), (5, 10), (now_us - 1, now_us)])
    policy, items = StreamPolicy(retention_age_s=86_400.0), retention.items_of(chain)
    assert retention.points(chain, items, policy, [], now_us + day_us - 5).policy == 1


def test_how_old_a_record_is_whose_time_has_not_come() -> None:
    now_us = time.time_ns() // 1000
    chain = chain_by([(now_us, now_us + 10**15), (now_us - 5 * MINUTE_US, now_us - MINUTE_US)])
    record = Record(DLSN(1, 0, 0), 0, 0, now_us + 10**15, memoryview(b""))
    assert backlog._appended_us(chain, record) == now_us - 5 * MINUTE_US
    at_end = Record(DLSN(2, 0, 0), 1, 1, now_us + 10**15, memoryview(b""))
    assert abs(backlog._appended_us(chain, at_end) - now_us) < MINUTE_US


async def test_a_dead_writers_segment_ends_whatever_its_clock_said(
    clock: WriterClock, janitors_clock: JanitorClock
) -> None:
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(roll_age_s=HOUR_S, retention_age_s=3 * HOUR_S))
    clock.ahead_s = YEARS_S
    (await writing(cluster, 2)).abort()
    clock.ahead_s = 0.0
    one = janitor_of(cluster)
    assert (await one.pass_once()).rolled == 0, "when it was written is not known"
    janitors_clock.ahead_s = HOUR_S + 30
    assert (await one.pass_once()).rolled == 0, "within the grace"
    janitors_clock.ahead_s = HOUR_S + 90
    assert (await one.pass_once()).rolled == 1
    assert not (await chain_of(cluster)).open_rows
    await written(cluster, 1)
    await written(cluster, 1)
    janitors_clock.ahead_s = 8 * HOUR_S
    assert (await one.pass_once()).segments_deleted == 2


async def test_a_writer_that_lives_is_not_fenced_for_its_clock(
    clock: WriterClock, janitors_clock: JanitorClock
) -> None:
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(roll_age_s=HOUR_S))
    one = janitor_of(cluster)
    clock.ahead_s = 2 * HOUR_S
    writer = await writing(cluster, 1)
    for passed in range(1, 20):
        janitors_clock.ahead_s = passed * 0.5 * HOUR_S
        clock.ahead_s = janitors_clock.ahead_s + 2 * HOUR_S
        assert (await one.pass_once()).rolled == 0
        await writer.append(b"x")
    writer.abort()


async def test_the_janitor_says_which_streams_have_times_ahead(
    clock: WriterClock, janitors_clock: JanitorClock
) -> None:
    cluster, _ = await cluster_with_stream()
    one = janitor_of(cluster)
    clock.ahead_s = YEARS_S
    await written(cluster, 1)
    await one.pass_once()
    assert one.streams_ahead == 1
    clock.ahead_s = 0.0
    await written(cluster, 1)
    await one.pass_once()
    assert one.streams_ahead == 0
