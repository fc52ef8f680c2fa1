"""A bug in the background reaches whoever calls next, and nobody waits for ever: writers, readers, cursors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from fastbk.errors import Error, InvariantError, WriterFailed
from fastbk.stream.chain_store import ChainStore, VersionedChain
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.store import StateStorage
from fastbk.stream.reader.read_ahead import ReadAhead
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk
from fastbk.stream.writer.engine import Rolling
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of, filled, new_stream, writer_of

PATIENCE_S = 5.0
BUGS = [RuntimeError("a bug"), InvariantError("a bug")]


@pytest.fixture(params=BUGS, ids=["exception", "invariant"])
def bug(request: pytest.FixtureRequest) -> BaseException:
    """What a background task runs into."""
    found: BaseException = request.param
    return found


async def test_reading_ahead(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [3])

    async def broken(_ahead: ReadAhead) -> None:
        raise bug

    monkeypatch.setattr(ReadAhead, "_step", broken)
    async with StreamReader(context) as reader:
        with pytest.raises(Error, match="a bug") as told:
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert told.value.__cause__ is None or told.value.__cause__ is bug
        monkeypatch.undo()
        found = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert isinstance(found, Chunk) and len(found) == 3, "it can be tried again"


async def test_following_the_chain(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, and waiting for another task's reading, both end."""
    context = await new_stream(Cluster())

    async def broken(_store: ChainStore) -> AsyncGenerator[VersionedChain, None]:
        await asyncio.sleep(0)
        raise bug
        yield  # type: ignore[unreachable]

    monkeypatch.setattr(ChainStore, "follow", broken)
    async with StreamReader(context) as reader:
        with pytest.raises(Error, match="a bug"):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        with pytest.raises(Error, match="a bug"):
            await asyncio.wait_for(anext(reader), PATIENCE_S)


async def test_waiting_beside_a_reader_of_a_deleted_stream() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [3])
    async with StreamReader(context) as reader:
        waiting = asyncio.ensure_future(reader.wait_caught_up())
        await asyncio.sleep(0)
        follower = reader._follower
        assert follower is not None
        follower.failure = Error("it is gone")
        with pytest.raises(Error, match="it is gone"):
            await reader.read()
        with pytest.raises(Error, match="it is gone"):
            await asyncio.wait_for(waiting, PATIENCE_S)


async def test_sending(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was appended fails, and so does what is appended next; closing ends."""
    cluster = Cluster()
    await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: logged.append(what))

    def broken(_rolling: Rolling) -> None:
        raise bug

    monkeypatch.setattr(Rolling, "segment_for_next", broken)
    future = writer.append_nowait(b"x")
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(future, PATIENCE_S)
    with pytest.raises(WriterFailed, match="a bug"):
        writer.append_nowait(b"y")
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(writer.close(), PATIENCE_S)
    assert logged, "the bug itself is there to be seen, too"


async def test_keeping_a_cursor(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    await new_stream(cluster)
    await filled(cluster, [3])

    async def broken(_keeper: StateStorage) -> int:
        raise bug

    cursor = Cursor(context_of(cluster.client()), "c")
    await cursor.open()
    record = await anext(cursor)
    monkeypatch.setattr(StateStorage, "keep", broken)
    with pytest.raises(Error, match="a bug"):
        await asyncio.wait_for(_awaited(cursor, record), PATIENCE_S)
    for call in (cursor.flush(), anext(cursor), cursor.close()):
        with pytest.raises(Error, match="a bug"):
            await asyncio.wait_for(call, PATIENCE_S)


async def _awaited(cursor: Cursor, record: object) -> None:
    await cursor.ack(record)  # type: ignore[arg-type]


async def test_a_writer_without_records_says_so(
    bug: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a roll that waits ends."""
    cluster = Cluster()
    await new_stream(cluster)
    writer: StreamWriter = writer_of(cluster)
    await writer.open()
    await writer.append(b"x")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def broken(_rolling: Rolling) -> None:
        raise bug

    monkeypatch.setattr(Rolling, "segment_for_next", broken)
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(writer.roll(), PATIENCE_S)
