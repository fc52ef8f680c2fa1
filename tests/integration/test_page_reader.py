"""Reading pages of servers that misbehave: each ends in time with its reason, and holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from fastbk.meta.api import Endpoint
from fastbk.overview.poller import ANSWER_BYTES_MAX, PageError, PageReader
from tests.fixtures.wait import beats

pytestmark = pytest.mark.no_service

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[Endpoint]:
    """Answer each connection so; yield where."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], "http")
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def with_bytes(data: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return answer


async def silence(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    async for _ in beats(0.01):
        writer.write(b"x")
        await writer.drain()


async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    for _n in range(ANSWER_BYTES_MAX // 65536 + 2):
        writer.write(bytes(65536))
        await writer.drain()


async def test_an_object_is_read() -> None:
    async with served(with_bytes(OK + b'{"state": "writable"}')) as endpoint:
        assert await PageReader().read_object(endpoint, "/info") == {"state": "writable"}


@pytest.mark.parametrize(
    ("answer", "text", "status"),
    [
        (silence, "no answer within 0.2 s", 0),
        (trickle, "no answer within 0.2 s", 0),
        (with_bytes(b""), "answered no HTTP", 0),
        (with_bytes(b"SSH-2.0-OpenSSH\r\n\r\n"), "answered no HTTP", 0),
        (
            with_bytes(b"HTTP/1.1 404 Not Found\r\n\r\nno such\npage"),
            "answered 404: no such page",
            404,
        ),
        (with_bytes(OK + b"[1]"), "answered no JSON object", 200),
        (with_bytes(OK + b'{"reason": "\\ud800"}'), "answered no JSON object", 200),
        (with_bytes(OK + b'{"reason": "\xff"}'), "answered no JSON object", 200),
        (with_bytes(OK + b"[" * 100_000), "answered no JSON object", 200),
    ],
)
async def test_what_is_no_answer_is_an_error_with_its_reason(
    answer: Answer, text: str, status: int
) -> None:
    async with served(answer) as endpoint:
        with pytest.raises(PageError, match=text) as caught:
            await PageReader(timeout_s=0.2).read_object(endpoint, "/info")
        assert caught.value.status == status


async def test_an_endless_answer_is_cut() -> None:
    async with served(flood) as endpoint:
        with pytest.raises(PageError, match="more than 8 MiB"):
            await PageReader(timeout_s=30.0).read(endpoint, "/metrics")


async def test_nobody_listens() -> None:
    async with served(silence) as endpoint:
        pass
    with pytest.raises(PageError, match="Connection refused"):
        await PageReader().read(endpoint, "/info")


async def test_silent_servers_hold_up_no_other() -> None:
    pages = PageReader(parallel_max=64, timeout_s=20.0)
    async with served(silence) as silent, served(with_bytes(OK + b"{}")) as good:
        waiting = [asyncio.create_task(pages.read(silent, "/info")) for _ in range(60)]
        async with asyncio.timeout(10.0):
            assert await pages.read_object(good, "/info") == {}
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
