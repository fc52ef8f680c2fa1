import asyncio
import contextlib
import json

import pytest

from fastbk.errors import ConfigError, StorageError
from fastbk.server.admin.metrics import Metrics
from fastbk.server.admin.pages import AdminServer
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget, State
from fastbk.web import page_server as http
from fastbk.web.page_server import Request
from tests.fixtures.wait import wait_until_async


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


async def test_readiness_follows_the_lifecycle_with_reasons() -> None:
    server, life = made()
    status, _, body = await server.answer("GET", "/readyz")
    assert status == 503
    assert json.loads(body)["reasons"][0].startswith("starting for ")
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "serving", 0.0)
    status, _, body = await server.answer("GET", "/readyz")
    assert (status, json.loads(body)["reasons"]) == (200, [])
    life.note("disk.ledger.0", "it is full")
    assert (await server.answer("GET", "/readyz"))[0] == 503


async def readiness(server: AdminServer, path: str) -> tuple[int, list[str], dict[str, str]]:
    """Return status, the reasons against what was asked, and what each condition concerns."""
    status, _, body = await server.answer("GET", path)
    said = json.loads(body)
    assert said["ready"] == (status == 200)
    return status, said["reasons"], {one["name"]: one["concerns"] for one in said["conditions"]}


async def test_without_metadata_a_bookie_is_ready_for_data_and_says_what_is_away() -> None:
    server, life = made()
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "serving", 0.0)
    life.note("metadata", "no answer", "metadata")
    life.note("cold", "a cold start", "notice")
    told = {"metadata": "metadata", "cold": "notice"}
    assert await readiness(server, "/readyz") == (200, [], told)
    assert await readiness(server, "/readyz/metadata") == (503, ["no answer"], told)
    life.note("disk.ledger.0", "it is full")
    told["disk.ledger.0"] = "data"
    assert await readiness(server, "/readyz") == (503, ["it is full"], told)
    assert (await readiness(server, "/readyz/metadata"))[1] == ["no answer", "it is full"]
    life.note("metadata", None)
    life.note("disk.ledger.0", None)
    assert (await readiness(server, "/readyz/metadata"))[0] == 200


async def test_liveness_ends_only_with_failure() -> None:
    server, life = made()
    assert (await server.answer("GET", "/livez"))[0] == 200
    life.go(State.FAILED, "crash loop", 1.0)
    status, _, body = await server.answer("GET", "/livez")
    assert (status, json.loads(body)["reason"]) == (503, "crash loop")


