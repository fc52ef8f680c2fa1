"""Changes of a stream's kind, on ledgers in memory: no row of the table of producers is lost (INV-S28, INV-S29)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from fastbk.errors import (
    ConfigError,
    MetadataConflict,
    MetadataUnavailable,
    StorageError,
    WrongStreamKind,
)
from fastbk.formats import PRODUCERS as FORMAT
from fastbk.formats import level_of
from fastbk.meta.format_level import LEVEL_PATH
from fastbk.meta.records import Change
from fastbk.producers.owner import OwnerEnded, StreamOwner
from fastbk.producers.table import NAME_BYTES_MAX, NAMES_MAX, TableOptions
from fastbk.stream import chain_store, janitor, kind
from fastbk.stream.chain import StreamKind
from fastbk.stream.deletion import delete_stream
from fastbk.stream.drafts import attach
from fastbk.stream.drafts import begin as begin_draft
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.kind import (
    PAGE_BYTES_MAX,
    get_table,
    put_table,
    read_pages,
    set_kind,
    write_pages,
)
from fastbk.stream.paths import page_part, producers_path
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.provenance import Row
from tests.fixtures.fake_kills import run_and_kill
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.stream_owners import frame_of, produced
from tests.fixtures.streams import (
    as_client,
    chain_of,
    cluster_with_stream,
    context_of,
    mark_deleted,
    new_stream,
    records_of,
    write_segments,
    writer_of,
)

WRITER, PRODUCERS = StreamKind.WRITER, StreamKind.PRODUCERS
WHOLE = TableOptions(entries_max=4, bytes_max=2000)


async def owned(cluster: Cluster, name: str = "service:a@h:1~00") -> StreamOwner:
    return await StreamOwner.take_over(context_of(cluster.client()), name, WHOLE)


@asynccontextmanager
async def owning(cluster: Cluster, *, is_killed: bool = False) -> AsyncIterator[StreamOwner]:
    """Own the stream for a block, and stop as planned behind it; or die."""
    owner = await owned(cluster)
    try:
        yield owner
        if not is_killed:
            await owner.release()
    finally:
        owner.abandon()
        await asyncio.sleep(0)


async def change(cluster: Cluster, wanted: StreamKind) -> None:
    await set_kind(context_of(cluster.client()), wanted)


async def pages_of(cluster: Cluster) -> set[str]:
    return set(await cluster.client().records.children(producers_path("ab")))


async def last_numbers(cluster: Cluster) -> dict[bytes, int]:
    """Return what the next owner would find."""
    context = context_of(cluster.client())
    table = await kind.table_of(context, (await context.store.read()).chain)
    return {name: row.last_number for name, row in table.items()}


# --- changes ------------------------------------------------------------------------------------------------------


async def test_last_numbers_are_kept_while_a_writer_has_the_stream() -> None:
    cluster, _ = await cluster_with_stream()
    async with owning(cluster) as owner:
        assert await produced(owner, b"till-1", 3) == (-1, 2)
    await change(cluster, WRITER)
    chain = await chain_of(cluster)
    assert (chain.kind, chain.owner, len(chain.producer_pages)) == (WRITER, "", 1)
    await write_segments(cluster.client(), 2)
    await change(cluster, PRODUCERS)
    async with owning(cluster) as owner:
        row = await owner.open(b"till-1")
        assert row.last_number == 2
        assert await owner.produce(*frame_of(row, 2)) is None, "it was stored before"
        assert await owner.produce(*frame_of(row, 3)) is not None
    assert await pages_of(cluster) == set((await chain_of(cluster)).producer_pages)
    await change(cluster, WRITER)
    assert await last_numbers(cluster) == {b"till-1": 3}
    assert await pages_of(cluster) == set((await chain_of(cluster)).producer_pages)


@pytest.mark.parametrize("seed", range(25))
async def test_any_order_of_owners_writers_and_changes_keeps_every_row(seed: int) -> None:
    rng, told = random.Random(seed), dict[bytes, int]()
    cluster, _ = await cluster_with_stream()
    for _ in range(25):
        of_stream = (await chain_of(cluster)).kind
        match rng.randrange(4):
            case 0:
                await change(cluster, rng.choice([WRITER, PRODUCERS]))
            case 1 if of_stream is WRITER:
                await write_segments(cluster.client(), rng.randint(1, 2), 1)
            case 2 | 3 if of_stream is PRODUCERS:
                async with owning(cluster, is_killed=rng.random() < 0.5) as owner:
                    for name in rng.sample([b"a", b"b", b"c"], rng.randint(1, 3)):
                        _, last = await produced(owner, name, rng.randint(0, 6))
                        assert last >= told.get(name, -1)
                        told[name] = last
    async with owning(cluster) if (await chain_of(cluster)).kind is PRODUCERS else nobody():
        pass
    assert await last_numbers(cluster) == told
    assert await pages_of(cluster) == set((await chain_of(cluster)).producer_pages)
    payloads = [bytes(record.payload) for record in await records_of(cluster)]
    numbers = [payload for payload in payloads if payload.strip(b"\0")]
    assert len(numbers) == len(set(numbers)), "a number twice"


@asynccontextmanager
async def nobody() -> AsyncIterator[None]:
    yield


async def killed(make: Callable[[], Awaitable[Cluster]], wanted: StreamKind) -> int:
    """Kill a change at each of its calls, before and after it took effect, and have it made by another one then."""

    async def work(client: FakeClient) -> object:
        return await set_kind(context_of(client), wanted)

    made, kills = await make(), 0
    for is_after in (False, True):
        for number in itertools.count():
            cluster = made.copy()
            if not await run_and_kill(cluster, work, number, is_after=is_after):
                break
            kills += 1
            chain = await chain_of(cluster)
            assert set(chain.producer_pages) <= await pages_of(cluster), "INV-S29"
            await change(cluster, wanted)
            assert (await chain_of(cluster)).kind is wanted
            assert await last_numbers(cluster) == {b"a": 4, b"b": -1}
            # What the one that died may have left goes with the next change.
            await change(cluster, PRODUCERS)
            await change(cluster, WRITER)
            assert await pages_of(cluster) == set((await chain_of(cluster)).producer_pages)
    return kills


@pytest.mark.slow
async def test_a_change_that_is_killed_at_any_step_loses_no_row() -> None:
    async def with_producers() -> Cluster:
        cluster, _ = await cluster_with_stream()
        async with owning(cluster, is_killed=True) as owner:
            await produced(owner, b"a", 5)
            await produced(owner, b"b", 0)
        return cluster

    async def with_pages() -> Cluster:
        cluster = await with_producers()
        await change(cluster, WRITER)
        await write_segments(cluster.client(), 1)
        return cluster

    assert await killed(with_producers, WRITER) > 10
    assert await killed(with_pages, PRODUCERS) > 4


async def test_the_change_is_made_again_where_a_service_takes_the_stream_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, _ = await cluster_with_stream()
    owners = [await owned(cluster)]
    await produced(owners[0], b"a", 1)
    write, calls = kind.write_pages, 0

    async def slowly(*arguments: object) -> tuple[str, ...]:
        nonlocal calls
        calls += 1
        if calls <= 2:
            owners.append(await owned(cluster, f"service:b@h:1~{calls}"))
            await produced(owners[-1], b"a", 1)
        return await write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "write_pages", slowly)
    await change(cluster, WRITER)
    assert calls == 3 and await last_numbers(cluster) == {b"a": 2}
    assert await pages_of(cluster) == set((await chain_of(cluster)).producer_pages)
    monkeypatch.setattr(kind, "TAKEN_BACK_S", 0.0)
    await change(cluster, PRODUCERS)
    calls = 0
    with pytest.raises(MetadataConflict, match="service:b"):
        await change(cluster, WRITER)
    for owner in owners:
        owner.abandon()
    await asyncio.sleep(0)


async def test_changes_that_fail_again_and_again_leave_few_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway bounds them (INV-B1)."""
    cluster, _ = await cluster_with_stream()
    async with owning(cluster) as owner:
        await produced(owner, b"a", 1)

    def fails(*_: object) -> NoReturn:
        raise MetadataUnavailable("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "change_kind", fails)
        patch.setattr(chain_store, "AGAIN_S_MAX", 0.0)
        for _ in range(5):
            context = context_of(cluster.client())
            context.store._timeout_s = 0.0
            with pytest.raises(MetadataUnavailable):
                await set_kind(context, WRITER)
            assert len(await pages_of(cluster)) == 1
    await change(cluster, WRITER)
    assert await last_numbers(cluster) == {b"a": 0}


async def test_pages_of_a_later_change_are_left_to_it() -> None:
    cluster, _ = await cluster_with_stream()
    async with owning(cluster) as owner:
        await produced(owner, b"a", 1)
    later = page_part(99, 1)
    path = f"{producers_path('ab')}/{later}"
    await cluster.client().records.change(Change(path, put_table(())))
    await change(cluster, WRITER)
    assert await pages_of(cluster) == {later, *(await chain_of(cluster)).producer_pages}


async def test_a_table_of_the_log_counts_though_it_has_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All names were forgotten since the pages were written."""
    cluster, _ = await cluster_with_stream()
    async with owning(cluster) as owner:
        await produced(owner, b"a", 1)
    await change(cluster, WRITER)
    await write_segments(cluster.client(), 1)
    assert await last_numbers(cluster) == {b"a": 0}

    async def empty(*_: object) -> dict[bytes, Row]:
        return {}

    monkeypatch.setattr(kind, "table_of_log", empty)
    assert await last_numbers(cluster) == {}


async def test_ten_thousand_of_the_longest_names_fit_into_pages() -> None:
    cluster, _ = await cluster_with_stream()
    rows = [Row(b"%064d" % number, 1 << 32 | number, number, 5) for number in range(NAMES_MAX)]
    assert len(rows[0].name) == NAME_BYTES_MAX
    records = as_client(cluster.client()).records
    names = await write_pages(records, "ab", 1, rows)
    assert len(names) == 4 and await read_pages(records, "ab", names) == rows
    for name in names:
        record = await cluster.client().records.read(f"{producers_path('ab')}/{name}")
        assert record is not None and len(record.value) <= PAGE_BYTES_MAX


@pytest.mark.parametrize("raw", [b"", b"FBKT", b"FBKT\x02", b"FBKT\x01abc", b"FBKP\x01"])
def test_bytes_that_are_no_page_are_refused(raw: bytes) -> None:
    with pytest.raises(StorageError):
        get_table(raw)


async def test_a_page_that_is_gone_or_damaged_is_no_empty_table() -> None:
    cluster, context = await cluster_with_stream()
    async with owning(cluster) as owner:
        await produced(owner, b"a", 1)
    await change(cluster, WRITER)
    await write_segments(cluster.client(), 1)
    (name,) = (await chain_of(cluster)).producer_pages
    path, records = f"{producers_path('ab')}/{name}", cluster.client().records
    held = await records.read(path)
    assert held is not None
    (version,) = await records.change(Change(path, b"FBKT\x01abc", held.version))
    with pytest.raises(StorageError, match="damaged"):
        await kind.table_of(context, await chain_of(cluster))
    await records.change(Change(path, None, version))
    with pytest.raises(StorageError, match="gone"):
        await kind.table_of(context, await chain_of(cluster))


# --- who is refused -----------------------------------------------------------------------------------------------


async def test_a_writer_is_refused_and_the_owner_goes_on() -> None:
    cluster, context = await cluster_with_stream()
    async with owning(cluster) as owner:
        row = await owner.open(b"a")
        with pytest.raises(WrongStreamKind, match=r"fastbk stream kind .* writer"):
            await writer_of(cluster).open()
        with pytest.raises(WrongStreamKind):
            await begin_draft(context, "key", 0)
        with pytest.raises(WrongStreamKind):
            await attach(context, [10**6], "key", 0)
        assert await owner.produce(*frame_of(row, 0)) is not None


async def test_an_owner_is_refused_and_the_writer_goes_on() -> None:
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster) as writer:
        await writer.append(b"its segment is open, and no other is there")
        with pytest.raises(WrongStreamKind, match=r"fastbk stream kind .* producers"):
            await owned(cluster)
        await writer.append(b"and it goes on")


async def test_a_stream_gets_producers_only_at_their_level() -> None:
    cluster, context = await cluster_with_stream()
    raw = b'{"level": %d}' % (level_of(FORMAT) - 1)
    held = await cluster.client().records.read(LEVEL_PATH)
    await cluster.client().records.change(Change(LEVEL_PATH, raw, held and held.version))
    for attempt in (owned(cluster), set_kind(context, PRODUCERS)):
        with pytest.raises(ConfigError, match="fastbk cluster finalize"):
            await attempt
    assert (await chain_of(cluster)).epoch == 0, "nobody was fenced"


# --- janitor and deletion -----------------------------------------------------------------------------------------


async def test_a_janitor_rolls_an_idle_segment_of_producers_and_they_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    await new_stream(cluster, patch=PolicyPatch(roll_age_s=3600.0))
    frozen = await owned(cluster)
    await produced(frozen, b"a", 2)
    row = await frozen.open(b"b")
    now_us = janitor.clock_us()
    monkeypatch.setattr(janitor, "clock_us", lambda: now_us + 2 * 3600 * 1_000_000)
    one = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1))
    assert (await one.pass_once()).rolled == 1
    chain = await chain_of(cluster)
    assert chain.kind is PRODUCERS and not chain.open_rows
    with pytest.raises(OwnerEnded):
        await frozen.produce(*frame_of(row, 0))
    async with owning(cluster) as owner:
        assert await produced(owner, b"a", 1) == (1, 2)
        assert await produced(owner, b"b", 1) == (-1, 0)


async def test_deleting_a_stream_deletes_its_pages() -> None:
    cluster, _ = await cluster_with_stream()
    async with owning(cluster) as owner:
        await produced(owner, b"a", 1)
    await change(cluster, WRITER)
    assert await pages_of(cluster)
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client()), "ab")
    assert not await pages_of(cluster)
