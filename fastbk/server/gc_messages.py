"""What gc and index say to each other, and how long it may be.

One JSON object a message over a SOCK_SEQPACKET pair; gc asks, the index answers each request once:

- `list_ledgers` (cursor) -> `ledgers` (ids, cursor to go on with; no ids: the end);
- `delete_ledgers` (ids, reason) -> `deleted` (count);
- `list_limbo` (cursor) -> `ledgers`, as above: those whose data was lost here (INV-X4);
- `limbo_over` (ids, fenced) -> `limbo_over` (count);
- `usage` (cursor) -> `usage` (logs with their durable and live bytes, cursor; no logs: the end).

A request carries a `number`, which its answer repeats: what comes too late is taken for nobody's answer.
Messages are pages: none is longer than MESSAGE_BYTES_MAX, and whoever finds that even this does not fit
into the socket (EMSGSIZE: small buffers) halves the page.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec

from fastbk.invariant import check

if TYPE_CHECKING:
    import socket

MESSAGE_BYTES_MAX = 64 * 1024

ID_BYTES_MAX = 20
"""The largest id in JSON, and a comma."""

HEAD_BYTES_MAX = 4 * 1024
"""Everything in a message but its ids or logs."""

REASON_CHARACTERS_MAX = 500
"""Six bytes each, at most, in JSON."""

IDS_A_MESSAGE = (MESSAGE_BYTES_MAX - HEAD_BYTES_MAX) // ID_BYTES_MAX

LOGS_A_MESSAGE = 500
"""Three numbers of 19 digits and their names are fewer than 110 bytes."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What gc may ask."""

    type: str
    number: int = 0
    cursor: int = 0
    ids: list[int] = msgspec.field(default_factory=list)
    reason: str = ""
    fenced: bool = False


class LogUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One entry log."""

    log_id: int
    bytes: int
    live_bytes: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the index may say."""

    type: str
    number: int
    ids: list[int] = msgspec.field(default_factory=list)
    cursor: int = 0
    count: int = 0
    logs: list[LogUsage] = msgspec.field(default_factory=list)


class TooLong(Exception):
    """The message does not fit into this socket's buffer, however empty that is: send a shorter page."""


def send(connection: socket.socket, message: object) -> None:
    """Send one message. Raises TooLong, BlockingIOError (no room now), ConnectionError."""
    data = msgspec.json.encode(message)
    check(len(data) <= MESSAGE_BYTES_MAX, "messages between gc and index are pages")
    try:
        connection.send(data)
    except OSError as error:
        if error.errno == errno.EMSGSIZE:
            raise TooLong from error
        raise