async def test_pages_are_served_over_a_socket() -> None:
    server, _ = made()
    await server.open("127.0.0.1", 0)
    answer = await ask(server.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    assert b"bookie_SERVER_STATUS -1\n" in body
    head_only = await ask(server.port, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert head_only.endswith(b"\r\n\r\n")
    assert (await ask(server.port, b"GET /x HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
    assert (
        await ask(server.port, b"POST /metrics HTTP/1.1\r\nContent-Type: application/json\r\n\r\n")
    ).startswith(b"HTTP/1.1 405")
    assert (await ask(server.port, b"rubbish\r\n\r\n")).startswith(b"HTTP/1.1 400")
    await server.close()


async def test_a_request_is_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)
    server, _ = made()
    await server.open("127.0.0.1", 0)
    for size in (8_200, 20_000):
        answer = await ask(server.port, b"GET /" + b"x" * size)
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert answer.endswith(b"more than 8192 bytes\n")
    assert await ask(server.port, b"GET /slow HTTP/1.1\r\n") == b""
    await server.close()


async def begun(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that has sent part of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def test_the_oldest_incomplete_request_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1: slow requests cost only each other."""
    monkeypatch.setattr(http, "REQUESTS_MAX", 2)
    server, _ = made()
    await server.open("127.0.0.1", 0)
    slow = [await begun(server.port, b"GET /livez HTTP/1.1\r\n") for _ in range(3)]
    assert await slow[0][0].read() == b"", "the oldest one was closed"
    assert (await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await slow[1][0].read() == b"", "the next one, for that request"
    slow[2][1].write(b"\r\n")
    assert (await slow[2][0].read()).startswith(b"HTTP/1.1 200")
    assert server.refused() == {"requests": 2}
    assert 'http_refused_total{limit="requests"} 2' in await metrics_of(server)
    for _, writer in slow:
        writer.close()
    await server.close()


async def test_an_address_with_many_requests_makes_room_among_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-B1: a stranger's slow requests cost that stranger its places, and nobody else theirs."""
    monkeypatch.setattr(http, "REQUESTS_MAX", 4)
    server, _ = made()
    await server.open("127.0.0.1", 0)
    honest = await begun(server.port, b"GET /livez HTTP/1.1\r\n")
    flood = [
        await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.9", 0))
        for _ in range(20)
    ]
    await wait_until_async(lambda: server.refused() == {"requests": 17}, "room to be made")
    honest[1].write(b"\r\n")
    assert (await honest[0].read()).startswith(b"HTTP/1.1 200")
    for reader, _ in flood[:16]:
        assert await reader.read() == b""
    for _, writer in (honest, *flood):
        writer.close()
    await server.close()


async def metrics_of(server: AdminServer) -> str:
    return (await server.answer("GET", "/metrics"))[2].decode()


async def test_routes_are_bounded_and_own_pages_answer_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-B1."""
    monkeypatch.setattr(http, "ROUTES_MAX", 1)
    server, _ = made()
    is_running, may_end = asyncio.Event(), asyncio.Event()

    async def wait(asked: dict[str, object]) -> object:
        is_running.set()
        await may_end.wait()
        return asked

    server.add_route("GET", "/thing", wait)
    await server.open("127.0.0.1", 0)
    first = asyncio.ensure_future(ask(server.port, b"GET /thing HTTP/1.1\r\n\r\n"))
    await is_running.wait()
    busy = await ask(server.port, b"GET /thing HTTP/1.1\r\n\r\n")
    assert busy.startswith(b"HTTP/1.1 503")
    for path in (b"/livez", b"/metrics"):
        answer = await ask(server.port, b"GET " + path + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
    may_end.set()
    assert (await first).startswith(b"HTTP/1.1 200")
    assert server.refused() == {"routes": 1}
    await server.close()


async def test_the_oldest_unread_answer_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(http, "ANSWERS_MAX", 2)
    server, _ = made()

    async def page(request: Request) -> http.Response:
        return 200, http.TEXT, bytes(8 << 20)  # more than sockets hold

    server.add_page("/large", page)
    await server.open("127.0.0.1", 0)
    deaf = []
    for _ in range(3):
        reader, writer = await begun(server.port, b"GET /large HTTP/1.1\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        deaf.append((reader, writer))
    await wait_until_async(lambda: server.refused() == {"answers": 1}, "the oldest to be closed")
    assert (await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    for _, writer in deaf:
        writer.transport.abort()
    await server.close()


async def posted(port: int, head: str, body: bytes = b"") -> tuple[int, dict[str, object] | str]:
    request = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    answer = await ask(port, request)
    first, _, content = answer.partition(b"\r\n\r\n")
    status = int(first.split(b" ")[1])
    return status, json.loads(content) if b"json" in first.split(b"\r\n")[1] else content.decode()


JSON_POST = "POST /thing HTTP/1.1\r\nContent-Type: application/json; charset=utf-8"


async def test_routes_take_json_and_give_json() -> None:
    server, _ = made()

    async def double(asked: dict[str, object]) -> object:
        if asked.get("n") == "7":
            raise ConfigError("not 7")
        if asked.get("n") == 8:
            raise StorageError("busy", retryable=True)
        if asked.get("n") == 9:
            raise StorageError("never")
        if asked.get("n") == 10:
            raise KeyError("a fault")
        return {"twice": [asked, asked]}

    server.add_route("GET", "/thing", double)
    server.add_route("POST", "/thing", double)
    with pytest.raises(ValueError, match="given to somebody already"):
        server.add_route("POST", "/thing", double)
    await server.open("127.0.0.1", 0)
    port = server.port
    assert await posted(port, JSON_POST, b'{"n": 1}') == (200, {"twice": [{"n": 1}] * 2})
    assert await posted(port, JSON_POST) == (200, {"twice": [{}, {}]})
    assert await posted(port, "GET /thing?n=1 HTTP/1.1") == (200, {"twice": [{"n": "1"}] * 2})
    assert await posted(port, "GET /thing?n=7 HTTP/1.1") == (400, {"error": "not 7"})
    assert await posted(port, JSON_POST, b'{"n": 8}') == (503, {"error": "busy"})
    assert await posted(port, JSON_POST, b'{"n": 9}') == (409, {"error": "never"})
    assert (await posted(port, JSON_POST, b'{"n": 10}'))[0] == 500
    assert (await posted(port, JSON_POST, b"[1]"))[0] == 400
    assert (await posted(port, JSON_POST, b"{"))[0] == 400
    deep = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    assert (await posted(port, JSON_POST, deep))[0] == 400
    assert (await posted(port, JSON_POST.replace("/thing", "/nothing"), b"{}"))[0] == 404
    await server.close()


async def test_what_a_web_page_could_send_is_refused_and_bodies_are_bounded() -> None:
    """INV-B1; and no page that somebody has open in a browser may command a bookie."""
    server, _ = made()
    called = []

    async def note(asked: dict[str, object]) -> object:
        called.append(asked)
        return {}

    server.add_route("POST", "/thing", note)
    await server.open("127.0.0.1", 0)
    plain = JSON_POST.replace("application/json", "text/plain")
    assert (await posted(server.port, plain, b"{}"))[0] == 415
    assert (await posted(server.port, "POST /thing HTTP/1.1", b"{}"))[0] == 415
    assert (await posted(server.port, "GET /thing HTTP/1.1"))[0] == 404
    # Browsers name the page's origin with all but GET, also when they take us for a server of that page's.
    assert (await posted(server.port, f"{JSON_POST}\r\nOrigin: http://h", b"{}"))[0] == 403
    too_long = f"{JSON_POST}\r\nContent-Length: {http.BODY_BYTES_MAX + 1}\r\n\r\n"
    assert (await ask(server.port, too_long.encode())).startswith(b"HTTP/1.1 413")
    for length in ("x", "-1", "1" * 20, "²"):
        bad = f"{JSON_POST}\r\nContent-Length: {length}\r\n\r\n"
        assert (await ask(server.port, bad.encode())).split()[1] in (b"400", b"413")
    assert not called
    await server.close()


async def test_a_route_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(http, "ROUTE_TIMEOUT_S", 0.02)
    server, _ = made()
    server.add_route("POST", "/thing", lambda _: asyncio.Event().wait())
    await server.open("127.0.0.1", 0)
    assert (await posted(server.port, JSON_POST, b"{}"))[0] == 504
    await server.close()


async def test_a_page_of_its_own_gets_every_method_and_a_bounded_body() -> None:
    server, _ = made()
    seen: list[Request] = []

    async def page(request: Request) -> http.Response:
        seen.append(request)
        return 200, http.TEXT, b"done"

    server.add_page("/own", page)
    await server.open("127.0.0.1", 0)
    body = b'{"readOnly": true}'
    head = f"PUT /own?a=1&b= HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert (await ask(server.port, head + body)).startswith(b"HTTP/1.1 200")
    assert (await ask(server.port, b"POST /own HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")).startswith(
        b"HTTP/1.1 200"
    )
    assert (await ask(server.port, b"DELETE /own HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert seen == [
        Request("PUT", {"a": "1", "b": ""}, body),
        Request("POST", {}, b"x"),
        Request("DELETE", {}, b""),
    ]
    too_long = f"PUT /own HTTP/1.1\r\nContent-Length: {http.BODY_BYTES_MAX + 1}\r\n\r\n".encode()
    assert (await ask(server.port, too_long)).startswith(b"HTTP/1.1 413")
    assert (await ask(server.port, b"PUT /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
    for method in (b"PUT", b"POST", b"DELETE"):
        of_a_page = method + b" /own HTTP/1.1\r\norigin: null\r\n\r\n"
        assert (await ask(server.port, of_a_page)).startswith(b"HTTP/1.1 403")
    assert len(seen) == 3
    await server.close()


async def test_a_fault_of_one_request_is_answered_and_logged_at_a_bounded_rate(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, _ = made()
    await server.open("127.0.0.1", 0)
    try:

        def fail(*_: object) -> object:
            raise UnicodeEncodeError("utf-8", "a\ud800", 1, 2, "surrogates not allowed")

        with monkeypatch.context() as fault:
            fault.setattr(server, "check", fail)
            answers = [await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n") for _ in range(20)]
        assert {one.partition(b"\r\n")[0] for one in answers} == {
            b"HTTP/1.1 500 Internal Server Error"
        }
        assert (
            len(
                [
                    line
                    for line in capfd.readouterr().err.splitlines()
                    if "http.connection_failed" in line
                ]
            )
            == 1
        )
        assert b" 503 " in await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
    finally:
        await server.close()


async def test_a_fault_of_a_route_is_logged_at_a_bounded_rate(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server, _ = made()

    async def fail(_: dict[str, object]) -> object:
        raise ZeroDivisionError

    server.add_route("GET", "/fault", fail)
    answers = [await server.answer("GET", "/fault") for _ in range(20)]
    assert {status for status, _, _ in answers} == {500}
    assert (
        len([line for line in capfd.readouterr().err.splitlines() if "http.route_failed" in line])
        == 1
    )
