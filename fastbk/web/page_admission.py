"""Whom pages serve: the one rule of all HTTP ports, of bookies, gateways, janitors and healers (INV-N7).

Each page is of a kind, and each kind needs a right. A request is of the client that its token names, else of the
certificate that its connection showed, else a stranger's. Where strangers are served at all is decided before the port
listens (`HttpPort` in `fastbk/security/settings.py`).

Many pages need no authentication on their own machine, so a browser there must not carry a stranger's request to them.
There are two ways to do that, and `SiteGuard` has a check for each:

- DNS rebinding: the stranger's own name resolves to our address, so the browser takes us for the stranger's server and
  lets its page read the answer. Such a request names the stranger in `Host`. A name is accepted only if it is one of
  ours. An address is always accepted, since no name server can redirect an address.
- A request across sites: the page cannot read the answer, but the request is executed. Browsers mark it with
  `Sec-Fetch-Site`, `Origin` or `Referer`.
"""

from __future__ import annotations

import enum
import ipaddress
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from fastbk.config import is_loopback
from fastbk.security.auth_files import AuthFiles
from fastbk.security.peer_certificate import first_role
from fastbk.security.rights import ALL_RIGHTS, Principal, Right, can_be_revoked, names_of
from fastbk.security.settings import (
    AuthenticationSettings,
    AuthorizationSettings,
    is_limited,
    rights_of,
)
from fastbk.security.tokens import PAGES, TokenError

if TYPE_CHECKING:
    from asyncio import StreamWriter
    from collections.abc import Iterable, Mapping

    from fastbk.security.settings import HttpPort


Note = Callable[..., object]
"""Takes an event and its values."""
BEARER = "bearer "
"""How an `Authorization` with a token begins (RFC 6750), in small letters."""


class Kind(enum.Enum):
    """What a page does, and so what it takes to use it. The values of the first three stand in `[http] public`."""

    HEALTH = "health"
    METRICS = "metrics"
    ENTRIES = "entries"
    """It reads entries, with the bookie's own credentials: the right to read the ledger."""
    STATE = "state"
    """Everything else that only reads: to be authenticated."""
    LEDGERS = "ledgers"
    """It shows the metadata of ledgers of all namespaces: the right to read, without a limit to namespaces."""
    CHANGE = "change"
    DELETION = "deletion"


_KINDS = {
    "/livez": Kind.HEALTH,
    "/readyz": Kind.HEALTH,
    "/readyz/metadata": Kind.HEALTH,
    "/heartbeat": Kind.HEALTH,
    "/api/v1/bookie/is_ready": Kind.HEALTH,
    "/metrics": Kind.METRICS,
    "/api/v1/ledger/read": Kind.ENTRIES,
    "/api/v1/ledger/list": Kind.LEDGERS,
    "/api/v1/ledger/metadata": Kind.LEDGERS,
    # A GET of it writes entries, as in Apache.
    "/api/v1/bookie/sanity": Kind.CHANGE,
}
_DELETE_LEDGER = "/api/v1/ledger/delete"
_NEEDS = {
    Kind.ENTRIES: Right.READ,
    Kind.LEDGERS: Right.READ,
    Kind.CHANGE: Right.ADMIN,
    Kind.DELETION: Right.DELETE,
}
ANY_HOST = (Kind.HEALTH, Kind.METRICS)
"""They tell nothing that a web page of another site could use, and monitoring calls machines by many names."""
CHANGING = (Kind.CHANGE, Kind.DELETION)
AUDITED = (*CHANGING, Kind.ENTRIES)


def kind_of(method: str, path: str) -> Kind:
    """Return what a request does. A page that nobody has listed here reads with GET and HEAD, and else changes."""
    if method in ("GET", "HEAD"):
        return _KINDS.get(path, Kind.STATE)
    return Kind.DELETION if path == _DELETE_LEDGER else Kind.CHANGE


class Visitor(msgspec.Struct, frozen=True):
    """Whose request it is.

    Attributes:
        principal: None: a stranger's.
        reason: why what it showed is not accepted; "": it is, or it showed nothing.
    """

    principal: Principal | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """Name in the audit log."""
        return "" if self.principal is None else self.principal.name


def nothing(event: str, **values: object) -> None:
    """Keep no record."""


