"""What the rules of a gateway have in common: what a change needs, and how one is refused. Pure.

Decision 124.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastbk.errors import Unauthorized
from fastbk.security.rights import Right

READ = Right.READ
WRITE = Right.ADD | Right.RECOVER
"""Either of the two is enough."""
ADD, RECOVER, DELETE, TRUNCATE, ADMIN = (
    Right.ADD,
    Right.RECOVER,
    Right.DELETE,
    Right.TRUNCATE,
    Right.ADMIN,
)


class ForbiddenChange(Unauthorized):
    """A change that nobody may make by a gateway, whatever rights the client has. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Need:
    """One of these rights, and what it is needed for.

    Attributes:
        rights: one bit of them is enough.
        operation: for messages and the audit log, such as `close`.
    """

    rights: Right
    operation: str
