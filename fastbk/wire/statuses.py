"""The statuses of the wire, as protocol.fbs numbers them."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """What a bookie answers; the meanings are in wire/schema/protocol.fbs."""

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
    IO_ERROR = 30


def status_name(status: int) -> str:
    """Return a status's name, or its number when this version does not know it."""
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"
