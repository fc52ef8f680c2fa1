"""Who may change the bookie by its pages, and what the audit log records of it."""

from __future__ import annotations

from asyncio import StreamWriter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.auth.rights import Right
from fastbk.tls.roles import first_role

if TYPE_CHECKING:
    from fastbk.server.admin.page_tokens import PageTokens

Note = Callable[..., object]
"""Takes an event and its values."""
BEARER = "bearer "
"""How an `Authorization` with a token begins (RFC 6750), in small letters."""


def nothing(event: str, **values: object) -> None:
    """Keep no record."""


@dataclass(frozen=True, slots=True)
class PageUser:
    """Whose request it is. `refusal`: why it may not change anything; "": it may."""

    principal: str
    refusal: str = ""


class PageRights:
    """The rules of one bookie's pages: reading is for all whom they are served to, changing perhaps for some."""

    def __init__(
        self, changing_roles: Iterable[str] = (), note: Note = nothing, tokens: PageTokens | None = None
    ) -> None:
        """Keep the rules.

        Args:
            changing_roles: of certificates; none: everybody whom the pages are served to.
            note: keeps a record of each change.
            tokens: a request with a token is its user's, whatever the certificate is; None: tokens are not read.
        """
        self._roles = frozenset(changing_roles)
        self._note = note
        self._tokens = tokens

    def user(self, writer: StreamWriter, authorization: str) -> PageUser:
        """Return whose request it is, by its token, else by its connection's certificate."""
        if self._tokens is not None and authorization[: len(BEARER)].lower() == BEARER:
            return self._user_of_token(self._tokens, authorization[len(BEARER) :].strip())
        certificate = writer.get_extra_info("peercert")
        role = first_role(certificate or b"")
        principal = f"certificate:{role}" if certificate else ""
        if not self._roles or role in self._roles:
            return PageUser(principal)
        roles = " or ".join(sorted(self._roles))
        return PageUser(principal, f"changes need a certificate with the role {roles} ([http] changing_roles)")

    def changed(self, writer: StreamWriter, user: PageUser, method: str, path: str, status: int) -> None:
        """A request to change something was answered."""
        peer = writer.get_extra_info("peername")
        self._note(
            "admin.changed" if status < 400 else "admin.denied",
            address=str(peer[0]) if isinstance(peer, tuple) else "",
            principal=user.principal,
            operation=f"{method} {path[:200]}",
            verdict=status,
        )

    @staticmethod
    def _user_of_token(tokens: PageTokens, token: str) -> PageUser:
        principal, reason = tokens.principal(token.encode())
        if principal is None:
            return PageUser("", f"the token is not accepted: {reason}")
        if not principal.rights & Right.ADMIN:
            return PageUser(principal.name, "changes need a token with the operation admin")
        if principal.namespaces is not None:
            return PageUser(principal.name, "the token is limited to namespaces, and a bookie is of no namespace")
        return PageUser(principal.name)
