"""`./dev bench segments`: one stream of SEGMENTS=100000 segments: written, searched, read, listed, cut off, deleted.

METADATA=sqlite or zookeeper; REAL=300 of the segments are ledgers with records on three bookies: the first and last
ones, a run in the middle, and others spread evenly; everything that is visited is one of these, and whatever is
appended and rolled while it is measured. The others are closed ledgers in metadata that no bookie holds (a writer
would take minutes to hours to make them), listed by the product's own change for attached ledgers, in its own pages.
REAL=all makes every one of them real. A table, and JSON in build/bench-segments.json.
"""

from __future__ import annotations

import asyncio
import random
import sys
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import fastbk
from fastbk.meta.api import MetadataStore
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.native.stream_codec import encode
from fastbk.stream import chain as changes
from fastbk.stream.chain import Chain, Contents
from fastbk.stream.chain_store import page_path
from fastbk.stream.client import Client
from fastbk.stream.context import StreamContext
from fastbk.stream.deletion import AuditFile
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.positions import DLSN, AtSeq, AtTime, to_time
from fastbk.stream.records import Gap
from fastbk.stream.segment_contents import IndexBuilder
from fastbk.stream.stream import Stream
from tools.bench_cluster import MetadataCount, bench_cluster, timed
from tools.part import percentile, print_table, rss_bytes, setting

ENTRIES, RECORDS_EACH = 3, 4
RECORDS = ENTRIES * RECORDS_EACH
"""Records of each segment that was not appended while it was measured; record `seq` has transaction id `seq + 1`."""
PAYLOAD = bytes(100)
BEGAN_US = 1_700_000_000_000_000
SEGMENT_US = 60_000_000
"""A segment a minute: 100,000 are 69 days."""
AT_ONCE = 256
"""Segments that come to the chain by one change."""
REAL_AT_ONCE = 16
MADE_UP = 1 << 30
"""Ids of ledgers without bookies lie above it, beyond what a store has drawn; sqlite draws on from there."""
RUN = 128
"""Segments in the middle that are all real, for the reader."""
LOOKS = 20
ROLLS = 30
LIMIT_S = 1800.0

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Made:
    """The ledger of a segment, and what is in it."""

    ledger_id: int
    contents: Contents


