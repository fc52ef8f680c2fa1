"""gc's end of the socket to the index: one request at a time, in pages. The messages are those of
`fastbk.server.gc_messages`.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.gc.ledger_listing import sorted_ids
from fastbk.native.kill_points import kill_point
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

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence

    from fastbk.native.ledger_state import Listed

INDEX_TIMEOUT_S = 60.0
"""Longest wait for the index's answer: it answers between two steps of its loop."""


HOLDS_PAUSE_S = 0.005
"""Between two questions whether the index has found out by now."""


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
        self._ids_a_message = IDS_A_MESSAGE
        self._marked_ids_a_message = MARKED_IDS_A_MESSAGE
        self._listed_a_message = LISTED_A_MESSAGE

    # ---- ledgers

    def ids(self) -> array[int]:
        """Return the ids of local ledgers that are not deleted, ascending."""
        return sorted_ids(self._pages("list_ledgers"))

    def limbo_ids(self) -> set[int]:
        """Return the ids of ledgers in limbo that are not deleted."""
        return {one for page in self._pages("list_limbo") for one in page}

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        """Have ledgers taken out of limbo; return how many were in it. After IndexSilent some may be out."""
        request = {"type": "limbo_over", "fenced": fenced}
        return self._in_pages(ledger_ids, request, "limbo_over")

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
        cursor = 0
        while (reply := self._ask({"type": "list_unconfirmed", "cursor": cursor}, "unconfirmed")).ids:
            if len(reply.ids) != len(reply.changed):
                raise IndexSilent("the index gave ids without saying which expire")
            every.append(reply.ids)
            marked = zip(reply.ids, reply.changed, strict=True)
            expiring.append([one for one, is_expiring in marked if is_expiring])
            cursor = reply.cursor
        return sorted_ids(every), sorted_ids(expiring)

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        """Have ledgers confirmed that metadata lists; return those that have another key or creation here."""
        foreign: list[int] = []
        at = 0
        while at < len(listed):
            page = listed[at : at + self._listed_a_message]
            try:
                foreign += self._ask({"type": "confirm_ledgers", "listed": page}, "confirmed").ids
            except TooLong:
                self._listed_a_message = self._half(len(page))
                continue
            at += len(page)
        return foreign

    def admit(self, ledger_ids: list[int]) -> int:
        """Have room made for ledgers that metadata lists and that are not here yet; return for how many."""
        return self._in_pages(ledger_ids, {"type": "admit_ledgers"}, "admitted")

    def begin_expiry(self, ledger_ids: list[int]) -> int:
        """Have nothing taken to these unconfirmed ledgers any more; return to how many more."""
        return self._in_pages(ledger_ids, {"type": "begin_expiry"}, "expiring")

    def expire(self, ledger_ids: list[int], reason: str) -> int:
        """Have ledgers forgotten whose expiry has begun; return how many were."""
        request = {"type": "expire_ledgers", "reason": reason[:REASON_CHARACTERS_MAX]}
        return self._in_pages(ledger_ids, request, "expired")

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        """Have ledgers deleted; return how many were there. After IndexSilent some may be."""
        request = {"type": "delete_ledgers", "reason": reason[:REASON_CHARACTERS_MAX]}
        kill_point("gc.before_delete")
        count = self._in_pages(ledger_ids, request, "deleted")
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
        count = at = 0
        while at < len(copies):
            page = copies[at : at + self._marked_ids_a_message]
            marked = {"ids": [one for one, _ in page], "changed": [mark for _, mark in page]}
            try:
                count += self._ask({**request, **marked}, "dropping").count
            except TooLong:
                self._marked_ids_a_message = self._half(len(page))
                continue
            at += len(page)
        return count

    # ---- logs

    def usage(self) -> list[LogUsage]:
        """Return all entry logs, by id, with what lives in them as of the last count."""
        found: list[LogUsage] = []
        cursor = 0
        while (reply := self._ask({"type": "usage", "cursor": cursor}, "usage")).logs:
            found += reply.logs
            cursor = reply.cursor
        return found

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

    def _pages(self, what: str) -> Iterator[list[int]]:
        cursor = 0
        while (reply := self._ask({"type": what, "cursor": cursor}, "ledgers")).ids:
            yield reply.ids
            cursor = reply.cursor

    def _in_pages(self, ledger_ids: list[int], request: Mapping[str, object], wanted: str) -> int:
        count = at = 0
        while at < len(ledger_ids):
            page = ledger_ids[at : at + self._ids_a_message]
            try:
                reply = self._ask({**request, "ids": page}, wanted)
            except TooLong:
                self._ids_a_message = self._half(len(page))
                continue
            count += reply.count
            at += len(page)
        return count

    @staticmethod
    def _half(length: int) -> int:
        if length == 1:
            raise IndexSilent("the socket to the index takes no message at all") from None
        return length // 2

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
        except (msgspec.DecodeError, RecursionError) as error:
            raise IndexSilent(f"the index answered what is no answer: {error}") from error

    def _wait(self, wanted: int, deadline_s: float) -> int:
        poll = select.poll()
        poll.register(self._socket, wanted)
        found = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3)
        if not found:
            raise IndexSilent("the index does not answer")
        return found[0][1]
