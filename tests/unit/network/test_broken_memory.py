"""Shared memory as only a broken journal or index would leave it (A6)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from fastbk.native.ffi import PoisonedError
from tests.fixtures import apache_wire, frames
from tests.fixtures.frames import answer_of
from tests.fixtures.worker_harness import READ, WorkerHarness, served, until


def spoil_order(s: WorkerHarness) -> None:
    s.publish()
    s.poke(0, "descriptors", 5)


def spoil_ring_end(s: WorkerHarness) -> None:
    s.poke(0, "descriptor.ring_end", 0)  # of nothing: keeps the field's name checked
    s.publish()
    s.poke(0, "descriptors", 1 << 60, more=s_offset(s, "descriptor.ring_end"))


def spoil_middle_of_a_record(s: WorkerHarness) -> None:
    s.publish()
    s.poke(0, "descriptors", 104, more=s_offset(s, "descriptor.ring_end"))


def spoil_exceptions(s: WorkerHarness) -> None:
    s.publish()
    s.poke(0, "descriptors", 1 << 40, more=s_offset(s, "descriptor.exceptions_end"))


def spoil_exception_position(s: WorkerHarness) -> None:
    s.library.worker_harness_except(s._s, 4, 20)
    s.publish()


def spoil_published(s: WorkerHarness) -> None:
    s.poke(0, "published", 1 << 50)


def spoil_reply_written(s: WorkerHarness) -> None:
    s.poke(1, "reply_written", 1 << 50)


def spoil_reply_backwards(s: WorkerHarness) -> None:
    s.poke(1, "reply_written", 2**64 - 8)


def spoil_reply_size(s: WorkerHarness) -> None:
    s.poke(2, "", (1 << 32 | 1) << 3)
    s.poke(1, "reply_written", 64)


def spoil_reply_epoch(s: WorkerHarness) -> None:
    s.reply(frames.read_reply(2, 0, b"x"), 1 << 32, READ)
    s.poke(2, "", 12345, more=16)


def spoil_reply_length(s: WorkerHarness) -> None:
    frame = frames.read_reply(2, 0, b"x")
    s.reply(struct.pack("<I", 9) + frame[4:], 1 << 32, READ)


def spoil_indexed(s: WorkerHarness) -> None:
    s.poke(1, "indexed", 1 << 50)


def spoil_request_consumed(s: WorkerHarness) -> None:
    s.poke(1, "request_consumed", 8 << 50)


def s_offset(s: WorkerHarness, field: str) -> int:
    return int(s.library.worker_harness_offset(field.encode()))


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_order,
        spoil_ring_end,
        spoil_middle_of_a_record,
        spoil_exceptions,
        spoil_exception_position,
        spoil_published,
        spoil_reply_written,
        spoil_reply_backwards,
        spoil_reply_size,
        spoil_reply_epoch,
        spoil_reply_length,
        spoil_indexed,
        spoil_request_consumed,
    ],
)
async def test_broken_shared_memory_ends_the_worker(spoil: Callable[[WorkerHarness], None]) -> None:
    """A6: what cannot be is never acted upon: the process reports it, and dies."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(frames.hello() + frames.add(2, 0) + frames.add(3, 1))
            assert answer_of(await client.frame()) == (1, 0)
            await bookie.take(2)
            loop = asyncio.get_running_loop()
            # the bell, so that the one collect below sees it
            loop.remove_reader(worker_harness.fd(3))
            spoil(worker_harness)
            with pytest.raises(PoisonedError):
                bookie.worker.collect()
            bookie.network._timer.cancel()  # type: ignore[union-attr]
            bookie.network.worker = _Ended()  # type: ignore[assignment]
            await client.close()
            for connection in list(bookie.network.connections.values()):
                connection.abort()
            await until(lambda: not bookie.network.connections)


async def test_an_answer_that_no_index_writes_ends_the_worker() -> None:
    """Frames for Apache's clients are read by their layout, not walked; another one is not believed."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache_wire.v2_read(1))
            record = await bookie.take_request()
            asyncio.get_running_loop().remove_reader(worker_harness.fd(3))
            worker_harness.reply(
                frames.read_reply(record.request_id, 1, b"x"), record.connection_id, READ
            )
            with pytest.raises(PoisonedError):
                bookie.worker.collect()
            bookie.network._timer.cancel()  # type: ignore[union-attr]
            bookie.network.worker = _Ended()  # type: ignore[assignment]
            await client.close()
            for connection in list(bookie.network.connections.values()):
                connection.abort()
            await until(lambda: not bookie.network.connections)


class _Ended:
    """In the place of a worker that must not be called any more."""

    pending = 0

    def collect(self) -> tuple[list[tuple[int, int]], bool]:
        return [], False

    def poll(self) -> tuple[list[tuple[int, int]], bool]:
        return [], False

    def drain(self) -> list[tuple[int, int]]:
        return []