def real_numbers(count: int, real: str) -> set[int]:
    """Return the segments that are made by bookies, too."""
    if real == "all":
        return set(range(1, count + 1))
    middle = count // 2
    numbers = {*range(1, 5), *range(middle, middle + RUN), *range(count - 3, count + 1)}
    wanted = max(1, int(real) - len(numbers))
    numbers.update(range(1, count + 1, max(1, count // wanted)))
    return {number for number in numbers if 1 <= number <= count}


def times_of(number: int) -> list[int]:
    return [BEGAN_US + number * SEGMENT_US + at * (SEGMENT_US // 4) for at in range(ENTRIES)]


def contents_of(number: int, size_bytes: int) -> Contents:
    """Return what segment `number` holds: all hold as much."""
    times = times_of(number)
    return Contents(
        records=RECORDS,
        first_txid=1,
        last_txid=RECORDS,
        first_time_us=times[0],
        last_time_us=times[-1],
        last_dlsn=DLSN(number, ENTRIES - 1, RECORDS_EACH - 1),
        index_entry_id=ENTRIES,
        size_bytes=size_bytes,
    )


def entries_of(number: int) -> list[bytes]:
    """Return a segment's entries, its index behind them."""
    index = IndexBuilder()
    entries: list[bytes] = []
    for at, time_us in enumerate(times_of(number)):
        first = at * RECORDS_EACH
        txids = array("q", range(first + 1, first + 1 + RECORDS_EACH))
        entries.append(
            bytes(encode(0, first, time_us, [PAYLOAD] * RECORDS_EACH, txids, None, None))
        )
        index.add(at, first, txids[0], time_us)
    return [*entries, index.entry(0, RECORDS, RECORDS, times_of(number)[-1])]


class Filler:
    def __init__(self, client: Client, context: StreamContext, real: set[int]) -> None:
        self._client = client
        self._context = context
        self._real = real
        self._turns = asyncio.Semaphore(REAL_AT_ONCE)
        self._bookies: tuple[str, ...] = ()

    async def fill(self, count: int) -> None:
        self._bookies = tuple(
            sorted(str(one.service.bookie_id) for one in await self._client.list_bookies())
        )
        known = await self._context.store.read()
        for first in range(1, count + 1, AT_ONCE):
            made = await self._some(range(first, min(first + AT_ONCE, count + 1)))
            rows = tuple([(one.ledger_id, one.contents) for one in made])

            def attached(chain: Chain, rows: Any = rows, at: int = first) -> Chain:
                return changes.attach(chain, rows, "bench", at, BEGAN_US)

            known = await self._context.store.change(attached, known)
            if first // AT_ONCE % 40 == 39:
                print(f"made {first + AT_ONCE - 1:,} segments", file=sys.stderr, flush=True)

    async def _some(self, numbers: Sequence[int]) -> list[Made]:
        real = [number for number in numbers if number in self._real]
        others = [number for number in numbers if number not in self._real]
        found = await asyncio.gather(*map(self._written, real))
        if others:
            found += await self._listed(others)
        return sorted(found, key=lambda one: one.contents.last_dlsn or DLSN(0, 0, 0))

    async def _written(self, number: int) -> Made:
        async with self._turns:
            ledger = await self._client.create_ledger(3, 3, 2)
            entries = entries_of(number)
            await asyncio.gather(*[ledger.append(one) for one in entries])
            await ledger.close()
        return Made(ledger.ledger_id, contents_of(number, sum(map(len, entries))))

    async def _listed(self, numbers: list[int]) -> list[Made]:
        """Create closed ledgers in metadata, with nothing on the bookies that they name."""
        metadata = LedgerMetadata(
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            fragments=(Fragment(0, self._bookies),),
            custom={"fastbk.stream": self._context.stream_id.encode()},
        ).closed(ENTRIES, sum(map(len, entries_of(1))))

        def create(store: MetadataStore) -> list[int]:
            first = max(store.next_ledger_id(), MADE_UP + numbers[0])
            for at in range(len(numbers)):
                store.create_ledger(first + at, metadata)
            return list(range(first, first + len(numbers)))

        ids = await self._client._store.call(create, 300.0)
        size_bytes = metadata.length or 0
        return [
            Made(ledger_id, contents_of(number, size_bytes))
            for ledger_id, number in zip(ids, numbers, strict=True)
        ]


class Bench:
    def __init__(self, client: Client) -> None:
        self.figures: Figures = {}
        self._client = client
        self._count = MetadataCount(client)

    async def often(self, name: str, calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
        """Take the time of several calls, each behind the other."""
        before, took_ms = self._count.calls, []
        for call in calls:
            _, took_s = await timed(call)
            took_ms.append(took_s * 1e3)
        self.figures[name] = {
            "p50_ms": round(percentile(took_ms, 0.5), 2),
            "max_ms": round(max(took_ms), 2),
            "metadata_calls_each": round((self._count.calls - before) / len(calls), 1),
        }

    async def once(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        before, busy_s = self._count.calls, self._count.busy_s
        _, took_s = await timed(call)
        self.figures[name] = {
            "s": round(took_s, 3),
            "metadata_calls": self._count.calls - before,
            "metadata_busy_s": round(self._count.busy_s - busy_s, 3),
        }

    async def writes(self, stream: Stream, name: str) -> None:
        """Open for append, append, roll, close."""
        writer = stream.writer()
        await self.often(f"{name}: open for append", [writer.open])
        await self.often(f"{name}: first append", [lambda: writer.append(PAYLOAD)])
        await self.often(f"{name}: append", [lambda: writer.append(PAYLOAD)] * 200)

        async def rolled() -> None:
            await writer.append(PAYLOAD)
            await writer.roll()

        await self.often(f"{name}: append and roll", [rolled] * ROLLS)
        await self.often(f"{name}: close", [writer.close])

    async def searches(self, stream: Stream, numbers: Sequence[int]) -> None:
        """Find by number, id and time, in the segments that are real."""
        chosen = random.Random(1).choices(sorted(numbers), k=LOOKS)
        wrong: list[tuple[object, object]] = []

        async def check(found: Awaitable[object], wanted: DLSN) -> None:
            if (got := await found) != wanted:
                wrong.append((got, wanted))

        def calls(find: Callable[[int], Awaitable[object]]) -> list[Any]:
            return [
                (lambda number=number: check(find(number), DLSN(number, 1, 0))) for number in chosen
            ]

        def seq(number: int) -> int:
            return (number - 1) * RECORDS + RECORDS_EACH

        await self.often("find by number", calls(lambda one: stream.find(seq=seq(one))))
        await self.often(
            "find by transaction id", calls(lambda one: stream.find(txid=seq(one) + 1))
        )
        await self.often(
            "find by time", calls(lambda one: stream.find(time=to_time(times_of(one)[1])))
        )
        await self.often("get by number", [partial(stream.get, AtSeq(seq(one))) for one in chosen])
        await self.often("first record", [stream.first] * 3)
        await self.often("tail", [stream.tail] * 3)
        if wrong:
            raise SystemExit(f"bench: not found where they are: {wrong[:3]}")

    async def reads(self, stream: Stream, middle: int) -> None:
        """Read the run in the middle."""
        last = DLSN(middle + RUN, 0, 0)

        async def some(count_max: int, start: object) -> None:
            count, after = 0, None
            async with stream.reader(start, end=last) as reader:  # type: ignore[arg-type]
                async for record in reader:
                    assert not isinstance(record, Gap), record
                    assert after is None or record.seq == after + 1
                    count, after = count + 1, record.seq
                    if count == count_max:
                        break
            assert count == count_max, count

        position, when = DLSN(middle, 0, 0), AtTime(to_time(times_of(middle)[0]))
        await self.often("reader in the middle, first record", [lambda: some(1, position)] * 5)
        await self.often("reader by time, first record", [lambda: some(1, when)] * 5)
        await self.often(
            f"reader in the middle, {RUN} segments", [lambda: some(RUN * RECORDS, position)] * 3
        )

    async def record_sizes(self, name: str, context: StreamContext) -> Chain:
        known = await context.store.read()
        raw = await self._client.records.read(context.store.path)
        paths = [page_path(context.stream_id, page) for page in known.chain.pages]
        pages = [len(one.value) for one in await self._client.records.read_all(paths) if one]
        self.figures[name] = {
            "segments": known.chain.next_number - known.chain.head,
            "chain_bytes": len(raw.value) if raw else 0,
            "rows": len(known.chain.rows),
            "pages": len(pages),
            "page_bytes_max": max(pages, default=0),
            "pages_bytes": sum(pages),
            "rss_mib": round(rss_bytes() / 2**20),
        }
        return known.chain


async def run(count: int, real: str) -> Figures:
    async with bench_cluster() as cluster, fastbk.connect(cluster.metadata_uri) as client:
        bench = Bench(client)
        namespace = client.namespace("bench")
        await namespace.create()
        stream = await namespace.create_stream("long")
        await bench.writes(await namespace.create_stream("new"), "new stream")
        numbers = real_numbers(count, real)
        context = await stream.context()
        filler = Filler(client, context, numbers)
        await bench.once(f"making {count:,}, {len(numbers):,} real", lambda: filler.fill(count))
        await bench.record_sizes("records", context)
        await bench.often("info", [stream.info] * 5)

        async def listed() -> None:
            assert len([one async for one in namespace.streams()]) == 2

        await bench.often("list", [listed] * 5)
        middle = count // 2
        await bench.searches(stream, [n for n in numbers if n > 1])
        await bench.reads(stream, middle)
        await bench.writes(stream, "long stream")
        audit = AuditFile(cluster.data / "audit.log")
        janitor = Janitor(client, JanitorOptions(ledgers_per_s=1e6), audit)
        await bench.often("janitor's pass, nothing to do", [janitor.pass_once] * 3)
        await bench.often("truncate in the middle", [lambda: stream.truncate(DLSN(middle, 1, 2))])
        await bench.once("janitor deletes half", janitor.pass_once)
        await bench.record_sizes("records of the half", context)
        await bench.often("first record of the half", [stream.first] * 3)
        await bench.often("truncate at the end", [lambda: stream.truncate("latest")])
        await bench.once("janitor deletes the rest", janitor.pass_once)
        await bench.record_sizes("records at the end", context)
        return bench.figures


def main() -> Figures:
    work = run(setting("SEGMENTS", 100_000), setting("REAL", "300"))
    figures = asyncio.run(asyncio.wait_for(work, LIMIT_S))
    print_table(figures)
    return figures
