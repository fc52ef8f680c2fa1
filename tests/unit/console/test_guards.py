"""What the console refuses before any page: foreign hosts, foreign pages, forms without a key, too many tries."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fastbk.console import http_engine
from fastbk.console.process import ConsoleOptions, check_exposure, next_path
from fastbk.errors import ConfigError
from tests.fixtures.console import audit_lines, console_of, signed, with_tokens
from tests.fixtures.metadata import new_cluster
from tests.fixtures.wait import wait_until_async


async def test_a_foreign_host_is_refused(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path, hosts=("console.example",)) as (
        _,
        visitor,
    ):
        assert (await visitor.get("/")).status == 200
        assert (await visitor.get("/", {"Host": "console.example"})).status == 200
        page = await visitor.get("/", {"Host": "evil.example"})
        assert (page.status, "--http-host" in page.text) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
    ids=lambda one: "-".join(one.values()),
)
async def test_a_form_of_another_site_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (_, visitor):
        form = {"form_key": (await visitor.get("/action/pause-healing?target=healing")).form_key}
        page = await visitor.post(
            "/action/pause-healing", {**form, "target": "healing", "confirm": "healing"}, headers
        )
        assert page.status == 403
        assert audit_lines(tmp_path) == []


async def test_a_form_without_its_sessions_key_changes_nothing(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (console, visitor):
        form = {"target": "healing", "confirm": "healing"}
        stranger = type(visitor)(visitor.port)
        key = (await stranger.get("/action/pause-healing?target=healing")).form_key
        await visitor.get("/")
        for given in ({}, {"form_key": "0" * 64}, {"form_key": key}):
            assert (await visitor.post("/action/pause-healing", form | given)).status == 403
        assert await console.view.client.call_store(lambda store: store.coordination.is_enabled())
        assert audit_lines(tmp_path) == []


async def test_answers_carry_the_policy_and_the_cookie_is_closed(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (_, visitor):
        page = await visitor.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        cookie = page.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        refused = await visitor.get("/", {"Host": "evil.example"})
        assert refused.headers["content-security-policy"] == policy
        assert "style=" not in page.text
        assert "<script>" not in page.text
        assert "immutable" in (await visitor.get("/static/console.css")).headers["cache-control"]
        assert (await visitor.get("/static/../process.py")).status == 404


async def test_users_sign_in_with_a_token_and_out(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path, **with_tokens(tmp_path)) as (
        console,
        visitor,
    ):
        page = await visitor.get("/streams?q=a")
        assert page.status == 303
        assert page.headers["location"] == "/login?next=/streams%3Fq%3Da"
        assert (await visitor.get("/", {"X-Console-Part": "1"})).status == 401
        assert (await visitor.get("/livez")).status == 200
        refused = await visitor.sign_in(signed("read", audience="another"))
        assert (refused.status, "another cluster" in refused.text) == (403, True)
        token = signed("read")
        page = await visitor.post("/login", {"token": token, "next": "/streams"})
        assert (page.status, page.headers["location"]) == (303, "/streams")
        page = await visitor.get("/")
        assert "token:alice" in page.text
        assert token not in page.text
        cookies = dict(visitor.cookies)
        await visitor.post("/logout", {"form_key": page.form_key})
        assert len(console.sessions) == 0
        visitor.cookies = cookies
        assert (await visitor.get("/")).status == 303, "the cookie is of no use any more"
    events = [(one["event"], one.get("principal")) for one in audit_lines(tmp_path)]
    assert events == [
        ("console.refused", None), ("console.signed_in", "token:alice"), ("console.signed_out", "token:alice"),
    ]  # fmt: skip
    assert token not in (tmp_path / "audit.log").read_text()


async def test_too_many_tries_to_sign_in_get_429(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path, **with_tokens(tmp_path)) as (
        _,
        visitor,
    ):
        pages = [await visitor.sign_in("wrong") for _ in range(12)]
        assert {one.status for one in pages} == {403, 429}
        assert pages[-1].status == 429
        assert int(pages[-1].headers["retry-after"]) >= 1
        assert (await visitor.sign_in(signed("read"))).status == 429, "a good token waits, too"


async def test_forms_are_bounded(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (_, visitor):
        await visitor.get("/")
        page = await visitor.post("/action/gc", {"target": "x" * 9000})
        assert (page.status, "8192" in page.text) == (400, True)
        page = await visitor.post("/action/gc", {f"f{at}": "" for at in range(30)})
        assert page.status == 400
        page = await visitor.post("/action/gc", {}, {"Content-Type": "application/json"})
        assert page.status == 400


async def test_idle_connections_make_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_engine, "IDLE_MAX", 3)
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (_, visitor):
        idle = [await asyncio.open_connection("127.0.0.1", visitor.port) for _ in range(3)]
        assert (await visitor.get("/livez")).status == 200
        assert await asyncio.wait_for(idle[0][0].read(), 10) == b"", "the oldest one was closed"
        for _, writer in idle:
            writer.close()


async def test_a_request_that_does_not_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_engine, "ANSWER_S", 0.5)
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (_, visitor):
        reader, writer = await asyncio.open_connection("127.0.0.1", visitor.port)
        kind = b"Content-Type: application/x-www-form-urlencoded\r\n"
        writer.write(
            b"POST /action/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
            + kind
            + b"\r\nto"
        )
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()

        async def answers() -> bool:
            return (await visitor.get("/livez")).status == 200

        await wait_until_async(answers, "others are answered")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/streams?q=a", "/streams?q=a"), ("", "/"), ("//evil.example/", "/"), ("/\\evil.example", "/"),
        ("https://evil.example", "/"), ("javascript:alert(1)", "/"), ("/a\r\nSet-Cookie: x=y", "/"),
    ],
)  # fmt: skip
def test_after_signing_in_only_paths_of_ours_are_gone_to(text: str, path: str) -> None:
    assert next_path(text) == path


@pytest.mark.parametrize(
    ("host", "options", "reason"),
    [
        ("0.0.0.0", {}, "--token-keys"),
        ("10.0.0.1", {"token_keys_file": "keys"}, "--tls"),
        ("::", {}, "--token-keys"),
    ],
)
def test_strangers_are_not_served_without_tokens_and_tls(
    tmp_path: Path, host: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_exposure(
            ConsoleOptions(uri="", host=host, port=1, audit_file=tmp_path / "a", **options)
        )
    check_exposure(ConsoleOptions(uri="", host="127.0.0.1", port=1, audit_file=tmp_path / "a"))
    check_exposure(ConsoleOptions(uri="", host="::1", port=1, audit_file=tmp_path / "a"))
