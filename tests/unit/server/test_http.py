import asyncio
import contextlib
import json

import pytest

from fastbk.server.admin import http
from fastbk.server.admin.http import AdminServer
from fastbk.server.admin.metrics import Metrics
from fastbk.server.lifecycle import Lifecycle, RestartBudget, State


def made() -> tuple[AdminServer, Lifecycle]:
    life = Lifecycle(0.0)
    return AdminServer(life, Metrics(life, RestartBudget(5, 60.0))), life


async def ask(port: int, request: bytes) -> bytes:
    """Return the answer, nothing for a connection that was cut without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_readiness_follows_the_lifecycle_with_reasons() -> None:
    server, life = made()
    status, _, body = server.answer("GET", "/readyz")
    assert status == 503
    assert json.loads(body)["reasons"][0].startswith("starting for ")
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "serving", 0.0)
    status, _, body = server.answer("GET", "/readyz")
    assert (status, json.loads(body)["reasons"]) == (200, [])
    life.note("metadata", "no answer")
    assert server.answer("GET", "/readyz")[0] == 503


def test_liveness_ends_only_with_failure() -> None:
    server, life = made()
    assert server.answer("GET", "/livez")[0] == 200
    life.go(State.FAILED, "crash loop", 1.0)
    status, _, body = server.answer("GET", "/livez")
    assert (status, json.loads(body)["reason"]) == (503, "crash loop")


async def test_pages_are_served_over_a_socket() -> None:
    server, _ = made()
    await server.open("127.0.0.1", 0)
    answer = await ask(server.port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    assert b"bookie_SERVER_STATUS -1\n" in body
    head_only = await ask(server.port, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert head_only.endswith(b"\r\n\r\n")
    assert (await ask(server.port, b"GET /x HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
    assert (await ask(server.port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
    assert (await ask(server.port, b"rubbish\r\n\r\n")).startswith(b"HTTP/1.1 400")
    await server.close()


async def test_a_request_is_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)
    server, _ = made()
    await server.open("127.0.0.1", 0)
    assert await ask(server.port, b"GET /" + b"x" * 20_000) == b""
    assert await ask(server.port, b"GET /slow HTTP/1.1\r\n") == b""
    await server.close()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    server, _ = made()
    await server.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /livez HTTP/1.1\r\n")
    await writer.drain()
    refused = b"x"
    while refused:  # until the first one has reached the server
        refused = await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n")
    writer.write(b"\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
    assert (await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    await server.close()
