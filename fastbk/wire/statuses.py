"""The statuses of the wire, as protocol.fbs numbers them."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """What a bookie or a write service answers; the meanings are in wire/schema/protocol.fbs."""

    OK = 0
    BAD_REQUEST = 1
    UNSUPPORTED = 2
    NOT_READY = 3
    NO_LEDGER = 10
    NO_ENTRY = 11
    CANNOT_TELL = 12
    FENCED = 20
    UNAUTHORIZED = 21
    CONFLICT = 22
    BAD_DIGEST = 23
    READ_ONLY = 24
    TOO_MANY_REQUESTS = 25
    TOO_LARGE = 26
    OTHER_CREATION = 27
    FORBIDDEN = 28
    IO_ERROR = 30
    MOVED = 40
    NOT_NEXT = 41
    PRODUCER_EXPIRED = 42
    PRODUCER_FENCED = 43
    TOO_MANY_PRODUCERS = 44
    WRONG_KIND = 45
    NO_STREAM = 46
    SEALED = 47
    OVER_QUOTA = 48


_FOR_PEOPLE = {
    Status.NOT_READY: "not ready yet",
    Status.NO_LEDGER: "not there, nor anything of its ledger",
    Status.NO_ENTRY: "not there",
    Status.CANNOT_TELL: "damaged or lost: the bookie cannot show it, nor say that it never had it",
    Status.UNAUTHORIZED: "of a ledger with another password there",
    Status.FORBIDDEN: "not shown to this client: its role or token does not allow it",
    Status.TOO_MANY_REQUESTS: "too many requests",
    Status.OTHER_CREATION: "of another ledger there: the id was given twice",
    Status.IO_ERROR: "not to be read: the bookie's disk failed",
}


def status_text(status: int) -> str:
    """Return what a report says of a copy that a bookie was asked for and answered with this."""
    try:
        return _FOR_PEOPLE[Status(status)]
    except (KeyError, ValueError):
        return f"not shown: {status_name(status)}"


def status_name(status: int) -> str:
    """Return a status's name, or its number when this version does not know it."""
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"
