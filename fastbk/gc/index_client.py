"""gc's end of the socket to the index: one request at a time, in pages. The messages are those of
`fastbk.server.gc_messages`.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fastbk.errors import Error
from fastbk.gc.ledger_listing import sorted_ids
from fastbk.native.process import kill_point
from fastbk.server.gc_messages import (
    IDS_A_MESSAGE,
    LISTED_A_MESSAGE,
    MARKED_IDS_A_MESSAGE,
    MESSAGE_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    SETTLED_END,
    SHARES_A_MESSAGE,
    Answer,
    Compaction,
    LogUsage,
    Share,
    Space,
    TooLong,
    send,
)
from fastbk.storage.identity import pair_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fastbk.native.ledger_state import Listed
    from fastbk.server.gc_messages import Share


INDEX_TIMEOUT_S = 60.0
"""Longest wait for the index's answer: it answers between two steps of its loop."""
T = TypeVar("T")
HOLDS_PAUSE_S = 0.005
"""Pause between two requests whether the index has found out by now."""


class IndexSilent(Error):
    """The index did not answer, or not what it was asked: the cycle stops, the next one asks again."""

    default_retryable = True


class IndexClient:
    """The local ledgers and logs, as one index knows them. Every call raises IndexSilent."""

    def __init__(self, fd: int) -> None:
        """Take the descriptor of the socket over."""
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._number = 0
        self._page_max = {
            "ids": IDS_A_MESSAGE, "marked": MARKED_IDS_A_MESSAGE, "listed": LISTED_A_MESSAGE,
        }  # fmt: skip
        """How many of each kind a message takes; fewer once one was too long."""

    # ---- ledgers

    def ids(self) -> array[int]:
        """Return the ids of local ledgers that are not deleted, ascending."""
        return sorted_ids(page.ids for page in self._pages("list_ledgers", "ledgers"))

    def limbo_ids(self) -> set[int]:
        """Return the ids of ledgers in limbo that are not deleted."""
        return {one for page in self._pages("list_limbo", "ledgers") for one in page.ids}

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        """Have ledgers taken out of limbo; return how many were in it. After IndexSilent some may be out."""
        request = {"type": "limbo_over", "fenced": fenced}
        return self._count(ledger_ids, request, "limbo_over")

    def holds(self, ledger_id: int, shares: list[Share]) -> bool:
        """Return whether all entries of these shares are on the disk here; False when it can't be told."""
        if len(shares) > SHARES_A_MESSAGE:
            return False
        request: dict[str, object] = {"type": "holds", "ids": [ledger_id], "shares": shares}
        deadline_s = time.monotonic() + INDEX_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                reply = self._ask(request, "holds")
            except TooLong:
                return False
            if not reply.accepted:
                return reply.count == 1
            time.sleep(HOLDS_PAUSE_S)
        return False

    def unconfirmed(self) -> tuple[array[int], array[int]]:
        """Return the ids of unconfirmed ledgers, ascending: all of them, and those whose expiry has begun."""
        every: list[list[int]] = []
        expiring: list[list[int]] = []
        for reply in self._pages("list_unconfirmed", "unconfirmed"):
            if len(reply.ids) != len(reply.changed):
                raise IndexSilent("the index gave ids without saying which expire")
            every.append(reply.ids)
            marked = zip(reply.ids, reply.changed, strict=True)
            expiring.append([one for one, is_expiring in marked if is_expiring])
        return sorted_ids(every), sorted_ids(expiring)

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        """Have ledgers confirmed that metadata lists; return those that have another key or creation here."""
        replies = self._in_pages(
            listed, "listed", lambda page: {"type": "confirm_ledgers", "listed": page}, "confirmed"
        )
        return [one for reply in replies for one in reply.ids]

    def admit(self, ledger_ids: list[int]) -> int:
        """Have room made for ledgers that metadata lists and that are not here yet; return for how many."""
        return self._count(ledger_ids, {"type": "admit_ledgers"}, "admitted")

    def begin_expiry(self, ledger_ids: list[int]) -> int:
        """Have nothing taken to these unconfirmed ledgers any more; return to how many more."""
        return self._count(ledger_ids, {"type": "begin_expiry"}, "expiring")

    def expire(self, ledger_ids: list[int], reason: str, *, is_proven: bool = False) -> int:
        """Have ledgers forgotten whose expiry has begun; return how many were. `is_proven`: metadata deleted them."""
        request = {
            "type": "expire_ledgers",
            "reason": reason[:REASON_CHARACTERS_MAX],
            "proven": is_proven,
        }
        return self._count(ledger_ids, request, "expired")

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        """Have ledgers deleted; return how many were there. After IndexSilent some may be."""
        request = {"type": "delete_ledgers", "reason": reason[:REASON_CHARACTERS_MAX]}
        kill_point("gc.before_delete")
        count = self._count(ledger_ids, request, "deleted")
        kill_point("gc.after_delete")
        return count

    def settled(self, cursor: int) -> tuple[list[tuple[int, int]], int]:
        """Return some ledgers that hold something, with change marks, and the cursor to go on with; 0: the end."""
        reply = self._ask({"type": "list_settled", "cursor": cursor}, "settled")
        if len(reply.ids) != len(reply.changed):
            raise IndexSilent("the index gave ids without their change marks")
        found = list(zip(reply.ids, reply.changed, strict=True))
        return found, 0 if reply.cursor == SETTLED_END else reply.cursor

    def drop(self, copies: Sequence[tuple[int, int]], reason: str) -> int:
        """Have copies dropped that are still as their change marks say; return how many were taken on."""
        request = {"type": "drop_ledgers", "reason": reason[:REASON_CHARACTERS_MAX]}

        def marked(page: Sequence[tuple[int, int]]) -> dict[str, object]:
            return {
                **request,
                "ids": [one for one, _ in page],
                "changed": [mark for _, mark in page],
            }

        return sum(reply.count for reply in self._in_pages(copies, "marked", marked, "dropping"))

    # ---- logs

    def usage(self) -> list[LogUsage]:
        """Return all entry logs, by id, with what lives in them as of the last count."""
        return [log for page in self._pages("usage", "usage") for log in page.logs]

    def space(self) -> Space:
        """Return how much room there is."""
        space = self._ask({"type": "space"}, "space").space
        if space is None:
            raise IndexSilent("the index did not say how much room there is")
        return space

    def recount(self) -> bool:
        """Have live bytes counted anew, and dead logs deleted; False: it is busy, ask later."""
        return self._ask({"type": "recount"}, "recount").accepted

    def compact(self, log_ids: Sequence[int], bytes_per_s: int, time_max_s: float) -> bool:
        """Begin to move what lives in these logs; no further log is begun after so long. False: busy, ask later."""
        request = {
            "type": "compact",
            "ids": list(log_ids),
            "bytes_per_s": bytes_per_s,
            "time_max_s": time_max_s,
        }
        return self._ask(request, "compact").accepted

    def compaction(self) -> Compaction:
        """Return how far the last compaction is."""
        compaction = self._ask({"type": "compaction"}, "compaction").compaction
        return Compaction() if compaction is None else compaction

    def stop_compaction(self) -> None:
        """Let the compaction that is under way end soon, without effect."""
        self._ask({"type": "compaction_stop"}, "compaction_stop")

    # ---- messages

    def _pages(self, what: str, wanted: str) -> Iterator[Answer]:
        cursor = 0
        while (reply := self._ask({"type": what, "cursor": cursor}, wanted)).ids or reply.logs:
            yield reply
            cursor = reply.cursor

    def _in_pages(
        self,
        items: Sequence[T],
        kind: str,
        request: Callable[[Sequence[T]], dict[str, object]],
        wanted: str,
    ) -> Iterator[Answer]:
        """Send a request for each page of `items`, and yield the answers."""
        offset = 0
        while offset < len(items):
            page = items[offset : offset + self._page_max[kind]]
            try:
                reply = self._ask(request(page), wanted)
            except TooLong:
                if len(page) == 1:
                    raise IndexSilent("the socket to the index takes no message at all") from None
                self._page_max[kind] = len(page) // 2
                continue
            offset += len(page)
            yield reply

    def _count(self, ledger_ids: list[int], request: Mapping[str, object], wanted: str) -> int:
        replies = self._in_pages(ledger_ids, "ids", lambda page: {**request, "ids": page}, wanted)
        return sum(reply.count for reply in replies)

    def _ask(self, request: dict[str, object], wanted: str) -> Answer:
        """Return the answer, which is of the `wanted` type. Raises IndexSilent, TooLong."""
        deadline_s = time.monotonic() + INDEX_TIMEOUT_S
        self._number += 1
        self._send({**request, "number": self._number}, deadline_s)
        while True:
            reply = self._receive(deadline_s)
            # An answer that came too late for its cycle must not be taken for this one's.
            if reply.number == self._number:
                break
        if reply.type != wanted:
            raise IndexSilent(f"the index answered {reply.type} instead of {wanted}")
        return reply

    def _send(self, request: dict[str, object], deadline_s: float) -> None:
        while True:
            try:
                send(self._socket, request)
            except BlockingIOError:
                # The index has yet to read what an earlier cycle asked; it may have to get rid of an answer first.
                if self._wait(select.POLLOUT | select.POLLIN, deadline_s) & select.POLLIN:
                    self._receive(deadline_s)
            except ConnectionError as error:
                raise IndexSilent("the index is gone") from error
            else:
                return

    def _receive(self, deadline_s: float) -> Answer:
        self._wait(select.POLLIN, deadline_s)
        try:
            data = self._socket.recv(MESSAGE_BYTES_MAX)
        except ConnectionError:
            data = b""
        if not data:
            raise IndexSilent("the index is gone")
        try:
            return msgspec.json.decode(data, type=Answer)
        except (ValueError, RecursionError) as error:
            raise IndexSilent(f"the index answered what is no answer: {error}") from error

    def _wait(self, wanted: int, deadline_s: float) -> int:
        poll = select.poll()
        poll.register(self._socket, wanted)
        found = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3)
        if not found:
            raise IndexSilent("the index does not answer")
        return found[0][1]


