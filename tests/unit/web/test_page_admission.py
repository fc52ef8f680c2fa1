"""Who may use which page: by tokens, by certificates, and as a stranger."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from fastbk.security.authority import Authority
from fastbk.security.rights import ALL_RIGHTS, Principal, Right
from fastbk.security.settings import AuthenticationSettings, AuthorizationSettings, HttpPort
from fastbk.security.tokens import TokenKey
from fastbk.web.page_admission import (
    Kind,
    PageAdmission,
    PageCredentials,
    SiteGuard,
    Visitor,
    kind_of,
    name_of,
)
from fastbk.web.page_server import JSON, PageServer, Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

CLUSTER = "the-cluster"
KEY = TokenKey.generate("key-1")


def signed(*operations: str, audience: str = CLUSTER, namespaces: list[str] | None = None) -> str:
    return KEY.sign("alice", operations, audience, lifetime_s=60, namespaces=namespaces)


async def change(request: Request) -> Response:
    return 200, JSON, b"{}\n"


@asynccontextmanager
async def served(
    folder: Path, notes: list[tuple[str, dict[str, object]]]
) -> AsyncGenerator[int, None]:
    """Serve a page that changes something; only certificates with a role, or tokens, may use it."""
    (folder / "keys.json").write_text(KEY.public_text())
    (folder / "revoked").write_text("# nobody\n")
    settings = AuthenticationSettings(
        methods=("token",), token_keys_file=str(folder / "keys.json"), revoked_file=str(folder / "revoked"),
        refresh_interval_s=1,
    )  # fmt: skip
    admission = PageAdmission(
        changing_roles=["admin"],
        credentials=PageCredentials(settings, lambda: CLUSTER),
        note=lambda event, **values: notes.append((event, values)),
    )
    server = PageServer(admission=admission)
    server.add_page("/change", change)
    await server.open("127.0.0.1", 0)
    try:
        yield server.port
    finally:
        await server.close()


async def put(port: int, authorization: str = "") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = f"Authorization: {authorization}\r\n" if authorization else ""
    writer.write(
        f"PUT /change HTTP/1.1\r\nHost: localhost\r\n{line}Content-Length: 0\r\n\r\n".encode()
    )
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body.strip()


async def test_a_token_makes_a_change_its_users(tmp_path: Path) -> None:
    notes: list[tuple[str, dict[str, object]]] = []
    async with served(tmp_path, notes) as port:
        assert await put(port, f"Bearer {signed('admin')}") == (200, "{}")
    ((event, values),) = notes
    assert (event, values["principal"], values["operation"]) == (
        "admin.changed",
        "token:alice",
        "PUT /change",
    )


@pytest.mark.parametrize(
    ("authorized", "principal", "reason"),
    [
        (lambda: "", "", "a certificate with the role admin"),
        (lambda: "Basic YWxpY2U6YQ==", "", "a certificate with the role admin"),
        (lambda: "Bearer nonsense", "", "the token is not accepted"),
        (lambda: f"Bearer {signed('admin', audience='another')}", "", "another cluster"),
        (lambda: f"bearer {signed('read', 'add')}", "token:alice", "the operation admin"),
        (
            lambda: f"Bearer {signed('admin', namespaces=['shop'])}",
            "token:alice",
            "limited to namespaces",
        ),
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
    ((event, values),) = notes
    assert (event, values["principal"], values["verdict"]) == ("admin.denied", principal, 403)


async def test_a_revoked_token_is_refused_once_the_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(KEY.public_text())
    (tmp_path / "revoked").write_text("token:alice\n")
    settings = AuthenticationSettings(
        methods=("token",),
        token_keys_file=str(tmp_path / "keys.json"),
        revoked_file=str(tmp_path / "revoked"),
    )
    visitor = PageCredentials(settings, lambda: CLUSTER).visitor(signed("admin").encode())
    assert visitor.principal is None
    assert "revoked" in visitor.reason
    unknown = PageCredentials(settings, lambda: "").visitor(signed("admin").encode())
    assert unknown.principal is None, "no audience is known"


EVERY = tuple(Kind)
CHANGES = (Kind.CHANGE, Kind.DELETION)


def served_kinds(admission: PageAdmission, visitor: Visitor) -> set[Kind]:
    return {kind for kind in EVERY if admission.refusal(visitor, kind) is None}


def port(host: str = "10.0.0.1", **values: Any) -> HttpPort:
    return HttpPort(where="[http] listen", host=host, **values)


@pytest.mark.parametrize(
    ("admission", "served"),
    [
        (PageAdmission(), set(EVERY)),
        (PageAdmission(port("127.0.0.1")), set(EVERY)),
        (PageAdmission(port(is_permitted=True)), set(EVERY)),
        (PageAdmission(port()), set()),
        (PageAdmission(port(public=["health"])), {Kind.HEALTH}),
        (PageAdmission(port(public=["metrics", "entries"])), {Kind.METRICS, Kind.ENTRIES}),
        (PageAdmission(lends_credentials=True), set(EVERY) - {Kind.ENTRIES}),
        (PageAdmission(port("::1", public=["entries"]), lends_credentials=True), set(EVERY)),
        (PageAdmission(changing_roles=["admin"]), set(EVERY) - set(CHANGES)),
    ],
)
def test_what_a_stranger_is_served(admission: PageAdmission, served: set[Kind]) -> None:
    """INV-N7: nothing beyond loopback but what an operator has named."""
    assert served_kinds(admission, Visitor()) == served


@pytest.mark.parametrize(
    ("rights", "namespaces", "refused"),
    [
        (ALL_RIGHTS, None, ()),
        (Right.ENTER | Right.READ, None, CHANGES),
        (Right.ENTER | Right.ADD, None, (Kind.ENTRIES, Kind.LEDGERS, *CHANGES)),
        (Right.ENTER | Right.ADMIN, None, (Kind.ENTRIES, Kind.LEDGERS, Kind.DELETION)),
        (Right.ENTER | Right.DELETE, None, (Kind.ENTRIES, Kind.LEDGERS, Kind.CHANGE)),
        (ALL_RIGHTS, ("shop",), (Kind.LEDGERS, *CHANGES)),
    ],
)
def test_each_kind_of_page_needs_its_right(
    rights: Right, namespaces: tuple[str, ...] | None, refused: tuple[Kind, ...]
) -> None:
    """INV-N7. The page of entries compares the ledger's namespace by itself."""
    visitor = Visitor(Principal(name="token:a", rights=rights, namespaces=namespaces))
    assert served_kinds(PageAdmission(port(is_encrypted=True)), visitor) == set(EVERY) - set(
        refused
    )


