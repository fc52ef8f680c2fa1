"""The HTTP server of all ports: a head has one meaning or none, and who is slow or large costs only others like it.

A head that a proxy in front reads in another way would let one request hide in another. INV-B1.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from fastbk.observe.logs import LimitLog
from fastbk.web.server import (
    REQUEST_BYTES_MAX,
    Answer,
    Bounds,
    Head,
    HttpListener,
    HttpServer,
    body_size,
    parsed_head,
)
from tests.fixtures.wait import wait_until_async

FIRST = b"POST /v1/draw-id HTTP/1.1"
GET = b"GET /x HTTP/1.1\r\n\r\n"
ONE = Bounds(
    head_limit="requests",
    heads_max=9,
    head_timeout_s=30.0,
    answers_max=(9, 0),
    answer_timeout_s=30.0,
)
"""As pages have them: one answer a connection, a body belongs to its head."""
KEPT = replace(
    ONE,
    head_limit="idle",
    bodies_max=(9, 9),
    body_timeout_s=30.0,
    answers_max=(9, 9),
    is_kept_open=True,
)
"""As a gateway has them."""
BOTH = pytest.mark.parametrize("bounds", [ONE, KEPT], ids=["one answer", "kept open"])


class Echo:
    """Answers with what it got: the target's word many times where that is a number."""

    def meet(self, writer: asyncio.StreamWriter) -> str:
        return str(writer.get_extra_info("peername")[0])

    def check(self, head: Head) -> Answer | int:
        if head.headers is None:
            return self.failure(400, "no head")
        size = body_size(head, 1 << 20, default="0")
        return size if isinstance(size, int) else self.failure(*size)

    async def respond(self, peer: str, head: Head, body: bytes, refusal: Answer | None) -> Answer:
        if refusal is not None:
            return refusal
        word = head.target.removeprefix("/")
        if word == "fault":
            raise ZeroDivisionError
        content = b"x" * int(word) if word.isdigit() else f"{peer} {word} ".encode() + body
        return Answer(401 if word == "last" else 200, "text/plain", content, is_last=word == "last")

    def failure(self, status: int, text: str) -> Answer:
        return Answer(status, "text/plain", text.encode())


class Port:
    """A server that listens, and which limits it has noted."""

    def __init__(self, number: int, server: HttpServer[str], limits: Counter[str]) -> None:
        self.number = number
        self.server = server
        self.limits = limits
        self.opened: list[asyncio.StreamWriter] = []

    async def begun(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection that has sent this."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        self.opened.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def whole(self, data: bytes) -> bytes:
        """Return all that comes until the server closes."""
        reader, _ = await self.begun(data)
        return await asyncio.wait_for(reader.read(), 20)


@asynccontextmanager
async def served(bounds: Bounds) -> AsyncIterator[Port]:
    limits: Counter[str] = Counter()

    def note(limit: str) -> None:
        limits[limit] += 1

    faults = LimitLog("http.connection_failed", level="error")
    server = HttpServer(Echo(), bounds, note, faults)
    listener = await HttpListener.bind("127.0.0.1", 0)
    await server.serve(listener)
    port = Port(listener.port, server, limits)
    try:
        yield port
    finally:
        for writer in port.opened:
            writer.transport.abort()
        await server.close()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return head and body of the next answer."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(size)


# --- heads ------------------------------------------------------------------------------------------------------------


def test_a_head_is_read() -> None:
    head = FIRST + b"\r\nHost: a:1\r\nX-Two: 1\r\nx-two:\t2 \r\n\r\n"
    assert parsed_head(head) == ("POST", "/v1/draw-id", {"host": "a:1", "x-two": "1, 2"})
    assert parsed_head(FIRST + b"\r\n\r\n") == ("POST", "/v1/draw-id", {})


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length : 5",
        b" Content-Length: 5",
        b"X: y\r\n Content-Length: 5",
        b"X: y\r\n\tContent-Length: 5",
        b"X: y\nContent-Length: 5",
        b"X: y\rContent-Length: 5",
        b"X\x00: y",
        b"X: y\x00",
        b": 5",
        b"Content-Length",
    ],
)
def test_what_others_may_read_in_another_way_is_refused(line: bytes) -> None:
    assert parsed_head(FIRST + b"\r\n" + line + b"\r\n\r\n")[2] is None


@pytest.mark.parametrize(
    "first", [b"", b"POST /x", b"POST  /x HTTP/1.1", b"POST /x HTTP/2", b"PO\nST /x HTTP/1.1"]
)
def test_another_first_line_is_no_request(first: bytes) -> None:
    assert parsed_head(first + b"\r\nHost: a\r\n\r\n")[2] is None


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        (b"Content-Length: 5", 5),
        (b"Content-Length: 0", 0),
        (b"X: y", None),
        (b"Content-Length: x", None),
        (b"Content-Length: -1", None),
        (b"Content-Length: +1", None),
        (b"Content-Length: 5\r\nContent-Length: 5", None),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", None),
        (b"Content-Length: 5\r\nTransfer-Encoding:", None),
        (b"Content-Length: 101", None),
        (b"Content-Length: 1111111111111111111111", None),
    ],
)
def test_a_body_has_one_length_within_the_bound_or_is_refused(
    lines: bytes, size: int | None
) -> None:
    found = body_size(parsed_head(FIRST + b"\r\n" + lines + b"\r\n\r\n"), 100)
    assert found == size if size is not None else isinstance(found, tuple)


# --- connections ------------------------------------------------------------------------------------------------------