# --- several pairs -----------------------------------------------------------------------------------------------
#
# The indexes of all journal/index pairs as one, for whoever asks about ledgers. Logs are each pair's own.
#
# What is asked of all is the union of their answers; what is asked about certain ledgers goes to
# the pair each lives in. An index that does not answer ends the call: a part of the truth is no
# basis for deletions (INV-G1).


Copy = tuple[int, int]
"""A ledger and its change mark."""


class AllPairs:
    """All local ledgers."""

    def __init__(self, indexes: Sequence[IndexClient], shards: Sequence[int]) -> None:
        """Take the indexes by pair, and the pair of each shard."""
        self._indexes = indexes
        self._shards = shards

    def ids(self) -> array[int]:
        """Return the ids of all local ledgers that are not deleted, ascending. Raises Error."""
        return sorted_ids([index.ids() for index in self._indexes])

    def limbo_ids(self) -> set[int]:
        """Return the ids of all ledgers in limbo. Raises Error."""
        return set().union(*(index.limbo_ids() for index in self._indexes))

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        """Have ledgers taken out of limbo; return how many were in it. Raises Error: then some may be out."""
        parts = self._by_index(ledger_ids, int)
        return sum(index.limbo_over(ids, fenced=fenced) for index, ids in parts)

    def holds(self, ledger_id: int, shares: list[Share]) -> bool:
        """Return whether all entries of these shares are on the disk of the pair that it lives in. Raises Error."""
        return self._indexes[pair_of(ledger_id, self._shards)].holds(ledger_id, shares)

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        """Have ledgers deleted; return how many were there. Raises Error: then some may be."""
        parts = self._by_index(ledger_ids, int)
        return sum(index.delete(ids, reason) for index, ids in parts)

    def settled(self, cursor: int) -> tuple[list[Copy], int]:
        """Return some ledgers that hold something, with change marks, and the cursor to go on with; 0: the end.

        One pair after the other. Raises Error.
        """
        count = len(self._indexes)
        of_index, pair = divmod(cursor, count)
        found, of_index = self._indexes[pair].settled(of_index)
        if of_index == 0:
            return found, (pair + 1) % count
        return found, of_index * count + pair

    def unconfirmed(self) -> tuple[array[int], array[int]]:
        """Return the ids of all unconfirmed ledgers, and of those whose expiry has begun, ascending. Raises Error."""
        parts = [index.unconfirmed() for index in self._indexes]
        return sorted_ids([every for every, _ in parts]), sorted_ids([some for _, some in parts])

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        """Have ledgers confirmed; return those that have another key or creation here. Raises Error: some may be."""
        parts = self._by_index(listed, lambda one: one.ledger_id)
        return [one for index, some in parts for one in index.confirm(some)]

    def admit(self, ledger_ids: list[int]) -> int:
        """Have room made for ledgers that are not here yet; return for how many. Raises Error: then for some."""
        return sum(index.admit(ids) for index, ids in self._by_index(ledger_ids, int))

    def begin_expiry(self, ledger_ids: list[int]) -> int:
        """Have nothing taken to ledgers any more; return to how many more. Raises Error: then to some."""
        return sum(index.begin_expiry(ids) for index, ids in self._by_index(ledger_ids, int))

    def expire(self, ledger_ids: list[int], reason: str, *, is_proven: bool = False) -> int:
        """Have ledgers forgotten whose expiry has begun; return how many were. Raises Error: then some may be.

        `is_proven`: metadata deleted them, so those that were fenced are remembered for a while (INV-G8).
        """
        parts = self._by_index(ledger_ids, int)
        return sum(index.expire(ids, reason, is_proven=is_proven) for index, ids in parts)

    def drop(self, copies: Sequence[Copy], reason: str) -> int:
        """Have copies dropped; return how many were taken on. Raises Error: then some may be."""
        parts = self._by_index(copies, lambda copy: copy[0])
        return sum(index.drop(some, reason) for index, some in parts)

    def _by_index(
        self, some: Iterable[T], ledger_id_of: Callable[[T], int]
    ) -> Iterator[tuple[IndexClient, list[T]]]:
        parts: dict[int, list[T]] = {}
        for one in some:
            parts.setdefault(pair_of(ledger_id_of(one), self._shards), []).append(one)
        for pair, those in sorted(parts.items()):
            yield self._indexes[pair], those
