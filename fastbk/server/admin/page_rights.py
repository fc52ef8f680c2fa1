"""Who may change the bookie by its pages, and what the audit log hears of it."""

from __future__ import annotations

from asyncio import StreamWriter
from collections.abc import Callable, Iterable

from fastbk.tls.roles import first_role

Note = Callable[..., None]
"""Takes an event and its values."""


def nothing(event: str, **values: object) -> None:
    """Keep no record."""


class PageRights:
    """The rules of one bookie's pages: reading is for all whom they are served to, changing perhaps for some roles."""

    def __init__(self, changing_roles: Iterable[str] = (), note: Note = nothing) -> None:
        """`changing_roles`: of certificates; none: everybody whom the pages are served to."""
        self._roles = frozenset(changing_roles)
        self._note = note

    def refusal(self, writer: StreamWriter) -> str:
        """Return why a client may not change anything; "": it may."""
        if not self._roles or first_role(writer.get_extra_info("peercert") or {}) in self._roles:
            return ""
        return f"changes need a certificate with the role {' or '.join(sorted(self._roles))} ([http] changing_roles)"

    def changed(self, writer: StreamWriter, method: str, path: str, status: int) -> None:
        """A request to change something was answered."""
        certificate, peer = writer.get_extra_info("peercert"), writer.get_extra_info("peername")
        role = first_role(certificate or {})
        self._note(
            "admin.changed" if status < 400 else "admin.denied",
            address=str(peer[0]) if isinstance(peer, tuple) else "",
            principal=f"certificate:{role}" if certificate else "",
            operation=f"{method} {path[:200]}",
            verdict=status,
        )