async def test_the_bytes_of_an_answer() -> None:
    async with served(ONE) as port:
        assert await port.whole(b"PUT /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nab") == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 14\r\nConnection: close\r\n"
            b"Cache-Control: no-store\r\n\r\n127.0.0.1 x ab"
        )
        head = await port.whole(b"HEAD /7 HTTP/1.0\r\n\r\n")
        assert b"Content-Length: 7\r\n" in head and head.endswith(b"\r\n\r\n")
        assert b"\r\nWWW-Authenticate: Bearer\r\n" in await port.whole(
            b"GET /last HTTP/1.1\r\n\r\n"
        )


async def test_a_kept_connection_answers_one_request_after_the_other() -> None:
    async with served(KEPT) as port:
        # The second is there before the first is answered.
        reader, writer = await port.begun(GET + b"GET /300000 HTTP/1.1\r\n\r\n")
        head, body = await answer(reader)
        assert (b"Connection: close" in head, body) == (False, b"127.0.0.1 x ")
        assert (await answer(reader))[1] == b"x" * 300_000, "more than one piece"
        writer.write(b"GET /last HTTP/1.1\r\n\r\n")
        assert b"\r\nConnection: close\r\n" in (await answer(reader))[0]
        assert await reader.read() == b"", "the site has said that it is the last one"
        await wait_until_async(lambda: len(port.server) == 0, "it to be forgotten")


@BOTH
async def test_what_is_no_head_is_refused_and_ends_the_connection(bounds: Bounds) -> None:
    async with served(bounds) as port:
        found = await port.whole(b"GET /x HTTP/1.1\r\nContent-Length : 2\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 400 ") and found.endswith(b"no head")
        found = await port.whole(FIRST + b"\r\nContent-Length: 9999999\r\n\r\n" + GET)
        assert found.startswith(b"HTTP/1.1 413 ") and found.count(b"HTTP/1.1") == 1


@BOTH
@pytest.mark.parametrize("size_bytes", [REQUEST_BYTES_MAX + 100, 3 * REQUEST_BYTES_MAX])
async def test_a_head_that_is_too_large_gets_431(bounds: Bounds, size_bytes: int) -> None:
    async with served(bounds) as port:
        found = await port.whole(b"GET /" + b"x" * size_bytes)
        assert found.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert port.limits == {"request_size": 1}


@BOTH
@pytest.mark.parametrize("begun", [b"", b"GET /x HTTP/1.1\r\n"], ids=["silent", "half a head"])
async def test_a_slow_head_has_its_time(bounds: Bounds, begun: bytes) -> None:
    async with served(replace(bounds, head_timeout_s=0.05)) as port:
        assert await port.whole(begun) == b""
        assert port.limits == {"request_timeout": 1}


@BOTH
async def test_a_slow_body_has_its_time(bounds: Bounds) -> None:
    body = replace(bounds, head_timeout_s=0.2, body_timeout_s=0.2)
    async with served(body) as port:
        assert await port.whole(b"PUT /x HTTP/1.1\r\nContent-Length: 2\r\n\r\na") == b""


@BOTH
async def test_an_answer_that_nobody_reads_has_its_time(bounds: Bounds) -> None:
    async with served(replace(bounds, answer_timeout_s=0.1)) as port:
        reader, _ = await port.begun(b"GET /33554432 HTTP/1.1\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await wait_until_async(lambda: len(port.server) == 0, "it to be cut")
        assert port.limits == {"answer_timeout": 1}


@BOTH
async def test_the_oldest_of_the_address_with_the_most_makes_room_for_a_head(
    bounds: Bounds,
) -> None:
    async with served(replace(bounds, heads_max=3)) as port:
        slow = [await port.begun(b"GET /x HTTP/1.1\r\n") for _ in range(4)]
        assert await slow[0][0].read() == b""
        assert port.limits == {bounds.head_limit: 1}
        slow[3][1].write(b"\r\n")
        assert (await answer(slow[3][0]))[0].startswith(b"HTTP/1.1 200")


async def test_large_bodies_and_answers_have_places_of_their_own() -> None:
    async with served(replace(KEPT, bodies_max=(9, 1), answers_max=(9, 1))) as port:
        head = b"PUT /x HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"
        small = await port.begun(b"PUT /x HTTP/1.1\r\nContent-Length: 2\r\n\r\na")
        slow = [await port.begun(head) for _ in range(2)]
        assert await slow[0][0].read() == b"", "the older one was cut"
        assert port.limits == {"large_bodies": 1}
        small[1].write(b"b")
        assert (await answer(small[0]))[1].endswith(b"ab")
        for _ in range(2):
            await port.begun(b"GET /33554432 HTTP/1.1\r\n\r\n")
        await wait_until_async(lambda: port.limits["large_answers"] == 1, "the older one to be cut")
        assert (await answer((await port.begun(GET))[0]))[1] == b"127.0.0.1 x "


@BOTH
async def test_a_fault_ends_its_connection_alone(
    bounds: Bounds, capfd: pytest.CaptureFixture[str]
) -> None:
    async with served(bounds) as port:
        other = await port.begun(b"GET /x HTTP/1.1\r\n")
        found = await port.whole(b"GET /fault HTTP/1.1\r\n\r\n" + GET)
        assert found.startswith(b"HTTP/1.1 500 ") and found.count(b"HTTP/1.1") == 1
        assert "ZeroDivisionError" in capfd.readouterr().err
        other[1].write(b"\r\n")
        assert (await answer(other[0]))[0].startswith(b"HTTP/1.1 200")
