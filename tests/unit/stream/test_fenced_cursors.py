"""What a fenced holder of a cursor is told: once, by the first call that meets it, else by the end of its block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeAlias

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ConfigError, CursorFenced
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.sync_cursor import SyncCursor, SyncPatternCursor
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.pattern.cursor import PatternCursor
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Gap, Record
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.fake_streams import as_client
from tests.fixtures.wait import wait_until, wait_until_async

AnyCursor: TypeAlias = Cursor[Gap] | PatternCursor[Gap]
Make = Callable[[FakeClient], AnyCursor]
Tell = Callable[[AnyCursor, list[Record]], Awaitable[object]]
WAIT_S = 10.0


def _space(client: FakeClient) -> Namespace:
    return Namespace(Catalog(as_client(client)), "shop")


def of_stream(client: FakeClient) -> Cursor[Gap]:
    return _space(client).stream("a").cursor("c", flush_interval=60, on_gap="yield")


def of_pattern(client: FakeClient) -> PatternCursor[Gap]:
    return _space(client).cursor("*", "c", flush_interval=60, on_gap="yield")


@pytest.fixture(params=[of_stream, of_pattern], ids=["stream", "pattern"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


async def filled(cluster: Cluster) -> None:
    async with _space(cluster.client()).stream("a").writer(create=True) as writer:
        for number in range(5):
            await writer.append(b"%d" % number)


async def taken(cursor: AnyCursor, count: int) -> list[Record]:
    found = [await anext(cursor) for _ in range(count)]
    return [one for one in found if isinstance(one, Record)]


async def take_over(cluster: Cluster, make: Make) -> None:
    cursor = make(cluster.client())
    await cursor.open()
    await cursor.abort()


async def _ack(cursor: AnyCursor, records: list[Record]) -> None:
    await cursor.ack(records[1])


async def _ack_one(cursor: AnyCursor, records: list[Record]) -> None:
    await cursor.ack_one(records[1])


async def _flush(cursor: AnyCursor, records: list[Record]) -> None:
    cursor.ack(records[1])
    await cursor.flush()


async def _close(cursor: AnyCursor, records: list[Record]) -> None:
    cursor.ack(records[1])
    await cursor.close()


async def _noticed(cursor: AnyCursor, records: list[Record]) -> None:
    """It is fenced in the background: nobody has been told."""
    cursor.ack(records[1])
    cursor._alive().flusher._due()
    await wait_until_async(lambda: cursor._failure is not None, "it was fenced")


async def _read(cursor: AnyCursor, records: list[Record]) -> None:
    await _noticed(cursor, records)
    await cursor.read()


async def _next(cursor: AnyCursor, records: list[Record]) -> None:
    await _noticed(cursor, records)
    await anext(cursor)


async def _late_ack(cursor: AnyCursor, records: list[Record]) -> None:
    await _noticed(cursor, records)
    cursor.ack(records[2])


@pytest.mark.parametrize("tell", [_ack, _ack_one, _flush, _close, _read, _next, _late_ack])
async def test_the_end_of_a_block_says_nothing_that_was_said_before(make: Make, tell: Tell) -> None:
    cluster = Cluster()
    await filled(cluster)
    async with make(cluster.client()) as cursor:
        records = await taken(cursor, 3)
        await take_over(cluster, make)
        with pytest.raises(CursorFenced, match="not stored is delivered again"):
            await tell(cursor, records)
    with pytest.raises(CursorFenced):
        await cursor.close()  # who calls this asks for it


@pytest.mark.parametrize("is_noticed", [False, True], ids=["at_the_end", "before_it"])
async def test_the_end_of_a_block_says_what_nobody_was_told(make: Make, is_noticed: bool) -> None:
    cluster = Cluster()
    await filled(cluster)
    client = cluster.client()
    with pytest.raises(CursorFenced, match="not stored is delivered again"):
        async with make(client) as cursor:
            records = await taken(cursor, 3)
            await take_over(cluster, make)
            if is_noticed:
                await _noticed(cursor, records)
                for one in list(client.unsettled):
                    await one.until_settled()  # type: ignore[attr-defined]
            else:
                cursor.ack(records[1])


async def test_what_ends_a_block_otherwise_says_that_something_was_not_kept(make: Make) -> None:
    cluster = Cluster()
    await filled(cluster)
    with pytest.raises(KeyError) as mine:
        async with make(cluster.client()) as cursor:
            records = await taken(cursor, 3)
            await take_over(cluster, make)
            cursor.ack(records[1])
            raise KeyError("mine")
    (note,) = mine.value.__notes__
    assert note.startswith("Closing failed, too: ") and "not stored is delivered again" in note
    with pytest.raises(CursorFenced) as fenced:
        async with make(cluster.client()) as cursor:
            records = await taken(cursor, 3)
            await take_over(cluster, make)
            await cursor.ack(records[1])
    assert not hasattr(fenced.value, "__notes__"), "the end had nothing to add"


# --- without await ------------------------------------------------------------------------------------------------


class Blocking:
    """A loop in a thread of its own, and cursors on it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.client = self.cluster.client()

        async def closed(timeout: float | None = None) -> None:
            return None

        self.client.close = closed  # type: ignore[attr-defined]
        self.loop = LoopThread(lambda: self.client)  # type: ignore[arg-type, return-value]
        self.loop.call(lambda: filled(self.cluster))

    def cursor(self, make: Make) -> SyncCursor[Gap] | SyncPatternCursor[Gap]:
        kind = SyncCursor if make is of_stream else SyncPatternCursor
        return kind(self.loop, lambda: make(self.client))  # type: ignore[arg-type, return-value]

    def take_over(self, make: Make) -> None:
        self.loop.call(lambda: take_over(self.cluster, make))


