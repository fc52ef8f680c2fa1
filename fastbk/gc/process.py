"""The gc process: at intervals, or when told to, a cycle of `fastbk.gc.live_set`. It writes no file and deletes none:
the index does, on its word.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error, MetadataUnavailable
from fastbk.gc.limbo import LimboWatch
from fastbk.gc.live_set import Collector, Cycle, Rules
from fastbk.meta.uri import open_store
from fastbk.model.ids import BookieId
from fastbk.native.kill_points import kill_point
from fastbk.native.segment import Segment
from fastbk.native.stats import SLOTS, Stats
from fastbk.observe import logs
from fastbk.server.child import Child, run
from fastbk.server.config import GcConfig
from fastbk.server.gc_messages import (
    IDS_A_MESSAGE,
    MESSAGE_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    Answer,
    TooLong,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastbk.meta.api import MetadataStore

REOPEN_DELAY_S = 5.0
INDEX_TIMEOUT_S = 60.0
"""Longest wait for the index's answer: it answers between two steps of its loop."""


class IndexSilent(Error):
    """The index did not answer, or not what it was asked: the cycle stops, the next one asks again."""

    default_retryable = True


class IndexClient:
    """The local ledgers, as the index knows them; one request at a time, in pages."""

    def __init__(self, fd: int) -> None:
        """Take the descriptor of the socket over."""
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._number = 0
        self._ids_a_message = IDS_A_MESSAGE

    def ids(self) -> set[int]:
        """Return the ids of local ledgers that are not deleted. Raises IndexSilent."""
        return self._list("list_ledgers")

    def limbo_ids(self) -> set[int]:
        """Return the ids of ledgers in limbo that are not deleted. Raises IndexSilent."""
        return self._list("list_limbo")

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        """Have ledgers taken out of limbo; return how many were in it. Raises IndexSilent: then some may be out."""
        request = {"type": "limbo_over", "fenced": fenced}
        return self._in_pages(ledger_ids, request, "limbo_over")

    def _list(self, what: str) -> set[int]:
        found: set[int] = set()
        cursor = 0
        while True:
            reply = self._ask({"type": what, "cursor": cursor}, "ledgers")
            if not reply.ids:
                return found
            found.update(reply.ids)
            cursor = reply.cursor

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        """Have ledgers deleted; return how many were there. Raises IndexSilent: then some may be."""
        request = {"type": "delete_ledgers", "reason": reason[:REASON_CHARACTERS_MAX]}
        kill_point("gc.before_delete")
        count = self._in_pages(ledger_ids, request, "deleted")
        kill_point("gc.after_delete")
        return count

    def _in_pages(self, ledger_ids: list[int], request: Mapping[str, object], wanted: str) -> int:
        count = at = 0
        while at < len(ledger_ids):
            page = ledger_ids[at : at + self._ids_a_message]
            try:
                reply = self._ask({**request, "ids": page}, wanted)
            except TooLong:
                if len(page) == 1:
                    raise IndexSilent("the socket to the index takes no message at all") from None
                self._ids_a_message = len(page) // 2
                continue
            count += reply.count
            at += len(page)
        return count

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
        except msgspec.DecodeError as error:
            raise IndexSilent(f"the index answered what is no answer: {error}") from error

    def _wait(self, wanted: int, deadline_s: float) -> int:
        poll = select.poll()
        poll.register(self._socket, wanted)
        found = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3)
        if not found:
            raise IndexSilent("the index does not answer")
        return found[0][1]


def note(stats: Stats, cycle: Cycle) -> None:
    """Count what a cycle did, and log what people should know."""
    stats.count(SLOTS["FBK_C_GC_CYCLES"])
    stats.gauge(SLOTS["FBK_C_GC_LEDGERS"], cycle.local)
    stats.gauge(SLOTS["FBK_C_GC_CANDIDATES"], cycle.candidates)
    stats.count(SLOTS["FBK_C_GC_DELETED"], cycle.deleted)
    stats.count(SLOTS["FBK_C_GC_KEPT"], cycle.kept)
    if cycle.refused:
        stats.count(SLOTS["FBK_C_GC_REFUSED"])
    if cycle.stopped:
        stats.count(SLOTS["FBK_C_GC_CYCLES_STOPPED"])
        logs.warning("gc.stopped", reason=cycle.stopped)
    if cycle.deleted:
        logs.info("gc.deleted", ledgers=cycle.deleted, local=cycle.local, kept=cycle.kept)


def look_at_limbo(watch: LimboWatch, stats: Stats) -> None:
    """One look at the ledgers in limbo; its doubts leave them there."""
    look = watch.look()
    stats.count(SLOTS["FBK_C_GC_LIMBO_OVER"], look.over)
    if look.over or look.stopped:
        logs.info("gc.limbo", over=look.over, left=look.left, stopped=look.stopped)


def serve(
    child: Child, collector: Collector, watch: LimboWatch, stats: Stats, interval_s: float
) -> None:
    """Run cycles until the supervisor asks to drain. Raises SupervisorGone."""
    next_at_s = time.monotonic() + interval_s
    while True:
        message = child.receive(max(0.0, next_at_s - time.monotonic()))
        kind = message.get("type") if message is not None else "interval"
        if kind == "drain":
            return
        if kind in ("interval", "gc"):
            force = bool(message and message.get("force"))
            cycle = collector.run(force=force)
            note(stats, cycle)
            if not cycle.stopped or cycle.refused:
                look_at_limbo(watch, stats)
            if message is not None:
                child.send({"type": "collected", **msgspec.to_builtins(cycle)})
            next_at_s = time.monotonic() + interval_s


def open_metadata(child: Child, uri: str) -> MetadataStore | None:
    """Open the store, however long that takes; None when asked to drain meanwhile. Raises SupervisorGone."""
    while True:
        try:
            return open_store(uri)
        except MetadataUnavailable as error:
            logs.warning("gc.metadata_unavailable", reason=str(error))
        message = child.receive(REOPEN_DELAY_S)
        if message is not None and message.get("type") == "drain":
            return None


def main(child: Child) -> None:
    """Gc's life after `configure`."""
    config = msgspec.convert(child.config, GcConfig)
    settings = config.settings
    stats = Stats(Segment(child.fds["segment"], "gc", is_writable=True))
    child.send({"type": "ready"})
    store = open_metadata(child, config.metadata_uri)
    if store is not None:
        rules = Rules(settings.delete_ratio_max, settings.unchecked_ledgers_max)
        index = IndexClient(child.fds["index"])
        collector = Collector(index, store, rules)
        watch = LimboWatch(index, store, BookieId(config.bookie_id))
        serve(child, collector, watch, stats, settings.interval_ms / 1e3)
    child.send({"type": "drained"})


if __name__ == "__main__":
    run("gc", main)
