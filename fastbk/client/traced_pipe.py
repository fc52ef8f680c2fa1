"""A writer's pipe that makes spans of sampled appends: of each one, and of each copy that a bookie is sent.

A class beside `AddPipe`, so that without tracing an append costs what it did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from fastbk.client.add_pipe import AddPipe, Waiter
from fastbk.client.config import ClientConfig
from fastbk.client.request_ids import entry_of
from fastbk.client.runner import LedgerIo
from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.observe.tracing import Attributes, Span, Tracer, tracer_of
from fastbk.replication.ensemble_change_result import Replacement
from fastbk.replication.writer_machine import WriterMachine
from fastbk.wire.statuses import Status, status_name

TRACED_MAX = 100
"""Appends of one writer that are traced at a time; more are not traced."""


def pipe_of(
    machine: WriterMachine, io: LedgerIo, config: ClientConfig, on_progress: Callable[[], None]
) -> AddPipe:
    """Return a writer's pipe, with spans or without."""
    tracer = tracer_of(config.tracing)
    if tracer is None:
        return AddPipe(machine, io, config, on_progress)
    return TracedPipe(machine, io, config, on_progress, tracer)


class TracedAdd:
    """An append that is traced, until all bookies of its write set have it."""

    __slots__ = ("copies", "is_over", "last", "span", "stored")

    def __init__(self, span: Span, last: EntryId) -> None:
        self.span = span
        self.last = last
        """Of several entries the last; its copies are the ones that have spans."""
        self.copies: dict[BookieId, Span] = {}
        """Sent and not answered."""
        self.stored: set[BookieId] = set()
        self.is_over = False
        """Acknowledged or failed."""


class TracedPipe(AddPipe):
    """`AddPipe` with spans."""

    def __init__(
        self,
        machine: WriterMachine,
        io: LedgerIo,
        config: ClientConfig,
        on_progress: Callable[[], None],
        tracer: Tracer,
    ) -> None:
        self._tracer = tracer
        self._traced: deque[TracedAdd] = deque()
        super().__init__(machine, io, config, on_progress)

    # --- admission ---------------------------------------------------------------------------------------------

    def admit_one(self, data: bytes, size: int) -> asyncio.Future[EntryId]:
        """As `AddPipe` does."""
        self._begin(1, size)
        return super().admit_one(data, size)

    def admit(self, datas: list[bytes], size: int, waiter: Waiter, result: object) -> None:
        """As `AddPipe` does."""
        self._begin(len(datas), size)
        super().admit(datas, size, waiter, result)

    def _begin(self, count: int, size: int) -> None:
        if not self._tracer.wants_span():
            return
        if len(self._traced) >= TRACED_MAX and not self._traced[0].is_over:
            return
        first = self.next_entry_id
        attributes: Attributes = {
            "fastbk.ledger.id": self.ledger_id,
            "fastbk.entry.id": first,
            "fastbk.entry.count": count,
            "fastbk.entry.bytes": size,
        }
        span = self._tracer.begin("append to ledger", "internal", attributes)
        if span is None:
            return
        if len(self._traced) >= TRACED_MAX:
            _end_copies(self._traced.popleft(), "not answered while 100 later appends were traced")
        self._traced.append(TracedAdd(span, first + count - 1))

    # --- what happens to it ------------------------------------------------------------------------------------

    def _pump(self, index: int) -> None:
        super()._pump(index)
        if not self._traced or self.peers[index].adds.connection is None:
            return
        adds, bookie_id = self.adds, self.peers[index].bookie_id
        for traced in self._traced:
            last = traced.last
            is_new = bookie_id not in traced.copies and bookie_id not in traced.stored
            if is_new and adds.owns_any(index, last, last + 1) and adds.was_sent(index, last):
                attributes = {"fastbk.bookie.id": bookie_id}
                traced.copies[bookie_id] = traced.span.child("add to bookie", "client", attributes)

    def add_answered(
        self, bookie_id: BookieId, first_sequence: int, count: int, status: int
    ) -> None:
        """As `AddPipe` does."""
        if self._traced:
            first = entry_of(first_sequence, self.adds.head)
            for traced in self._traced:
                if not first <= traced.last < first + count or bookie_id not in traced.copies:
                    continue
                if status == Status.OK:
                    traced.copies.pop(bookie_id).end()
                    traced.stored.add(bookie_id)
                else:
                    traced.copies[bookie_id].event(
                        "refused", {"fastbk.status": status_name(status)}
                    )
        super().add_answered(bookie_id, first_sequence, count, status)
        self._forget_complete()

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """As `AddPipe` does."""
        for traced in self._traced:
            if bookie_id in traced.copies:
                traced.copies[bookie_id].event("connection lost", {"fastbk.reason": reason})
        super().channel_lost(bookie_id, reason)

    def _follow_machine(self) -> None:
        if self._traced and self._version != self.machine.ensemble_version:
            for one in self.machine.replacements:
                self._replaced(one)
            self._forget_complete()
        super()._follow_machine()

    def _replaced(self, one: Replacement) -> None:
        attributes = {
            "fastbk.bookie.id": one.bookie_id,
            "fastbk.replacement.id": one.replacement,
            "fastbk.reason": one.reason,
        }
        for traced in self._traced:
            if not traced.is_over:
                traced.span.event("ensemble changed", attributes)
            copy = traced.copies.pop(one.bookie_id, None)
            if copy is not None:
                copy.fail(f"replaced: {one.reason}")

    def _release(self) -> None:
        for traced in self._traced:
            if traced.last >= self.adds.head:
                break
            if not traced.is_over:
                traced.is_over = True
                traced.span.end()
        super()._release()

    def _forget_complete(self) -> None:
        # A bookie that is not connected yet is sent its copy later.
        while self._traced and self._traced[0].is_over:
            if len(self._traced[0].stored) < self.adds.write_quorum:
                break
            self._traced.popleft()

    # --- the end -----------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        self._end_traced(self.machine.failure)
        super()._fail()

    def stop(self) -> None:
        """As `AddPipe` does."""
        self._end_traced(None)
        super().stop()

    def _end_traced(self, failure: Error | None) -> None:
        while self._traced:
            traced = self._traced.popleft()
            _end_copies(traced, "not answered before the writer ended")
            if not traced.is_over:
                traced.span.fail(
                    f"{type(failure).__name__}: {failure}" if failure else "the writer ended"
                )


def _end_copies(traced: TracedAdd, reason: str) -> None:
    for copy in traced.copies.values():
        copy.fail(reason)
