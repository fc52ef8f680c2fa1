"""Rights, the roles that are made of them, and the principal that has them."""

from __future__ import annotations

import enum
from fnmatch import fnmatchcase

import msgspec


class Right(enum.IntFlag):
    """What a connection may do. The bits are those of `FBK_RIGHT_*` (`native/boundary/worker.h`)."""

    ENTER = 1
    """Be served at all: info and ping."""
    READ = 2
    """Read entries, LACs and lists of entries."""
    ADD = 4
    """Add entries, write LACs, force."""
    RECOVER = 8
    """Fence ledgers, and add to fenced ones: recovery and repair."""
    ADMIN = 16
    """Change the bookie by its HTTP pages, and at a gateway what users are limited by."""
    DELETE = 32
    """Delete ledgers, streams and namespaces. Only a gateway knows this right and the next ones."""
    TRUNCATE = 64
    """Truncate streams, and shorten what they retain."""
    SERVE = 128
    """Announce a write service, which producers send their records to."""


NO_RIGHTS = Right(0)
ALL_RIGHTS = (
    Right.ENTER
    | Right.READ
    | Right.ADD
    | Right.RECOVER
    | Right.ADMIN
    | Right.DELETE
    | Right.TRUNCATE
    | Right.SERVE
)

ROLES = {
    "reader": Right.ENTER | Right.READ,
    "writer": Right.ENTER | Right.READ | Right.ADD | Right.RECOVER,
    "healer": Right.ENTER | Right.READ | Right.RECOVER,
    "service": Right.ENTER | Right.READ | Right.ADD | Right.RECOVER | Right.SERVE,
    "admin": ALL_RIGHTS,
}
"""A writer may recover, since opening a stream to write fences whoever wrote to it before."""

OPERATIONS = {
    "read": Right.ENTER | Right.READ,
    "add": Right.ENTER | Right.ADD,
    "recover": Right.ENTER | Right.RECOVER,
    "admin": Right.ENTER | Right.ADMIN,
    "delete": Right.ENTER | Right.DELETE,
    "truncate": Right.ENTER | Right.TRUNCATE,
    "serve": Right.ENTER | Right.SERVE,
}
"""The names of rights in a token."""


def names_of(rights: Right) -> str:
    """Return the operations that have these rights, for messages: `add or recover`."""
    return " or ".join(
        name for name, granted in OPERATIONS.items() if granted & rights & ~Right.ENTER
    )


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated client.

    Attributes:
        name: for logs and lists of roles: `token:SUBJECT`, `user:NAME` or `certificate:ROLE`.
        rights: what it may do.
        ends_at_s: when that ends, in seconds since 1970; None: with its connection.
        key_id: of the key that signed its token; "": it has none.
        token_id: of its token, by which it can be revoked; "".
        namespaces: patterns; it may only work with ledgers of namespaces that one matches. None: with all.
    """

    name: str
    rights: Right
    ends_at_s: float | None = None
    key_id: str = ""
    token_id: str = ""
    namespaces: tuple[str, ...] | None = None

    @property
    def granted(self) -> tuple[Right, Right]:
        """What it may do with every ledger, and what with ledgers that it shows tags for (INV-N4)."""
        return (
            (self.rights, NO_RIGHTS)
            if self.namespaces is None
            else (self.rights & Right.ENTER, self.rights)
        )

    def is_allowed(self, namespace: str) -> bool:
        """Return whether it may work with ledgers of a namespace; "": of none."""
        return is_allowed(self.namespaces, namespace)


def is_allowed(patterns: tuple[str, ...] | None, namespace: str) -> bool:
    """Return whether a limit to namespaces that match one of `patterns` lets one through; None: no limit."""
    return patterns is None or any(fnmatchcase(namespace, pattern) for pattern in patterns)


NOBODY = Principal(name="", rights=NO_RIGHTS)
ANYBODY = Principal(name="anybody", rights=ALL_RIGHTS)
"""Where a bookie does not authenticate its clients."""


def can_be_revoked(name: str) -> bool:
    """Return whether a line of `revoked_file` can say a name. Nobody is served by another one."""
    return name.isprintable() and name == name.strip() and " #" not in name
