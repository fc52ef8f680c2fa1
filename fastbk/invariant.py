"""What a process does when it finds that it is itself wrong: it says which sentence was broken, and ends.

docs/invariants.md numbers the invariants; code that keeps one names it (`check(..., "INV-J1 ...")`). Bytes from a
disk, a network or another process are never checked here: those can be wrong without a bug of ours.
"""

from __future__ import annotations


class InvariantError(BaseException):
    """A bug in fastbk was found before it could reach a disk; the process must end.

    Not an `Exception`, so that no handler for the world's errors can swallow it.
    """


def check(holds: bool, what: str) -> None:
    """Raise InvariantError unless `holds`; `what` begins with the invariant's id where it has one."""
    if not holds:
        raise InvariantError(what)
