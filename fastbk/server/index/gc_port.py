"""The index's end of the socket to gc: which ledgers and logs are here, and which of them are to go.

The messages are those of `fastbk.server.gc_messages`. Nothing here waits: an answer for which the socket has no
room is kept, the only one, and no further request is read until it has left.

`HeldCheck` answers whether the disk here holds all that metadata says of a closed ledger, which gc asks of ledgers in
limbo (INV-X4). Listing a ledger reads disks, so it is done in a thread of its own, one ledger at a time; gc asks again
until it has its answer. What only lies in the write cache is not seen: the question comes again after the next
flush.
"""

from __future__ import annotations

import socket
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.model.quorum import share
from fastbk.native.scrub import list_now
from fastbk.server.gc_messages import (
    IDS_A_MESSAGE,
    LOGS_A_MESSAGE,
    MARKED_IDS_A_MESSAGE,
    MESSAGE_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    Compaction,
    LogUsage,
    Request,
    Space,
    TooLong,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastbk.native.index import Index
    from fastbk.native.store import Store
    from fastbk.server.gc_messages import Share
    from fastbk.server.index.flush import Flusher
    from fastbk.storage.checkpoint import Checkpoint
    from fastbk.storage.manifest import LogEntry, Manifest


MESSAGES_A_LOOK = 4
PAGED = ("list_ledgers", "list_limbo", "list_settled", "list_unconfirmed", "usage")
"""What may be asked again for less: it changes nothing."""
UNCONFIRMED_REQUESTS = (
    "list_unconfirmed",
    "confirm_ledgers",
    "admit_ledgers",
    "begin_expiry",
    "expire_ledgers",
)


class GcPort:
    """Answers gc. gc may die and come again with the whole bookie only, so the end of the socket is no event."""

    def __init__(
        self,
        fd: int,
        index: Index,
        flusher: Flusher,
        checkpoint: Checkpoint,
        space: Callable[[], Space],
        held: HeldCheck,
    ) -> None:
        """Take the descriptor of the socket over. `space`: of the ledger directory's disk."""
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._index = index
        self._flusher = flusher
        self._checkpoint = checkpoint
        self._space = space
        self._held = held
        self._ids_a_message = IDS_A_MESSAGE
        self._marked_ids_a_message = MARKED_IDS_A_MESSAGE
        self._logs_a_message = LOGS_A_MESSAGE
        self._listed: Manifest | None = None
        self._logs: list[LogEntry] = []
        """Those of `_listed`, by rising id."""
        self._unsent: dict[str, object] | None = None
        self.is_open = True

    @property
    def has_unsent(self) -> bool:
        """Whether an answer waits for room in the socket: look again soon, nothing becomes readable by it."""
        return self._unsent is not None

    def poll(self) -> None:
        """Answer what has come, a few messages at most."""
        for _ in range(MESSAGES_A_LOOK):
            if self._unsent is not None and not self._send(self._unsent):
                return
            if not self.is_open:
                return
            try:
                data = self._socket.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self.is_open = False
                return
            self._answer(msgspec.json.decode(data, type=Request))

    def close(self) -> None:
        """Close our end."""
        self._socket.close()

    def _answer(self, request: Request) -> None:
        while True:
            try:
                self._send({**self._reply_to(request), "number": request.number})
            except TooLong:
                if request.type not in PAGED or self._ids_a_message == 1:
                    return  # a socket that takes nothing: gc gives the cycle up
                # A page is asked for by its cursor: the shorter one leaves nothing out.
                self._ids_a_message = max(1, self._ids_a_message // 2)
                self._marked_ids_a_message = max(1, self._marked_ids_a_message // 2)
                self._logs_a_message = max(1, self._logs_a_message // 2)
            else:
                return

    def _reply_to(self, request: Request) -> dict[str, object]:
        if request.type in (
            "usage",
            "space",
            "recount",
            "compact",
            "compaction",
            "compaction_stop",
        ):
            return {"type": request.type, **self._of_logs(request)}
        if request.type == "list_ledgers":
            ids, cursor = self._index.list_ledgers(request.cursor, self._ids_a_message)
            return {"type": "ledgers", "ids": ids, "cursor": cursor}
        if request.type == "list_limbo":
            ids, cursor = self._index.list_limbo(request.cursor, self._ids_a_message)
            return {"type": "ledgers", "ids": ids, "cursor": cursor}
        if request.type == "list_settled":
            ids, changed, cursor = self._index.list_settled(
                request.cursor, self._marked_ids_a_message
            )
            return {"type": "settled", "ids": ids, "changed": changed, "cursor": cursor}
        if request.type == "limbo_over":
            count, _ = self._index.limbo_over(request.ids, fenced=request.fenced)
            return {"type": "limbo_over", "count": count}
        if request.type == "holds" and request.ids:
            answer = self._held.check(request.ids[0], request.shares)
            return {"type": "holds", "count": int(bool(answer)), "accepted": answer is None}
        if request.type == "delete_ledgers":
            count = self._flusher.delete_ledgers(request.ids, request.reason)
            return {"type": "deleted", "count": count}
        if request.type in UNCONFIRMED_REQUESTS:
            return self._of_unconfirmed(request)
        if request.type == "drop_ledgers":
            count = self._flusher.drop_ledgers(request.ids, request.changed, request.reason)
            return {"type": "dropping", "count": count}
        return {"type": "unknown", "request": request.type}

    def _of_unconfirmed(self, request: Request) -> dict[str, object]:
        if request.type == "list_unconfirmed":
            ids, expiring, cursor = self._index.list_unconfirmed(
                request.cursor, self._marked_ids_a_message
            )
            return {"type": "unconfirmed", "ids": ids, "changed": expiring, "cursor": cursor}
        if request.type == "confirm_ledgers":
            return {"type": "confirmed", "ids": self._index.confirm(request.listed)}
        if request.type == "admit_ledgers":
            return {"type": "admitted", "count": self._index.admit(request.ids)}
        if request.type == "begin_expiry":
            return {"type": "expiring", "count": self._index.begin_expiry(request.ids)}
        count = self._flusher.expire_ledgers(request.ids, request.reason, is_proven=request.proven)
        return {"type": "expired", "count": count}

    def _of_logs(self, request: Request) -> dict[str, object]:
        upkeep = self._flusher.upkeep
        if request.type == "usage":
            return self._usage(request.cursor)
        if request.type == "space":
            return {"space": self._space()}
        if request.type == "recount":
            return {"accepted": upkeep.recount()}
        if request.type == "compact":
            rate, time_max_s = request.bytes_per_s, request.time_max_s
            return {"accepted": upkeep.compact(request.ids, rate, time_max_s)}
        if request.type == "compaction_stop":
            return {"accepted": upkeep.stop_compaction()}
        state = upkeep.compaction_so_far
        return {
            "compaction": Compaction(
                running=state.running,
                moved_bytes=state.moved_bytes,
                freed_bytes=state.freed_bytes,
                bad_runs=state.bad_runs,
                error=state.error[:REASON_CHARACTERS_MAX],
            )
        }

    def _usage(self, cursor: int) -> dict[str, object]:
        manifest = self._checkpoint.manifest
        if manifest is not self._listed:
            # Once for all pages: there may be tens of thousands of logs.
            self._listed = manifest
            self._logs = sorted(manifest.logs, key=lambda log: log.log_id)
        begin = bisect_left(self._logs, cursor, key=lambda log: log.log_id)
        logs = self._logs[begin : begin + self._logs_a_message]
        return {
            "logs": [
                LogUsage(
                    log_id=log.log_id,
                    durable_bytes=log.durable_bytes,
                    live_bytes=log.live_bytes,
                    sealed=log.sealed,
                    kind=log.kind,
                    created_s=log.created_s,
                )
                for log in logs
            ],
            "cursor": logs[-1].log_id + 1 if logs else cursor,
        }

    def _send(self, reply: dict[str, object]) -> bool:
        """Return whether it left; else it is kept. Raises TooLong."""
        self._unsent = None
        try:
            send(self._socket, reply)
        except BlockingIOError:
            # Answers that gc no longer waits for lie there: it reads them away before it asks again.
            self._unsent = reply
            return False
        except ConnectionError:
            self.is_open = False
        return True


def holds(store: Store, ledger_id: int, shares: Iterable[Share]) -> bool:
    """Return whether every entry of these shares is on disk; False also when that can't be told. Any thread."""
    listing = _Listing(store, ledger_id)
    wanted = (
        run
        for one in shares
        for run in share(one.index, one.ensemble, one.write_quorum, one.first, one.last)
    )
    return all(listing.has(first, last) for first, last in wanted)


class _Listing:
    """A ledger's ids, from the front to the back; asked for by rising ids."""

    def __init__(self, store: Store, ledger_id: int) -> None:
        self._store = store
        self._ledger_id = ledger_id
        self._ranges: Iterator[tuple[int, int]] = iter(())
        self._range = -1, -1
        self._next = 0

    def has(self, first: int, last: int) -> bool:
        """Return whether all ids of first..last are there."""
        while True:
            while self._range[1] < first:
                following = next(self._ranges, None)
                if following is None:
                    if not self._list_more(first):
                        return False
                    continue
                self._range = following
            if self._range[0] > first:
                return False
            if self._range[1] >= last:
                return True
            first = self._range[1] + 1  # it may go on in the next range, listed apart

    def _list_more(self, first: int) -> bool:
        if self._next < 0:
            return False
        listed = list_now(self._store, self._ledger_id, max(self._next, first))
        if listed is None:
            return False
        ranges, self._next = listed
        self._ranges = iter(ranges)
        return True


def _in_thread(job: Callable[[], None]) -> None:
    threading.Thread(target=job, name="held", daemon=True).start()


class HeldCheck:
    """One question at a time, answered in a thread."""

    def __init__(
        self,
        store: Store,
        run: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        """`run` does a job, now or later."""
        self._store = store
        self._run = run
        self._asked: tuple[int, Sequence[Share]] | None = None
        self._answer: bool | None = None

    def check(self, ledger_id: int, shares: Sequence[Share]) -> bool | None:
        """Return the answer, None while it is being found out: ask again for it, with the same words."""
        asked = (ledger_id, shares)
        if self._asked is None:
            self._asked, self._answer = asked, None
            self._run(self._find_out)
        if self._answer is None:
            return None
        found, was = self._answer, self._asked
        self._asked = None
        return found if was == asked else self.check(ledger_id, shares)

    def _find_out(self) -> None:
        asked = self._asked
        assert asked is not None
        try:
            self._answer = holds(self._store, *asked)
        except (OSError, Error):
            self._answer = False