def test_a_page_that_nobody_has_listed_needs_authentication_and_its_changes_a_right() -> None:
    assert kind_of("GET", "/new") is kind_of("HEAD", "/new") is Kind.STATE
    assert {kind_of(method, "/new") for method in ("POST", "PUT", "DELETE", "PATCH", "x")} == {
        Kind.CHANGE
    }
    assert kind_of("DELETE", "/api/v1/ledger/delete") is Kind.DELETION
    assert kind_of("GET", "/api/v1/bookie/sanity") is Kind.CHANGE


class Shown:
    """A connection's writer, as far as admission looks: with a certificate, over TLS."""

    def __init__(self, folder: Path, role: str, peer: str = "10.0.0.9") -> None:
        issued = Authority.make(folder / "ca").issue(
            folder / "client", roles=f"0:{role}" if role else ""
        )
        certificate = ssl.PEM_cert_to_DER_cert(issued.certificate_file.read_text())
        self._info: dict[str, object] = {
            "peercert": certificate,
            "peername": (peer, 1),
            "ssl_object": self,
        }

    def get_extra_info(self, name: str) -> object:
        return self._info.get(name)


@pytest.mark.parametrize(
    ("role", "rules", "refused"),
    [
        ("", {}, ()),
        ("reader", {"authorization": AuthorizationSettings(readers=("certificate:reader",))}, CHANGES),
        ("other", {"authorization": AuthorizationSettings(readers=("certificate:reader",))},
         (Kind.ENTRIES, Kind.LEDGERS, *CHANGES)),
        ("boss", {"authorization": AuthorizationSettings(admins=("certificate:boss",))}, ()),
        ("other", {"authorized_roles": ["writer"]}, (Kind.ENTRIES, Kind.LEDGERS, *CHANGES)),
        ("writer", {"authorized_roles": ["writer"]}, ()),
        ("writer", {"changing_roles": ["operator"]}, CHANGES),
        ("operator", {"changing_roles": ["operator"],
                      "authorization": AuthorizationSettings(readers=("certificate:operator",))}, ()),
    ],
)  # fmt: skip
def test_a_certificate_may_not_more_at_the_pages_than_at_the_bookies_port(
    role: str, rules: dict[str, Any], refused: tuple[Kind, ...], tmp_path: Path
) -> None:
    admission = PageAdmission(port(is_encrypted=True, client_certificates="require"), **rules)
    visitor = admission.visitor(cast("asyncio.StreamWriter", Shown(tmp_path, role)), "")
    assert visitor.name == f"certificate:{role}"
    assert served_kinds(admission, visitor) == set(EVERY) - set(refused)


