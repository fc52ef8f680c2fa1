"""Calls of `fastbk.sync` that an exception of a signal's handler ends anywhere: nothing is skipped or lost. INV-C3."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import fastbk.sync
from fastbk.arrow import append_arrow
from fastbk.client import loop_thread
from fastbk.client.loop_thread import LoopThread
from fastbk.errors import BufferFull, Error, StreamExists
from fastbk.stream.records import Chunk, Record
from fastbk.stream.sync import PendingRecord
from tests.fixtures.interrupts import Interrupted, Interrupts, acting_at
from tests.fixtures.loop_clients import Inner, SlowInner
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator


RECORDS = 600


@pytest.fixture(scope="module")
def client() -> Iterator[fastbk.sync.Client]:
    with sync_cluster() as (client, _, _):
        client.namespace("shop").create()
        yield client


def stream_of(client: fastbk.sync.Client, name: str) -> fastbk.sync.Stream:
    """Return a new stream with records in two segments, their numbers as payloads."""
    stream = client.namespace("shop").create_stream(name)
    with stream.writer(batch_bytes=500) as writer:
        writer.append_many([b"%d" % one for one in range(RECORDS // 2)])
        writer.roll()
        writer.append_many([b"%d" % one for one in range(RECORDS // 2, RECORDS)])
    return stream


def patiently(
    writer: fastbk.sync.StreamWriter, append: Callable[[], PendingRecord]
) -> PendingRecord:
    """Append where there is room; a call that has none has taken nothing."""
    while True:
        try:
            return append()
        except BufferFull:
            writer.ready(timeout=10)


def numbers_of(item: Record | Chunk) -> range:
    records = len(item) if isinstance(item, Chunk) else 1
    first = item.first_seq if isinstance(item, Chunk) else item.seq
    return range(first, first + records)


class Reading:
    """Reads in one of several ways a call at a time, and keeps the numbers of what it was given."""

    def __init__(self, rng: random.Random) -> None:
        self.is_over = False
        self.items: list[Record | Chunk] = []
        self._rng = rng

    @property
    def got(self) -> list[int]:
        """The numbers of the records."""
        return [number for one in self.items for number in numbers_of(one)]

    def step(
        self, source: fastbk.sync.StreamReader | fastbk.sync.Cursor | fastbk.sync.PatternCursor
    ) -> None:
        way = self._rng.randrange(4)
        if way == 3 and isinstance(source, fastbk.sync.StreamReader):
            for chunk in source.read_chunks(self._rng.randrange(1, 40), 1 << 20, 10.0):
                self._take(chunk)
        elif way == 0:
            for record in source:
                self.items.append(record)
                return
            self.is_over = True
        elif way == 1:
            for chunk in source.chunks(self._rng.randrange(1, 40)):
                self._take(chunk)
                return
            self.is_over = True
        else:
            self._take(source.read(self._rng.randrange(1, 40), timeout=10.0))

    def _take(self, chunk: Chunk | None) -> None:
        if chunk is None:
            self.is_over = True
            return
        self.items.append(chunk)


@pytest.mark.slow
def test_readers_skip_nothing(client: fastbk.sync.Client, rng: random.Random) -> None:
    stream = stream_of(client, "readers")
    interrupts = Interrupts(rng, 700)
    for _ in range(6):
        reading = Reading(rng)
        with stream.reader(tail=False, prefetch_bytes=4096) as reader:
            while not reading.is_over:
                with interrupts.one():
                    reading.step(reader)
        assert reading.got == list(range(RECORDS))
    assert interrupts.count > 100 and len(interrupts.places) > 20, interrupts.places


@pytest.mark.slow
def test_cursors_skip_nothing_and_lose_no_acknowledgement(
    client: fastbk.sync.Client, rng: random.Random
) -> None:
    stream = stream_of(client, "cursors")
    interrupts = Interrupts(rng, 700)
    reading = Reading(rng)
    while not reading.is_over:
        with stream.cursor("billing", tail=False) as cursor:
            assert cursor.mark_seq in (-1, len(reading.got))
            for _ in range(rng.randrange(1, 30)):
                with interrupts.one():
                    reading.step(cursor)
                assert reading.got == list(range(len(reading.got)))
                if not reading.got:
                    continue
                acknowledged = stream.get(fastbk.AtSeq(reading.got[-1]))
                with interrupts.one():
                    cursor.ack(acknowledged)
            if reading.got:
                cursor.ack(acknowledged).result()
    assert reading.got == list(range(RECORDS))
    assert interrupts.count > 30


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_cursors_of_patterns_skip_nothing_and_lose_no_acknowledgement(
    client: fastbk.sync.Client, rng: random.Random, error: type[BaseException]
) -> None:
    """Each holder begins behind what the one before has acknowledged: nothing is skipped, nothing comes twice."""
    space = client.namespace("shop").namespace(f"pattern-{error.__name__}")
    space.create()
    for name in "abc":
        with space.stream(name).writer(create=True, batch_bytes=300) as writer:
            writer.append_many([b"%d" % one for one in range(150)])
            writer.roll()
            writer.append_many([b"%d" % one for one in range(150, 200)])
    interrupts = Interrupts(rng, 700, error=error)
    got = {f"{space.path}/{name}": list[int]() for name in "abc"}
    is_over = False
    while not is_over:
        with space.cursor(
            "*", "billing", tail=False, flush_interval=3600.0, flush_acks=1_000_000
        ) as cursor:
            last: dict[str, Record | Chunk] = {}
            for _ in range(rng.randrange(1, 30)):
                reading = Reading(rng)
                with interrupts.one():
                    reading.step(cursor)
                if is_over := reading.is_over:
                    break
                for item in reading.items:
                    got[item.stream] += numbers_of(item)
                    last[item.stream] = item
                    assert got[item.stream] == list(range(len(got[item.stream])))
                    with interrupts.one():
                        if isinstance(item, Record) and rng.random() < 0.5:
                            cursor.ack_one(item)
                        else:
                            cursor.ack(item)
            for item in last.values():
                cursor.ack(item)
            with interrupts.one():
                cursor.flush()
            with interrupts.one():
                cursor.close()
    assert [len(one) for one in got.values()] == [200] * 3
    assert interrupts.count > 30


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_cursors_that_are_made_and_moved_are_there_once_where_they_were_put_last(
    client: fastbk.sync.Client, rng: random.Random, error: type[BaseException]
) -> None:
    stream = stream_of(client, f"moved-{error.__name__}")
    interrupts = Interrupts(rng, 250, error=error)
    for at in range(25):
        name, first, then = f"c{at}", rng.randrange(RECORDS), rng.randrange(RECORDS)
        with interrupts.one():
            stream.create_cursor(name, fastbk.AtSeq(first))
        with suppress(StreamExists):
            stream.create_cursor(name, fastbk.AtSeq(first))
        with stream.cursor(name, tail=False) as cursor:
            assert next(cursor).seq == first
        with interrupts.one():
            stream.move_cursor(name, fastbk.AtSeq(then))
        with stream.cursor(name, tail=False) as cursor:
            assert next(cursor).seq in (first, then)
        with interrupts.one():
            stream.move_cursor(name, fastbk.AtSeq(first))
        assert stream.move_cursor(name, fastbk.AtSeq(then)).mark_seq == then
        with stream.cursor(name, tail=False) as cursor:
            assert next(cursor).seq == then, "what was interrupted does not come later"
    assert sorted(one.name for one in stream.cursors()) == sorted(f"c{at}" for at in range(25))
    assert interrupts.count > 25


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_table_that_is_appended_is_there_up_to_one_row_and_once(
    client: fastbk.sync.Client, rng: random.Random, error: type[BaseException]
) -> None:
    """Whoever goes on behind what the stream has then appends each row once."""
    table = pa.table({"value": [b"%d" % one for one in range(RECORDS)], "key": [b"k"] * RECORDS})
    stream = client.namespace("shop").create_stream(f"table-{error.__name__}")
    interrupts = Interrupts(rng, 9000, error=error)
    begun = 0
    with stream.writer(unacked_bytes_max=2000, batch_bytes=300) as writer:
        while begun < RECORDS:
            with interrupts.one():
                append_arrow(writer, table.slice(begun))
            writer.flush(timeout=10)
            last = stream.last_position()
            begun = 0 if last is None else last.seq + 1
    assert [int(one.value) for one in stream.reader(tail=False)] == list(range(RECORDS))
    assert interrupts.count > 3


@pytest.mark.slow
def test_appends_to_streams_are_there_once_in_their_order(
    client: fastbk.sync.Client, rng: random.Random
) -> None:
    stream = client.namespace("shop").create_stream("writers")
    interrupts = Interrupts(rng, 400)
    pending = {}
    with stream.writer(unacked_bytes_max=2000, batch_bytes=300) as writer:
        for at in range(400):
            payload = b"%d" % at
            with interrupts.one():
                if at % 5:
                    pending[at] = patiently(
                        writer, partial(writer.append_nowait, payload, key=b"k")
                    )
                else:
                    pending[at] = patiently(
                        writer, partial(writer.append_batch_nowait, [payload] * 2)
                    )
            if at % 7 == 0 and at in pending:
                with interrupts.one():
                    pending[at].result(10)
        writer.flush(timeout=10)
        results = {at: one.result(10) for at, one in pending.items()}
    found = list(stream.reader(tail=False))
    numbers = [int(bytes(one.payload)) for one in found]
    assert numbers == sorted(numbers)
    once = {at: numbers.count(at) for at in range(400)}
    assert all(count in (0, 1 if at % 5 else 2) for at, count in once.items())
    by_position = {one.dlsn: one for one in found}
    assert {at: int(bytes(by_position[dlsn].payload)) for at, dlsn in results.items()} == {
        at: at for at in results
    }
    assert [one.txid for one in found] == list(range(len(found)))
    assert interrupts.count > 100 and len(pending) < 400


@pytest.mark.slow
def test_appends_to_ledgers_have_the_ids_that_were_returned(
    client: fastbk.sync.Client, rng: random.Random
) -> None:
    interrupts = Interrupts(rng, 400)
    returned: dict[int, int] = {}
    with client.create_ledger() as writer:
        for at in range(300):
            data = b"%d" % at
            with interrupts.one():
                if at % 10 == 0:
                    returned[at] = writer.append_many([data] * 3, timeout=10)[1]
                elif at % 3:
                    returned[at] = writer.append(data, timeout=10)
                else:
                    returned[at] = writer.append_nowait(data).result(10)
        writer.flush(timeout=10)
    datas = [int(bytes(one.data)) for one in client.open_ledger(writer.ledger_id).read()]
    assert {at: datas[entry_id] for at, entry_id in returned.items()} == {at: at for at in returned}
    assert datas == sorted(datas)
    assert interrupts.count > 50


@pytest.mark.slow
def test_entries_of_ledgers_and_listings_come_once(
    client: fastbk.sync.Client, rng: random.Random
) -> None:
    with client.create_ledger() as writer:
        writer.append_many([b"%d" % one for one in range(500)])
    interrupts = Interrupts(rng, 300)
    reader = client.open_ledger(writer.ledger_id)
    for entries in (reader.read(), reader.tail()):
        got: list[int] = []
        while len(got) < 500:
            with interrupts.one():
                for entry in entries:
                    got.append(entry.entry_id)
                    if len(got) % 20 == 0:
                        break
        assert got == list(range(500))
    namespace = client.namespace("shop").namespace("many")
    namespace.create()
    namespace.create_streams([f"s{one:03}" for one in range(300)])
    names: list[str] = []
    streams = namespace.streams()
    while len(names) < 300:
        with interrupts.one():
            for one in streams:
                names.append(one.name)
                if len(names) % 20 == 0:
                    break
    assert names == [f"s{one:03}" for one in range(300)]
    assert interrupts.count > 5


@pytest.mark.slow
def test_closing_goes_on_and_a_second_close_waits_for_it(
    client: fastbk.sync.Client, rng: random.Random
) -> None:
    """An interrupted close was an abort, and a second one did nothing: acknowledgements and appends were gone."""
    stream = client.namespace("shop").create_stream("closed")
    interrupts = Interrupts(rng, 150)
    for count in range(10, 101, 10):
        writer = stream.writer()
        writer.open()
        for at in range(count - 10, count):
            writer.append_nowait(b"%d" % at)
        with interrupts.one():
            writer.close()
        writer.close()
        cursor = stream.cursor("billing", tail=False, flush_interval=3600)
        cursor.open()
        for record in cursor:
            cursor.ack(record)
        with interrupts.one():
            cursor.close()
        cursor.close()
        (info,) = stream.cursors()
        assert info.mark_seq == count
    assert [int(bytes(one.payload)) for one in stream.reader(tail=False)] == list(range(100))
    assert interrupts.count > 5


def test_what_an_interrupted_call_opened_is_closed(rng: random.Random) -> None:
    """INV-C3: whoever does not get what was opened cannot close it."""
    thread = LoopThread(Inner)
    opened: list[int] = []
    undone: list[int] = []

    async def open_it() -> int:
        await asyncio.sleep(0)
        opened.append(len(opened))
        return opened[-1]

    async def close_it(one: int) -> None:
        undone.append(one)

    interrupts = Interrupts(rng, 120)
    got = []
    for _ in range(300):
        with interrupts.one():
            got.append(thread.call(open_it, undo=close_it))
    wait_until(lambda: sorted(got + undone) == opened, "each has one owner")
    assert interrupts.count > 100
    thread.close(10.0)


def test_a_close_that_was_interrupted_goes_on_and_can_be_called_again(rng: random.Random) -> None:
    """INV-C3"""
    interrupts = Interrupts(rng, 150)
    for _ in range(100):
        inner = SlowInner()
        thread = LoopThread(lambda inner=inner: inner)  # type: ignore[misc]
        thread.call_plain(thread.client)
        with interrupts.one():
            thread.close(10.0)
        thread.close(10.0)
        assert inner.is_closed
    assert interrupts.count > 20


@pytest.mark.parametrize("how", ["raises", "closes"])
def test_a_close_ends_wherever_a_handler_runs_in_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-C3: a handler that came behind a call in `Event.wait` left or found its lock taken: nobody ever ended."""
    # Then it is the last client's, whose close ends the thread, too.
    monkeypatch.setattr(loop_thread, "_shared", None)
    place, has_come = 0, True
    while has_come:
        inner = SlowInner()
        thread = LoopThread(lambda inner=inner: inner)  # type: ignore[misc]
        thread.call_plain(thread.client)

        def handle(thread: LoopThread[SlowInner] = thread) -> None:
            if how == "raises":
                raise Interrupted
            thread.close(10.0)

        with suppress(Interrupted), acting_at(place, handle) as acted:
            thread.close(10.0)
        thread.close(10.0)
        assert inner.is_closed
        place, has_come = place + 1, acted()
    assert place > 15


