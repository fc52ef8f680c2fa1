"""What gc and index say to each other, and how long it may be.

One JSON object a message over a SOCK_SEQPACKET pair; gc asks, the index answers each request once:

- `list_ledgers` (cursor) -> `ledgers` (ids, cursor to go on with; no ids: the end);
- `delete_ledgers` (ids, reason) -> `deleted` (count);
- `list_limbo` (cursor) -> `ledgers`, as above: those whose data was lost here (INV-X4);
- `limbo_over` (ids, fenced) -> `limbo_over` (count);
- `holds` (one id, shares) -> `holds` (accepted: ask again; else count 1: all of these are on disk);
- `list_settled` (cursor) -> `settled` (ids, changed: their change marks, cursor; SETTLED_END: the end, else go on
  even when there are no ids): ledgers that hold something and are flushed;
- `drop_ledgers` (ids, changed, reason) -> `dropping` (count): copies that metadata counts on no more, if they are
  still as the change marks say (INV-G2). They go a while later;
- `list_unconfirmed` (cursor) -> `unconfirmed` (ids, changed: 1 where nothing is taken any more, else 0; cursor; no ids:
  the end): ledgers that metadata was never seen to list;
- `confirm_ledgers` (listed) -> `confirmed` (ids: those that have another key or creation here): metadata lists these;
- `admit_ledgers` (ids) -> `admitted` (count): metadata lists these and names this bookie, which does not have them;
- `begin_expiry` (ids) -> `expiring` (count), `expire_ledgers` (ids, reason, proven: metadata has
  deleted them) -> `expired` (count): INV-G5, INV-G8;
- `usage` (cursor) -> `usage` (logs, cursor; no logs: the end);
- `space` -> `space` (free_bytes, total_bytes, floor_bytes: what must stay free, is_full: normal adds are refused);
- `recount` -> `recount` (accepted): have live bytes counted anew, and logs deleted in which nothing lives;
- `compact` (ids: of logs, bytes_per_s, time_max_s) -> `compact` (accepted): move what lives in them, in the background;
  no further log is begun after so long;
- `compaction` -> `compaction` (running, moved_bytes, freed_bytes, bad_runs, error): of the last one that was accepted;
- `compaction_stop` -> `compaction_stop` (accepted): let it end without effect.

A request carries a `number`, which its answer repeats: what comes too late is taken for nobody's answer.
Messages are pages: none is longer than MESSAGE_BYTES_MAX, and whoever finds that even this does not fit
into the socket (EMSGSIZE: small buffers) halves the page.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import check_invariant
from fastbk.native.ledger_state import Listed

if TYPE_CHECKING:
    import socket

MESSAGE_BYTES_MAX = 64 * 1024

ID_BYTES_MAX = 20
"""The largest id in JSON, and a comma; a change mark takes one more."""

HEAD_BYTES_MAX = 4 * 1024
"""Everything in a message but its ids or logs."""

REASON_CHARACTERS_MAX = 500
"""Six bytes each, at most, in JSON."""

IDS_A_MESSAGE = (MESSAGE_BYTES_MAX - HEAD_BYTES_MAX) // ID_BYTES_MAX

MARKED_IDS_A_MESSAGE = (MESSAGE_BYTES_MAX - HEAD_BYTES_MAX) // (2 * ID_BYTES_MAX + 1)

LOGS_A_MESSAGE = 300
"""Four numbers of 20 digits, two short values, and their names are fewer than 200 bytes."""

LEDGERS, MINOR, MAJOR = "ledgers", "minor", "major"
KINDS = (LEDGERS, MINOR, MAJOR)
"""What an operator may run or suspend: deletions of every kind, and the two kinds of compaction."""

LISTED_A_MESSAGE = 500
"""An id, a mark and a key in base64 are fewer than 80 bytes."""

SHARES_A_MESSAGE = 500
"""Five numbers, two of them with up to 19 digits, are fewer than 64 bytes. A ledger of more is not asked about."""

SETTLED_END = 2**64 - 1
"""The cursor behind the last page of `list_settled`."""


class Share(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Which of the entries first..last a bookie is to hold: the one at `index` of the ensemble."""

    first: int
    last: int
    index: int
    ensemble: int
    write_quorum: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What gc may ask."""

    type: str
    number: int = 0
    cursor: int = 0
    ids: list[int] = msgspec.field(default_factory=list)
    changed: list[int] = msgspec.field(default_factory=list)
    reason: str = ""
    fenced: bool = False
    proven: bool = False
    bytes_per_s: int = 0
    time_max_s: float = 0.0
    shares: list[Share] = msgspec.field(default_factory=list)
    listed: list[Listed] = msgspec.field(default_factory=list)


class LogUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One entry log. `kind`: "flush", "compaction" or "journal", whoever wrote it. `created_s`: wall clock, 0 when
    unknown.
    """

    log_id: int
    durable_bytes: int
    live_bytes: int
    sealed: bool
    kind: str = "flush"
    created_s: int = 0


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """How much room the ledger directory's disk has. `floor_bytes` are never to be used up by compaction."""

    free_bytes: int
    total_bytes: int
    floor_bytes: int
    is_full: bool


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """How far a compaction is, or how the last one ended. `error`: why it ended early; empty when it did not."""

    running: bool = False
    moved_bytes: int = 0
    freed_bytes: int = 0
    bad_runs: int = 0
    error: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the index may say."""

    type: str
    number: int
    ids: list[int] = msgspec.field(default_factory=list)
    changed: list[int] = msgspec.field(default_factory=list)
    cursor: int = 0
    count: int = 0
    accepted: bool = False
    logs: list[LogUsage] = msgspec.field(default_factory=list)
    space: Space | None = None
    compaction: Compaction | None = None


class TooLong(Exception):
    """The message does not fit into this socket's buffer, however empty that is: send a shorter page."""


def send(connection: socket.socket, message: object) -> None:
    """Send one message. Raises TooLong, BlockingIOError (no room now), ConnectionError."""
    data = msgspec.json.encode(message)
    check_invariant(len(data) <= MESSAGE_BYTES_MAX, "messages between gc and index are pages")
    try:
        connection.send(data)
    except OSError as error:
        if error.errno == errno.EMSGSIZE:
            raise TooLong from error
        raise
