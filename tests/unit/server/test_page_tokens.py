"""A change by a page is its user's who sent a token with it, and only a token for the whole cluster allows one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fastbk.auth.tokens import TokenKey
from fastbk.server.admin.http import JSON, PageServer, Request, Response
from fastbk.server.admin.page_rights import PageRights
from fastbk.server.admin.page_tokens import PageTokens
from fastbk.server.configuration.authentication import AuthenticationSettings

CLUSTER = "the-cluster"
KEY = TokenKey.generate("key-1")


def signed(*operations: str, audience: str = CLUSTER, namespaces: list[str] | None = None) -> str:
    return KEY.sign("alice", operations, audience, lifetime_s=60, namespaces=namespaces)


async def change(request: Request) -> Response:
    return 200, JSON, b"{}\n"


@asynccontextmanager
async def served(folder: Path, notes: list[tuple[str, dict[str, object]]]) -> AsyncGenerator[int, None]:
    """Serve a page that changes something; only certificates with a role, or tokens, may use it."""
    (folder / "keys.json").write_text(KEY.public_text())
    (folder / "revoked").write_text("# nobody\n")
    settings = AuthenticationSettings(
        methods=("token",), token_keys_file=str(folder / "keys.json"), revoked_file=str(folder / "revoked"),
        refresh_interval_s=1,
    )  # fmt: skip
    rights = PageRights(
        ["admin"], lambda event, **values: notes.append((event, values)), PageTokens(settings, lambda: CLUSTER)
    )
    server = PageServer(rights=rights)
    server.add_page("/change", change)
    await server.open("127.0.0.1", 0)
    try:
        yield server.port
    finally:
        await server.close()


async def put(port: int, authorization: str = "") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = f"Authorization: {authorization}\r\n" if authorization else ""
    writer.write(f"PUT /change HTTP/1.1\r\nHost: localhost\r\n{line}Content-Length: 0\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body.strip()


async def test_a_token_makes_a_change_its_users(tmp_path: Path) -> None:
    notes: list[tuple[str, dict[str, object]]] = []
    async with served(tmp_path, notes) as port:
        assert await put(port, f"Bearer {signed('admin')}") == (200, "{}")
    (event, values), = notes
    assert (event, values["principal"], values["operation"]) == ("admin.changed", "token:alice", "PUT /change")


@pytest.mark.parametrize(
    ("authorized", "principal", "reason"),
    [
        (lambda: "", "", "a certificate with the role admin"),
        (lambda: "Basic YWxpY2U6YQ==", "", "a certificate with the role admin"),
        (lambda: "Bearer nonsense", "", "the token is not accepted"),
        (lambda: f"Bearer {signed('admin', audience='another')}", "", "another cluster"),
        (lambda: f"bearer {signed('read', 'add')}", "token:alice", "the operation admin"),
        (lambda: f"Bearer {signed('admin', namespaces=['shop'])}", "token:alice", "limited to namespaces"),
    ],
    ids=["none", "no token", "nonsense", "of another cluster", "without the right", "limited"],
)
async def test_other_tokens_change_nothing_and_are_noted(
    tmp_path: Path, authorized: Callable[[], str], principal: str, reason: str
) -> None:
    """`authorized` signs when the test runs: a token ends after a minute."""
    notes: list[tuple[str, dict[str, object]]] = []
    async with served(tmp_path, notes) as port:
        status, text = await put(port, authorized())
    assert status == 403
    assert reason in text
    (event, values), = notes
    assert (event, values["principal"], values["verdict"]) == ("admin.denied", principal, 403)


async def test_a_revoked_token_is_refused_once_the_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(KEY.public_text())
    (tmp_path / "revoked").write_text("token:alice\n")
    settings = AuthenticationSettings(
        methods=("token",), token_keys_file=str(tmp_path / "keys.json"), revoked_file=str(tmp_path / "revoked")
    )
    principal, reason = PageTokens(settings, lambda: CLUSTER).principal(signed("admin").encode())
    assert principal is None
    assert "revoked" in reason
    assert PageTokens(settings, lambda: "").principal(signed("admin").encode())[0] is None, "no audience is known"
