"""What becomes of a bug in the background: whoever calls next is told, and nobody waits for ever."""

from __future__ import annotations

from fastbk.errors import Error


def as_error(error: BaseException, doing: str) -> Error:
    """Return what callers are told of what ended `doing`: one of our errors as it is, anything else as a bug."""
    if isinstance(error, Error):
        return error
    told = Error(
        f"{doing} has ended by a bug of ours, please report it: {type(error).__name__}: {error}",
        outcome="unknown",
    )
    told.__cause__ = error
    return told
