"""The gateway's connections: HTTP/1.1 that stays open, one request at a time, and bounds on what a peer can stretch.

The port and its handshakes are those of all HTTP pages (`HttpListener`). A connection that waits for its next request,
or sends a large body slowly, costs only others of its kind: where there is no room the oldest is closed (INV-B1).
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, StorageError
from fastbk.gateway.service import REQUESTS_MAX, Peer
from fastbk.gateway.shares import as_it_is
from fastbk.gateway.waits import WAITS_MAX
from fastbk.meta.gateway.messages import (
    CONTENT_TYPE,
    PATH,
    REQUEST_BYTES_MAX,
    encode,
    failure_of,
)
from fastbk.observe.logs import LimitLog
from fastbk.security.admission import Client
from fastbk.web.guards import Places
from fastbk.web.http_head import parsed_head
from fastbk.web.listener import HANDSHAKES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.gateway.service import Answer, Service
    from fastbk.gateway.shares import Scale
    from fastbk.security.admission import Admission
    from fastbk.web.listener import HttpListener

IDLE_MAX = 2000
"""Connections that wait for a request; beyond it the oldest of the address with the most is closed."""
IDLE_TIMEOUT_S = 60.0
"""Clients close theirs after half of it (`fastbk.meta.gateway.calls`)."""
LARGE_BYTES = 64 * 1024
LARGE_MAX, SMALL_MAX = 32, 512
"""Bodies above LARGE_BYTES, and others, that are on their way; beyond it one of the address with the most is cut."""
LARGE_ANSWERS_MAX = 16
"""The same of answers, and who reads them slowly: one has 16 MiB at most."""
CHUNK_BYTES = 256 * 1024
"""What is encrypted at once: the transport keeps a copy of all that it was given."""
CONNECTIONS_MAX = (
    IDLE_MAX
    + 2 * SMALL_MAX
    + LARGE_MAX
    + LARGE_ANSWERS_MAX
    + REQUESTS_MAX
    + WAITS_MAX
    + HANDSHAKES_MAX
)
"""As many descriptors are used where all bounds are reached."""
BODY_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict",
            413: "Content Too Large", 415: "Unsupported Media Type", 423: "Locked", 500: "Internal Server Error",
            503: "Service Unavailable"}  # fmt: skip
_BEARER = "bearer "


class Connections:
    """All of one gateway."""

    def __init__(self, service: Service, admission: Admission, scale: Scale = as_it_is) -> None:
        self._service = service
        self._admission = admission
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = Places(scale(IDLE_MAX))
        self._bodies = Places(scale(SMALL_MAX)), Places(scale(LARGE_MAX))
        self._answers = Places(scale(SMALL_MAX)), Places(scale(LARGE_ANSWERS_MAX))
        self._limits = service.limits
        self._faults = LimitLog("gateway.connection_failed", level="error")

    def __len__(self) -> int:
        return len(self._tasks)

    async def serve(self, listener: HttpListener) -> None:
        """Serve a port until it is closed."""
        await listener.start(self._serve)

    async def close(self) -> None:
        """Cut all connections; close the listener first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            met = self._met(writer)
            while await self._answered(met, reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it is gone, or sends what is no request: nothing to answer
        except Exception as error:  # noqa: BLE001 - one client's exception is not the gateway's
            await self._say_fault(writer, error)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _say_fault(self, writer: asyncio.StreamWriter, error: Exception) -> None:
        peer = writer.get_extra_info("peername")
        trace = "".join(traceback.format_exception(error, limit=-12))
        self._faults.note(type(error).__name__, reason=repr(error), address=str(peer), trace=trace)
        with contextlib.suppress(OSError, TimeoutError):
            fault = StorageError("a fault of the gateway's: see its log", outcome="unknown")
            await self._send(writer, (500, encode(failure_of(fault))), is_last=True)

    def _met(self, writer: asyncio.StreamWriter) -> Peer:
        """Return who is at the other end, as far as the connection shows it."""
        name = writer.get_extra_info("peername")
        is_secure = writer.get_extra_info("ssl_object") is not None
        client = Client(
            is_secure=is_secure, address=str(name[0]) if isinstance(name, tuple) else ""
        )
        certificate = writer.get_extra_info("peercert") or b"" if is_secure else None
        self._admission.meet(client, certificate)
        return Peer(client, certificate)

    async def _answered(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether another may follow."""
        method, target, headers = parsed_head(await self._head(reader, writer))
        if headers is None:
            return False
        refusal, size_bytes = _refusal(method, target, headers)
        if refusal is not None:
            await self._send(writer, refusal, is_last=True)
            return False
        body = await self._body(reader, writer, size_bytes)
        authorization = headers.get("authorization", "")
        token = (
            authorization[len(_BEARER) :].encode()
            if authorization.lower().startswith(_BEARER)
            else b""
        )
        answer = await self._service.answer(peer, target.removeprefix(PATH), token, body)
        is_last = answer[0] == 401  # a stranger does not stay
        await self._send(writer, answer, is_last=is_last)
        return not is_last

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        if self._idle.enter(writer.transport):
            self._limits.note("idle")
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                return await reader.readuntil(b"\r\n\r\n")
        finally:
            self._idle.leave(writer.transport)

    async def _body(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size_bytes: int
    ) -> bytes:
        with self._place(self._bodies, "bodies", writer, size_bytes):
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await reader.readexactly(size_bytes)

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer, *, is_last: bool) -> None:
        status, body = answer
        end = "Connection: close\r\n" if is_last else ""
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n{end}\r\n"
        )
        with self._place(self._answers, "answers", writer, len(body)):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                writer.write(head.encode() + body[:CHUNK_BYTES])
                await writer.drain()
                for at in range(CHUNK_BYTES, len(body), CHUNK_BYTES):
                    writer.write(body[at : at + CHUNK_BYTES])
                    await writer.drain()

    @contextlib.contextmanager
    def _place(
        self,
        places: tuple[Places, Places],
        limit: str,
        writer: asyncio.StreamWriter,
        size_bytes: int,
    ) -> Iterator[None]:
        """Have a place for what is sent or received, among those of its size."""
        is_large = size_bytes > LARGE_BYTES
        place = places[is_large]
        if place.enter(writer.transport):
            self._limits.note(f"large_{limit}" if is_large else limit)
        try:
            yield
        finally:
            place.leave(writer.transport)


def _refusal(method: str, target: str, headers: dict[str, str]) -> tuple[Answer | None, int]:
    """Return the answer to a request that is refused unread, if it is, and the size of its body.

    A web page of another site cannot send this type of body without being allowed first, and nothing allows it.
    """
    if method != "POST" or not target.startswith(PATH):
        return _failed(
            400, f"a gateway answers POST {PATH}OPERATION: is this the port of the gateway's pages?"
        ), 0
    if headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        return _failed(415, f"a request needs Content-Type: {CONTENT_TYPE}"), 0
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        return _failed(400, "a request needs a Content-Length"), 0
    if len(length) > 9 or int(length) > REQUEST_BYTES_MAX:
        return _failed(413, f"a request has at most {REQUEST_BYTES_MAX} bytes"), 0
    return None, int(length)


def _failed(status: int, text: str) -> Answer:
    return status, encode(failure_of(ConfigError(text)))