@pytest.mark.parametrize(
    "how", ["result", "flush", "late_ack", "read", "close", "nothing", "nothing_noticed"]
)
def test_without_await_it_is_said_once(make: Make, how: str) -> None:
    world = Blocking()
    is_told = not how.startswith("nothing")
    try:
        with (
            nullcontext() if is_told else pytest.raises(CursorFenced),
            world.cursor(make) as cursor,
        ):
            records = [next(cursor) for _ in range(3)]
            assert all(isinstance(one, Record) for one in records)
            world.take_over(make)
            pending = cursor.ack(records[1])  # type: ignore[arg-type]
            if how in ("late_ack", "read", "nothing_noticed"):
                inner = cursor._inner
                assert inner is not None
                wait_until(lambda: not cursor._acks, "the acknowledgement came to the loop")
                world.loop.call_plain(lambda: inner._alive().flusher._due())
                wait_until(lambda: inner._failure is not None, "it was fenced")
            if how == "nothing_noticed":
                cursor.ack(records[2])  # type: ignore[arg-type]
                wait_until(lambda: not cursor._acks, "that came to the loop, too")
            calls: dict[str, Callable[[], object]] = {
                "result": pending.result,
                "flush": cursor.flush,
                "late_ack": lambda: cursor.ack_one(records[2]),  # type: ignore[arg-type]
                # the first one is at hand
                "read": lambda: [cursor.read(timeout=WAIT_S) for _ in range(2)],
                "close": cursor.close,
            }
            if is_told:
                with pytest.raises(CursorFenced):
                    calls[how]()
        with pytest.raises(CursorFenced):
            cursor.close()
    finally:
        world.loop.close(WAIT_S)


def test_without_await_an_acknowledgement_that_was_refused_on_the_loop_is_told_at_the_end() -> None:
    """It was of a position that was never handed out; the next call would have said so, and there was none."""
    world = Blocking()
    try:
        with pytest.raises(ConfigError, match="not handed out"), world.cursor(of_stream) as cursor:
            cursor.ack(DLSN(7, 0, 0))
        with world.cursor(of_stream) as cursor:
            cursor.ack(DLSN(7, 0, 0))
            with pytest.raises(ConfigError, match="not handed out"):
                cursor.flush()
            cursor.close()
    finally:
        world.loop.close(WAIT_S)