class PageAdmission:
    """The rules of one port's pages."""

    def __init__(
        self,
        port: HttpPort | None = None,
        *,
        changing_roles: Iterable[str] = (),
        authorized_roles: Iterable[str] = (),
        authorization: AuthorizationSettings | None = None,
        credentials: PageCredentials | None = None,
        lends_credentials: bool = False,
        note: Note = nothing,
    ) -> None:
        """Keep the rules.

        Args:
            port: None: one on loopback.
            changing_roles: only certificates with one of these change anything; none: `authorization` decides.
            authorized_roles: of certificates that are served more than health, metrics and state; none: all.
            authorization: the rights of certificates by their roles.
            credentials: what tokens are verified by, and who is revoked; None: tokens are not read.
            lends_credentials: the pages of ENTRIES read by credentials that a stranger does not have.
            note: keeps a record of each change, and of each reading of entries.
        """
        self._serves_strangers = port is None or port.serves_strangers
        self._public = frozenset(() if port is None else port.public)
        self._changing_roles = frozenset(changing_roles)
        self._authorized_roles = frozenset(authorized_roles)
        self._authorization = authorization or AuthorizationSettings()
        self._credentials = credentials
        self._takes_tokens = credentials is not None and credentials.takes_tokens
        self._lends_credentials = lends_credentials
        self._note = note

    def visitor(self, writer: StreamWriter, authorization: str) -> Visitor:
        """Return whose request it is, by its token, else by its connection's certificate."""
        credentials = self._credentials
        if credentials is not None and authorization[: len(BEARER)].lower() == BEARER:
            if writer.get_extra_info("ssl_object") is None and not is_loopback(_address(writer)):
                return Visitor(
                    reason="the token is not accepted: it came in the clear, so others may have it"
                )
            return credentials.visitor(authorization[len(BEARER) :].strip().encode())
        certificate = writer.get_extra_info("peercert")
        if not certificate:
            return Visitor()
        role = first_role(certificate)
        if not can_be_revoked(role):
            return Visitor(reason="the certificate's role could not be revoked")
        principal = Principal(name=f"certificate:{role}", rights=self._rights_of_role(role))
        reason = "" if credentials is None else credentials.why_revoked(principal)
        return Visitor(None, reason) if reason else Visitor(principal)

    def refusal(self, visitor: Visitor, kind: Kind) -> tuple[int, str] | None:
        """Return status and text for a client that may not use a page; None: it may."""
        if kind.value in self._public:
            return None
        principal = visitor.principal
        if principal is None:
            return self._refusal_of_stranger(visitor.reason, kind)
        need = _NEEDS.get(kind)
        if need is not None and not principal.rights & need:
            return 403, self._missing(principal, kind, need)
        if kind in (Kind.LEDGERS, *CHANGING) and principal.namespaces is not None:
            return 403, "the token is limited to namespaces, and this page is of no namespace"
        return None

    def answered(
        self, writer: StreamWriter, visitor: Visitor, method: str, target: str, status: int
    ) -> None:
        """Keep a record of a request that changes something or reads entries."""
        kind = kind_of(method, target.partition("?")[0])
        if kind in AUDITED:
            done = "admin.read" if kind is Kind.ENTRIES else "admin.changed"
            self._note(
                done if status < 400 else "admin.denied",
                address=_address(writer),
                principal=visitor.name,
                operation=f"{method} {target[:200]}",
                verdict=status,
            )

    def _refusal_of_stranger(self, reason: str, kind: Kind) -> tuple[int, str] | None:
        if reason and (kind in AUDITED or not self._serves_strangers):
            return 403, reason
        if not self._serves_strangers:
            return 401, f"{self._who_is_served()} ([http] public names pages for everybody)"
        if kind in CHANGING and self._changing_roles:
            return 403, self._roles_needed()
        if kind is Kind.ENTRIES and self._lends_credentials:
            return (
                401,
                f"the bookie would read entries by its own credentials: {self._who_is_served()}",
            )
        return None

    def _who_is_served(self) -> str:
        ways = [
            "show a certificate",
            *(["send a token (Authorization: Bearer)"] if self._takes_tokens else []),
        ]
        return f"this page is for authenticated clients: {' or '.join(ways)}, by TLS"

    def _missing(self, principal: Principal, kind: Kind, need: Right) -> str:
        if principal.name.startswith("token:"):
            what = "changes need" if kind in CHANGING else "this page needs"
            return f"{what} a token with the operation {names_of(need)}"
        if kind in CHANGING and self._changing_roles:
            return self._roles_needed()
        return f"{principal.name} may not do that: it needs a role that may {names_of(need)} ([authorization])"

    def _roles_needed(self) -> str:
        roles = " or ".join(sorted(self._changing_roles))
        return f"changes need a certificate with the role {roles} ([http] changing_roles)"

    def _rights_of_role(self, role: str) -> Right:
        rights = Right.ENTER
        if not self._authorized_roles or role in self._authorized_roles:
            limited = is_limited(self._authorization)
            rights |= (
                rights_of(self._authorization, f"certificate:{role}") if limited else ALL_RIGHTS
            )
        if self._changing_roles:
            changes = Right.ADMIN | Right.DELETE
            rights = rights | changes if role in self._changing_roles else rights & ~changes
        return rights


