"""Random faults under real clients on fake bookies: what was acknowledged is read by whoever comes (INV-C1, INV-C2).

The protocol itself is judged by the simulator; this is about what drives it: channels, timers, futures, metadata calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastbk
from fastbk.errors import BufferFull, Error, MetadataUnavailable, QuorumTimeout
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.wire.statuses import Status
from tests.fixtures.aio import LOOPS
from tests.unit.client.fake_cluster import fake_cluster, one_ledger, read_all, some_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.client import Client, LedgerWriter
    from fastbk.model.ids import EntryId
    from tests.fixtures.fake_bookie import FakeBookie

pytestmark = pytest.mark.slow

OPTIONS = {
    "append_timeout": 3.0,
    "read_timeout": 2.0,
    "connect_timeout": 0.5,
    "probe_timeout": 0.2,
    "replace_after": 0.03,
    "bookie_timeout": 0.15,
    "laggard_wait": 0.02,
    "backoff_max": 0.05,
    "entries_in_flight_max": 40,
}
REFUSALS = (Status.READ_ONLY, Status.IO_ERROR, Status.TOO_MANY_REQUESTS, Status.NOT_READY)


class Chaos:
    """Breaks at most two bookies at a time, heals them all at the end."""

    def __init__(self, rng: random.Random, fakes: list[FakeBookie]) -> None:
        self._rng = rng
        self._toys = fakes
        self._broken: dict[str, Callable[[], object]] = {}

    async def step(self) -> None:
        rng = self._rng
        if self._broken and (len(self._broken) == 2 or rng.random() < 0.5):
            await self._heal(rng.choice(sorted(self._broken)))
            return
        fake = rng.choice([one for one in self._toys if one.bookie_id not in self._broken])
        kind = rng.choice(["stop", "cut", "refuse", "swallow", "drop", "slow", "silent"])
        faults = fake.faults
        if kind == "stop":
            await fake.stop()
            self._broken[fake.bookie_id] = fake.start
        elif kind == "cut":
            fake.cut()
        elif kind == "refuse":
            status = rng.choice(REFUSALS)
            faults.refuse_adds = lambda *_: status
            self._broken[fake.bookie_id] = lambda: setattr(faults, "refuse_adds", None)
        elif kind == "swallow":
            faults.swallow_adds = True
            self._broken[fake.bookie_id] = lambda: setattr(faults, "swallow_adds", False)
        elif kind == "drop":
            faults.drop_adds = lambda _, entry_id: entry_id % 3 == 0
            self._broken[fake.bookie_id] = lambda: setattr(faults, "drop_adds", None)
        elif kind == "slow":
            faults.delay_s = lambda: rng.choice([0.0, 0.002, 0.02])
            self._broken[fake.bookie_id] = lambda: setattr(faults, "delay_s", None)
        else:
            faults.silent = True
            self._broken[fake.bookie_id] = lambda: setattr(faults, "silent", False)

    async def _heal(self, name: str) -> None:
        healed = self._broken.pop(name)()
        if asyncio.iscoroutine(healed):
            await healed
        else:
            next(one for one in self._toys if one.bookie_id == name).cut()

    async def end(self) -> None:
        for name in list(self._broken):
            await self._heal(name)


def data_of(number: int) -> bytes:
    return b"%d." % number * (1 + number % 9)


async def write(rng: random.Random, writer: LedgerWriter, acked: dict[EntryId, bytes]) -> None:
    """Append until the writer ends or enough is written; order and density are checked on the way."""
    number = 0
    futures: list[tuple[bytes, asyncio.Future[EntryId]]] = []
    with contextlib.suppress(Error):
        while number < 400:
            data = data_of(number)
            try:
                futures.append((data, writer.append_nowait(data)))
            except BufferFull:
                await writer.ready()
                continue
            number += 1
            if rng.random() < 0.1:
                await asyncio.sleep(rng.choice([0, 0.001, 0.004]))
            if rng.random() < 0.05:
                await writer.flush()
    has_failed = False
    for data, future in futures:
        try:
            entry_id = await asyncio.wait_for(asyncio.shield(future), 10)
        except Error:
            has_failed = True
        else:
            assert not has_failed, "INV-C2: acknowledged behind a failure"
            assert entry_id == len(acked)
            acked[entry_id] = data


async def read_all_now(client: Client, writer: LedgerWriter) -> dict[EntryId, bytes]:
    reader = await client.open_ledger(writer.ledger_id, password=b"pw")
    return {one.entry_id: bytes(one.data) async for one in reader.read()}


async def chaos(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    ensemble, write_quorum, ack_quorum = rng.choice([(3, 3, 2), (4, 3, 2), (3, 2, 2), (4, 4, 3)])
    async with fake_cluster(6, **OPTIONS) as (client, fakes, store):
        writer = await client.create_ledger(
            ensemble,
            write_quorum,
            ack_quorum,
            password=b"pw",
            digest=rng.choice(["crc32c", "hmac"]),
        )
        acked: dict[EntryId, bytes] = {}
        trouble = Chaos(rng, fakes)
        writing = asyncio.create_task(write(rng, writer, acked))
        away = rng.random() < 0.3
        with monkeypatch.context() as patch:
            while not writing.done():
                await asyncio.wait([writing], timeout=rng.choice([0.01, 0.03, 0.1]))
                await trouble.step()
                if away and rng.random() < 0.2:
                    patch.setattr(MemoryStore, "update_ledger", unavailable)
                else:
                    patch.undo()
        await trouble.end()
        await writing
        others = [client] if rng.random() < 0.5 else []
        if others:
            with contextlib.suppress(Error):
                await writer.close()
        async with (
            fastbk.connect(store, **OPTIONS) as first,
            fastbk.connect(store, **OPTIONS) as second,
        ):
            found = await asyncio.gather(read_all_now(first, writer), read_all_now(second, writer))
        assert found[0] == found[1]
        assert sorted(found[0]) == list(range(len(found[0])))
        for entry_id, data in acked.items():
            assert found[0][entry_id] == data, f"entry {entry_id} was acknowledged"
        for entry_id, data in found[0].items():
            assert data == data_of(entry_id)
        metadata = store.read_ledger(writer.ledger_id).metadata
        assert metadata.length == sum(map(len, found[0].values()))


def unavailable(*_: object) -> int:
    raise MetadataUnavailable("the store is away")


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32))
@pytest.mark.parametrize("kind", LOOPS)
def test_nothing_acknowledged_is_lost_whatever_fails(kind: str, seed: int) -> None:
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner, pytest.MonkeyPatch.context() as patch:
        runner.run(chaos(seed, patch))


# Cancels at random points: no answer ever reaches another caller, order is kept, connections stay
# healthy.


def numbered(entry_id: int) -> bytes:
    return b"%d" % entry_id * (1 + entry_id % 7)


async def cancels(seed: int) -> None:
    rng = random.Random(seed)
    # Without the timer: once the machine keeps this loop waiting, the LAC's guard connects as well (INV-C7).
    async with fake_cluster(entries_in_flight_max=8, explicit_lac_interval=0) as (client, fakes, _):
        for fake in fakes:
            # Answers overtake each other.
            fake.faults.delay_s = lambda: rng.choice([0, 0, 0.001, 0.004])
        written = await client.create_ledger()
        await written.append_many([numbered(one) for one in range(40)])
        await written.close()
        readers = [await client.open_ledger(written.ledger_id) for _ in range(3)]
        writer = await client.create_ledger()
        acknowledged: dict[int, bytes] = {}

        async def read() -> None:
            reader = rng.choice(readers)
            first = rng.randrange(40)
            last = rng.randrange(first, 40)
            found = [(one.entry_id, bytes(one.data)) async for one in reader.read(first, last)]
            assert found == [(one, numbered(one)) for one in range(first, last + 1)]

        async def append(name: bytes) -> None:
            if rng.random() < 0.3:
                first, last = await writer.append_many([name + b"%d" % one for one in range(12)])
                assert last == first + 11
                for one in range(12):
                    acknowledged[first + one] = name + b"%d" % one
            elif rng.random() < 0.3:
                with contextlib.suppress(QuorumTimeout):
                    entry_id = await writer.append(name, timeout=rng.choice([0.0005, 0.002]))
                    acknowledged[entry_id] = name
            else:
                acknowledged[await writer.append(name)] = name

        tasks = [
            asyncio.create_task(read() if rng.random() < 0.5 else append(b"task %d " % one))
            for one in range(25)
        ]
        for task in tasks:
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))
                task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)
        for fake in fakes:
            fake.faults.delay_s = None
        # The pipe goes on behind what was cancelled.
        last = await writer.append(b"last")
        acknowledged[last] = b"last"
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        stored = {one.entry_id: bytes(one.data) async for one in reader.read()}
        assert sorted(stored) == list(range(last + 1))
        assert all(stored[one] == data for one, data in acknowledged.items())
        assert all(fake.connections <= 2 for fake in fakes)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
@pytest.mark.parametrize("kind", LOOPS)
def test_random_cancels_misdeliver_nothing(kind: str, seed: int) -> None:
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        runner.run(cancels(seed))


async def test_a_cancelled_wait_for_room_sends_nothing() -> None:
    async with one_ledger(entries_in_flight_max=1) as (_, fakes, _, writer):
        for fake in fakes:
            fake.faults.swallow_adds = True
        future = writer.append_nowait(b"first")
        waiting = asyncio.create_task(writer.append(b"never"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        await future
        assert await writer.append(b"second") == 1
        await writer.close()
        assert writer.last_add_confirmed == 1


async def test_a_cancelled_append_stays_in_the_pipe() -> None:
    async with one_ledger() as (client, _, _, writer):
        task = asyncio.create_task(writer.append(b"cancelled"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await writer.append(b"after") == 1
        await writer.close()
        assert await read_all(client, writer.ledger_id) == [b"cancelled", b"after"]


async def test_a_cancelled_close_can_be_finished() -> None:
    async with one_ledger() as (client, fakes, _, writer):
        for fake in fakes:
            fake.faults.swallow_adds = True
        future = writer.append_nowait(b"x")
        closing = asyncio.create_task(writer.close())
        await some_turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        assert await future == 0
        await writer.close()
        assert (await client.ledger_info(writer.ledger_id)).metadata.last_entry_id == 0
