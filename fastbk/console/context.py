"""What a page is made with: the console, the request, the session that it is of, and what its user may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbk.console.sessions import Access, LoginLimit, Session, Sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from fastbk.console.cluster_view import ClusterView, StreamRow
    from fastbk.console.rendering import Renderer
    from fastbk.overview.values import CursorLag
    from fastbk.security.audit_log import AuditLog
    from fastbk.security.rights import Principal

PART_HEADER = "x-console-part"
"""Of a request for a page's content alone, by which the script keeps an open page up to date."""
COOKIE = "fastbk-console"


@dataclass(frozen=True, slots=True)
class Console:
    """One console, for as long as it runs.

    Attributes:
        uri: of the cluster's metadata. name: of the cluster, for people.
        is_encrypted: browsers come by TLS; cookies then say that they never go out in the clear.
    """

    uri: str
    name: str
    view: ClusterView
    access: Access
    sessions: Sessions
    logins: LoginLimit
    renderer: Renderer
    audit: AuditLog
    is_encrypted: bool

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. Browsers accept `__Host-` only with TLS, from this host, for all of it."""
        return f"__Host-{COOKIE}" if self.is_encrypted else COOKIE


@dataclass(frozen=True, slots=True)
class Context:
    """One request of a session."""

    console: Console
    request: Request
    session: Session

    @property
    def principal(self) -> Principal:
        """Whose request it is."""
        return self.session.principal

    @property
    def view(self) -> ClusterView:
        """The cluster."""
        return self.console.view

    @property
    def address(self) -> str:
        """Where the request came from."""
        return address_of(self.request)

    def query(self, name: str, default: str = "") -> str:
        """Return a value of the query, without blanks around it."""
        return self.request.query_params.get(name, default).strip()

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number of the query, put into low..high; the default for what is none."""
        text = self.query(name)
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default
        return min(max(value, low), high)

    def page(self, template: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401 -- of any template
        """Return a page of this session."""
        console = self.console
        shown = {
            "console": console, "view": console.view, "overview": console.view.overview,
            "principal": self.principal, "form_key": console.sessions.form_key(self.session),
            "path": self.request.url.path, "is_part": PART_HEADER in self.request.headers, "query_text": "",
        }  # fmt: skip
        return console.renderer.page(template, shown | values, status)


def address_of(request: Request) -> str:
    """Return the address that a request came from."""
    return "" if request.client is None else request.client.host


def streams_of(context: Context) -> Sequence[StreamRow]:
    """Return the streams that the user may see, by path."""
    rows = context.view.streams.rows
    if context.principal.namespaces is None:
        return rows
    return [row for row in rows if context.principal.is_allowed(row.namespace)]


def cursors_of(context: Context) -> Sequence[CursorLag]:
    """Return the cursors that the user may see, the longest unread first."""
    overview = context.view.overview
    found = () if overview is None else overview.cursors
    return [one for one in found if context.principal.is_allowed(one.stream.rpartition("/")[0])]