class PageCredentials:
    """Verifies tokens by the files of [authentication], which are read anew when they change."""

    def __init__(self, settings: AuthenticationSettings, cluster_id: Callable[[], str]) -> None:
        """`cluster_id`: the audience where the settings name none; "" while it is not known. Raises ConfigError."""
        self._settings = settings
        self._cluster_id = cluster_id
        self._files = AuthFiles(settings)
        self._refreshed_s = time.monotonic()

    @property
    def takes_tokens(self) -> bool:
        """Whether there are keys to verify tokens by."""
        return bool(self._settings.token_keys_file)

    def visitor(self, token: bytes) -> Visitor:
        """Return whose token it is, or why it is not accepted."""
        self._refresh()
        audience = self._settings.token_audience or self._cluster_id()
        if self._files.keys is None:
            return Visitor(reason="the token is not accepted: there are no keys of tokens here")
        if not audience:
            return Visitor(
                reason="the token is not accepted: the cluster's id is not known here yet"
            )
        try:
            found = self._files.keys.verify(token, audience, kind=PAGES)
        except TokenError as error:
            return Visitor(reason=f"the token is not accepted: {error}")
        reason = self._files.why_revoked(found)
        return Visitor(None, f"the token is not accepted: {reason}") if reason else Visitor(found)

    def why_revoked(self, principal: Principal) -> str:
        """Return why a client is not accepted any more; "": it is."""
        self._refresh()
        return self._files.why_revoked(principal)

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s - self._refreshed_s >= self._settings.refresh_interval_s:
            self._refreshed_s = now_s
            self._files.has_changed()


def page_credentials(
    settings: AuthenticationSettings, cluster_id: Callable[[], str]
) -> PageCredentials | None:
    """Return what verifies tokens by [authentication], and knows who is revoked; None: nothing. Raises ConfigError."""
    if not settings.token_keys_file and not settings.revoked_file:
        return None
    return PageCredentials(settings, cluster_id)


def _address(writer: StreamWriter) -> str:
    peer: Any = writer.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


# --- requests that web pages of other sites may have caused ---------------------------------------


OWN_SITES = ("same-origin", "none")
"""`Sec-Fetch-Site` of a request that one of our pages made, or a person in the address bar."""

BROWSER_AGENT = "mozilla/"
"""How the `User-Agent` of every browser begins."""


class SiteGuard:
    """Knows by which names this server may be called."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: further names that clients use, without a port."""
        machine = socket.gethostname().lower()
        self._names = {"localhost", machine, machine.partition(".")[0]}
        self._names.update(name.lower().rstrip(".") for name in names if name)

    def refusal(
        self, headers: Mapping[str, str], *, changes: bool, any_host: bool = False
    ) -> tuple[str, str] | None:
        """Return the limit's name and the text for the client; None for a request that is fine.

        `headers` have lower-case names. `changes`: the request changes something though it is a GET. `any_host`: the
        page tells nothing that is worth a name of a stranger's.
        """
        host = headers.get("host", "")
        if not any_host and not self.is_own(host):
            return "host", (
                f'this server is not called "{name_of(host)[:255]}": use its address, or add the name'
                " to [http] allowed_hosts (janitor and autorecovery: --http-host)"
            )
        site = headers.get("sec-fetch-site")
        referer = headers.get("referer", "")
        is_foreign = (
            (site is not None and site not in OWN_SITES)
            or "origin" in headers
            or (referer != "" and _authority(referer) != host.lower())
            # Only secure origins get Sec-Fetch-Site, and a page may leave out its Referer.
            or (changes and site is None and _is_browser(headers))
        )
        if is_foreign:
            return "cross_site", "not for web pages: send the request without a browser"
        return None

    def is_own(self, host: str) -> bool:
        """Return whether a `Host` names this server. Browsers always send one; simple tools need not."""
        name = name_of(host)
        if not host or name in self._names:
            return True
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True


def name_of(host: str) -> str:
    """Return a `Host` without its port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).rstrip(".")


def _authority(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _is_browser(headers: Mapping[str, str]) -> bool:
    return headers.get("user-agent", "").lower().startswith(BROWSER_AGENT)
