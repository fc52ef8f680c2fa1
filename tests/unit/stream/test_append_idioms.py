"""One way to append: `append` waits for room and durability, `append_nowait` and `ready` are for pipelines."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

import fastbk
import fastbk.sync
from fastbk.client.ledger_writer import CALLS_PER_TURN as LEDGER_CALLS_PER_TURN
from fastbk.errors import BufferFull, QuorumTimeout
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.writer import stream_writer
from fastbk.stream.writer.stream_writer import CALLS_PER_TURN, StreamWriter
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of, new_stream
from tests.unit.client.fake_cluster import fake_cluster
from tests.unit.stream.test_fenced_appends import HeldAppends
from tests.unit.stream.test_writer import payloads_of

WAIT_S = 10.0
SMALL = 100


async def harness(**options: object) -> tuple[Cluster, HeldAppends, StreamWriter]:
    plan = HeldAppends()
    cluster = Cluster(plan)
    await new_stream(cluster)
    writer = StreamWriter(
        context_of(cluster.client("former")),
        WriterOptions(unacked_bytes_max=SMALL, **options),  # type: ignore[arg-type]
    )
    return cluster, plan, writer


def begun(calls: Iterable[Coroutine[Any, Any, DLSN]]) -> list[asyncio.Task[DLSN]]:
    return [asyncio.create_task(call) for call in calls]


async def test_an_append_waits_for_room_in_the_order_of_the_calls() -> None:
    """INV-S5."""
    cluster, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        pending = begun(writer.append(b"%03d" % at + bytes(50)) for at in range(40))
        batch = begun([writer.append_batch([b"040", b"041"])])
        await asyncio.sleep(0)
        with pytest.raises(BufferFull, match=r"ready\(\)"):
            writer.append_nowait(b"may not pass those that wait")
        plan.go.set()
        positions = await asyncio.wait_for(asyncio.gather(*pending, *batch), WAIT_S)
        assert positions == sorted(positions)
        assert await writer.append_nowait(b"at last") > positions[-1]
    found = await payloads_of(cluster)
    assert [payload[:3] for _, _, payload in found[:-1]] == [b"%03d" % at for at in range(42)]


async def test_so_many_appends_may_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(stream_writer, "WAITING_MAX", 3)
    _, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        pending = begun(writer.append(one) for one in (bytes(SMALL), b"x", b"x", b"x"))
        await asyncio.sleep(0)
        with pytest.raises(BufferFull, match="3 appends wait"):
            await writer.append(b"x")
        plan.go.set()
        await asyncio.wait_for(asyncio.gather(*pending), WAIT_S)


@pytest.mark.parametrize(("ahead", "outcome"), [(0, "unknown"), (3, "not_written")])
async def test_an_append_that_takes_too_long_says_what_became_of_it(
    ahead: int, outcome: str
) -> None:
    _, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        before = begun(writer.append(bytes(SMALL)) for _ in range(ahead))
        await asyncio.sleep(0)
        with pytest.raises(QuorumTimeout) as caught:
            await writer.append(b"late", timeout=0.01)
        assert caught.value.outcome == outcome
        with pytest.raises(QuorumTimeout):
            await writer.flush(timeout=0.01)
        plan.go.set()
        await asyncio.wait_for(asyncio.gather(*before), WAIT_S)
        plan.go.clear()
        slow = asyncio.create_task(writer.append(b"goes on", timeout=WAIT_S))
        await asyncio.sleep(0)
        await writer.ready()
        beside = writer.append_nowait(b"one that is taken holds up no other")
        plan.go.set()
        assert await slow < await asyncio.wait_for(beside, WAIT_S)


async def test_flush_waits_for_appends_that_wait_for_room() -> None:
    _, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        pending = begun(writer.append(bytes(SMALL)) for _ in range(10))
        flushing = asyncio.create_task(writer.flush())
        plan.go.set()
        last = await asyncio.wait_for(flushing, WAIT_S)
        assert (
            last == await pending[-1] == writer.last_dlsn
            and writer.last_txid == 9
            and not writer.unacked_bytes
        )


async def test_a_close_that_takes_too_long_ends_the_writer() -> None:
    _, plan, writer = await harness()
    await writer.open()
    plan.go.clear()
    pending = writer.append_nowait(b"x")
    with pytest.raises(QuorumTimeout) as caught:
        await writer.close(timeout=0.01)
    assert caught.value.outcome == "unknown"
    plan.go.set()
    with pytest.raises(fastbk.errors.Error):
        await asyncio.wait_for(pending, WAIT_S)


async def turns_during(calls: int, ready: Callable[[], object]) -> int:
    """Return how often another task ran during so many calls of `ready`."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(calls):
        await ready()  # type: ignore[misc]
    task.cancel()
    return turns


async def test_a_loop_of_ready_lets_other_tasks_run() -> None:
    """A loop of `drain` once stalled all others for half a second: it never yielded while there was room."""
    _, _, writer = await harness()
    async with writer:
        assert await turns_during(5 * CALLS_PER_TURN, writer.ready) >= 5
    async with fake_cluster() as (client, _, _), await client.create_ledger() as ledger:
        assert await turns_during(5 * LEDGER_CALLS_PER_TURN, ledger.ready) >= 5


@pytest.mark.filterwarnings("error")
async def test_an_append_that_nobody_awaits_names_the_line_that_called_it() -> None:
    """It appends nothing. The warning comes where the append is let go, which may be anywhere."""
    cluster, _, writer = await harness()
    async with (
        writer,
        fake_cluster() as (client, _, _),
        await client.create_ledger() as ledger,
    ):
        line = inspect.getlineno(inspect.currentframe()) + 2  # type: ignore[arg-type]
        forgotten = [
            writer.append(b"x"),
            writer.append(b"x", timeout=1),
            writer.append_batch([b"x", b"y"]),
            writer.append_many([b"x"]),
            ledger.append(b"x"),
            ledger.append(b"x", timeout=1),
            ledger.append_many([b"x"]),
        ]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            forgotten.clear()
            gc.collect()
        said = sorted(str(one.message).partition("\n")[0] for one in told)
        assert said == sorted(
            f"coroutine '{name} (called at {__file__}:{line + at})' was never awaited"
            for at, name in enumerate(
                ["StreamWriter.append"] * 2
                + ["StreamWriter.append_batch", "StreamWriter.append_many"]
                + ["LedgerWriter.append"] * 2
                + ["LedgerWriter.append_many"]
            )
        )
        assert {one.category for one in told} == {RuntimeWarning}
        assert writer.last_txid == -1 and ledger.last_add_confirmed == -1
    assert await payloads_of(cluster) == []


def test_former_names_are_gone() -> None:
    """They were deprecated in 0.2."""
    for kind, name in [
        (fastbk.StreamWriter, "drain"),
        (fastbk.sync.StreamWriter, "drain"),
        (fastbk.Stream, "tail"),
        (fastbk.sync.Stream, "tail"),
        (fastbk.LedgerWriter, "tell_last_add_confirmed"),
        (fastbk.sync.LedgerWriter, "tell_last_add_confirmed"),
    ]:
        assert not hasattr(kind, name)