def test_an_iterator_goes_on_after_an_interrupt_and_says_an_error_again(rng: random.Random) -> None:
    thread = LoopThread(Inner)

    async def numbers() -> AsyncIterator[int]:
        for one in range(50):
            await asyncio.sleep(0)
            yield one
        raise Error("the store is away")

    async def nothing() -> AsyncIterator[int]:
        return
        yield

    # The loop is made now: to begin it takes more opcodes than a call that is interrupted gets.
    assert list(thread.iterate(nothing, 7)) == []
    interrupts = Interrupts(rng, 150)
    while interrupts.count <= 10:  # one iterator may be through with few or none
        iterator, got, told = thread.iterate(numbers, 7), [], 0
        while told < 3:
            with interrupts.one():
                try:
                    for one in iterator:
                        got.append(one)  # noqa: PERF402 -- it may be interrupted after each
                except Error:
                    told += 1
        assert got == list(range(50))
    thread.close(10.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "SIGINT",
        "alarm",
        "async",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("SIGTERM", "SIGUSR1")),
    ],
)
def test_a_process_that_signals_interrupt_reads_and_appends_all(
    how: str, rng: random.Random
) -> None:
    """Ctrl-C, a handler of SIGTERM, Celery's soft limit, pytest-timeout's alarm, and PyThreadState_SetAsyncExc."""
    command = [
        sys.executable,
        "-m",
        "tests.fixtures.interrupted_reader",
        how,
        str(rng.randrange(9999)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        number = getattr(signal, how) if how.startswith("SIG") else None
        while number is not None and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.001, 0.01))
            process.send_signal(number)
        count = int(process.stdout.readline())
    assert process.returncode == 0
    assert count > 5