def test_a_certificate_that_is_revoked_is_nobody(tmp_path: Path) -> None:
    (tmp_path / "revoked").write_text("certificate:writer\n")
    credentials = PageCredentials(
        AuthenticationSettings(revoked_file=str(tmp_path / "revoked")), str
    )
    admission = PageAdmission(
        port(is_encrypted=True, client_certificates="require"), credentials=credentials
    )
    visitor = admission.visitor(cast("asyncio.StreamWriter", Shown(tmp_path, "writer")), "")
    assert (visitor.principal, "revoked" in visitor.reason) == (None, True)
    assert served_kinds(admission, visitor) == set()


@pytest.mark.parametrize(
    ("values", "may_listen"),
    [
        ({}, False),
        ({"is_encrypted": True}, False),
        ({"takes_tokens": True}, False),
        ({"client_certificates": "require"}, False),
        ({"is_encrypted": True, "takes_tokens": True}, True),
        ({"is_encrypted": True, "client_certificates": "request"}, True),
        ({"is_encrypted": True, "client_certificates": "require"}, True),
        ({"public": ["metrics"]}, True),
        ({"is_permitted": True}, True),
    ],
)
def test_a_port_that_others_reach_authenticates_or_is_permitted(
    values: dict[str, Any], may_listen: bool
) -> None:
    """INV-N7."""
    assert (port(**values).problem("do this") == "") is may_listen
    assert port("127.0.0.1", **values).problem("do this") == ""


# Requests that a web page of another site may have caused are refused; those of tools are not.


TOOL = {"user-agent": "Prometheus/2.53", "accept": "*/*"}
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)", "host": "localhost:8000"}


def refused(headers: dict[str, str], *, changes: bool = False) -> str:
    """Return the limit that a request reaches, empty if none."""
    refusal = SiteGuard(["bookie-1.example", ""]).refusal(headers, changes=changes)
    return refusal[0] if refusal else ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[::1]", "10.1.2.3:9000",
        "bookie-1.example", "Bookie-1.Example.:8000", socket.gethostname(),
    ],
)  # fmt: skip
def test_addresses_and_own_names_are_accepted(host: str) -> None:
    assert refused({"host": host, **TOOL}) == ""


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:8000", "localhost.attacker.example", "127.0.0.1.attacker.example",
        "localhost, attacker.example", "attacker.example, localhost", "xlocalhost", "2130706433", "[attacker]",
    ],
)  # fmt: skip
def test_a_name_that_somebody_else_may_own_is_refused(host: str) -> None:
    """DNS rebinding: the name's server sends the browser to our address."""
    assert refused({"host": host, **TOOL}) == "host"


def test_a_tool_without_headers_is_accepted() -> None:
    assert refused({}) == ""
    assert refused({}, changes=True) == ""
    assert refused({"host": "localhost", **TOOL}, changes=True) == ""


@pytest.mark.parametrize(
    "sent",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-site, none"},
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8000"},
        {"referer": "http://attacker.example/localhost:8000"},
        {"referer": "http://localhost:9000/"},
        {"referer": "http://["},
    ],
)
def test_requests_across_sites_are_refused(sent: dict[str, str]) -> None:
    assert refused({**BROWSER, **sent}) == "cross_site"


def test_a_person_and_our_own_pages_are_accepted() -> None:
    assert refused({**BROWSER, "sec-fetch-site": "none"}, changes=True) == ""
    ours = {"sec-fetch-site": "same-origin", "referer": "http://localhost:8000/metrics"}
    assert refused({**BROWSER, **ours}, changes=True) == ""


def test_a_browser_that_does_not_say_where_from_changes_nothing() -> None:
    """Over plain HTTP to another machine browsers send no Sec-Fetch-Site, and a page may drop its Referer."""
    assert refused(BROWSER) == ""
    assert refused(BROWSER, changes=True) == "cross_site"


def test_ports_and_brackets_are_no_part_of_a_name() -> None:
    assert [name_of(host) for host in ("a:1", "a", "[::1]:1", "a:b", "A.")] == [
        "a", "a", "::1", "a:b", "a",
    ]  # fmt: skip
