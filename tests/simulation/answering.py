"""A bookie's reading half: entries, LACs, long polls, and every way in which an answer may be of no use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastbk.model.entry import DigestType
from fastbk.model.ids import EntryId, LedgerId
from fastbk.native.store import FENCED
from fastbk.replication.procedure import (
    BookieRequest,
    Found,
    ReadEntries,
    ReadEntry,
    ReadLac,
    Reply,
    WriteLac,
)
from fastbk.wire.statuses import Status
from tests.fixtures.decide import entries_same
from tests.fixtures.entries import make_entry
from tests.simulation.kernel import STALE
from tests.simulation.network import Connection

if TYPE_CHECKING:
    from tests.simulation.bookie import Bookie


class Stored(NamedTuple):
    """An entry on a disk, without its digest: the simulator knows which copies are damaged."""

    lac: EntryId
    length: int
    data: bytes

    def is_same(self, other: Stored, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Return whether the product takes the two for copies of one entry (INV-A5)."""
        kind = DigestType.DUMMY
        first = make_entry(ledger_id, entry_id, self.lac, self.length, self.data, kind)
        second = make_entry(ledger_id, entry_id, other.lac, other.length, other.data, kind)
        return entries_same(first, second, kind)


class Waiter:
    """A long poll."""

    __slots__ = ("connection", "piggyback", "previous", "request_id")

    def __init__(self, connection: Connection, request_id: int, request: ReadLac) -> None:
        self.connection = connection
        self.request_id = request_id
        self.previous = request.previous
        self.piggyback = request.piggyback


class Answers:
    """What a bookie says about what it holds.

    Attributes:
        damaged: copies whose bytes are not what was written: (ledger, entry) -> whether the bookie itself notices.
        denies, alters, lies_on_lac: what a liar does, as probabilities.
        delay_s: of every read; a slow disk.
        fails: probability that a read ends in IO_ERROR.
    """

    def __init__(self, bookie: Bookie) -> None:
        self.bookie = bookie
        self.damaged: dict[tuple[LedgerId, EntryId], bool] = {}
        self.delay_s = 0.0
        self.fails = 0.0
        self.denies = 0.0
        self.alters = 0.0
        self.lies_on_lac = 0.0
        self._explicit: dict[LedgerId, EntryId] = {}
        self._waiters: dict[LedgerId, list[Waiter]] = {}

    def forget_all(self) -> None:
        """What lives in memory only is gone."""
        self._explicit.clear()
        self._waiters.clear()

    def forget_damage(self) -> None:
        """The disks are new."""
        self.damaged.clear()

    def answer(
        self,
        connection: Connection,
        request_id: int,
        ledger_id: LedgerId,
        key: bytes,
        request: BookieRequest,
    ) -> None:
        """Answer a request, now or when its disk has done its work."""
        if (
            isinstance(request, ReadLac)
            and request.wait_s > 0
            and self._must_wait(ledger_id, request)
        ):
            waiter = Waiter(connection, request_id, request)
            self._waiters.setdefault(ledger_id, []).append(waiter)
            self.bookie.kernel.after(
                request.wait_s, self.bookie, self.poll_timed_out, ledger_id, waiter
            )
        elif self.delay_s:
            self.bookie.kernel.after(
                self.delay_s,
                self.bookie,
                self.disk_answered,
                connection,
                request_id,
                ledger_id,
                request,
            )
        else:
            self.disk_answered(connection, request_id, ledger_id, request)

    def disk_answered(
        self, connection: Connection, request_id: int, ledger_id: LedgerId, request: BookieRequest
    ) -> None:
        """Look and say what is there."""
        bookie = self.bookie
        if isinstance(request, ReadEntry):
            reply = self._read(ledger_id, request)
        elif isinstance(request, ReadEntries):
            reply = self._read_all(ledger_id, request)
        elif isinstance(request, ReadLac):
            reply = self._lac(ledger_id, request.previous, request.piggyback)
        elif isinstance(request, WriteLac):
            reply = self._take_lac(ledger_id, request.lac)
        else:
            reply = Reply(Status.UNSUPPORTED)
        bookie.checks.answered(bookie, connection.client.name, ledger_id, request, reply)
        bookie.answer(connection, request_id, reply)

    # --- entries -----------------------------------------------------------------------------------------------

    def _missing(self, ledger_id: LedgerId) -> Reply:
        status = self.bookie.table.missing(ledger_id)
        return Reply(status, fenced=self._is_fenced(ledger_id))

    def _is_fenced(self, ledger_id: LedgerId) -> bool:
        state = self.bookie.table.get(ledger_id)
        return state is not None and bool(state.flags & FENCED)

    def _find(self, ledger_id: LedgerId, entry_id: EntryId) -> Found | Reply:
        bookie = self.bookie
        random = bookie.rng.random
        stored = bookie.entries.get(ledger_id, {}).get(entry_id)
        if bookie.is_liar:
            if self.denies and random() < self.denies:
                return Reply(Status.NO_ENTRY)
            if self.alters and stored is not None and random() < self.alters:
                return Reply(Status.OK, damaged=True)
        if self.fails and random() < self.fails:
            return Reply(Status.IO_ERROR)
        if stored is None:
            return self._missing(ledger_id)
        noticed = self.damaged.get((ledger_id, entry_id))
        if noticed is not None:
            return Reply(Status.CANNOT_TELL) if noticed else Reply(Status.OK, damaged=True)
        return Found(entry_id, stored.lac, stored.length, stored.data)

    def _read(self, ledger_id: LedgerId, request: ReadEntry) -> Reply:
        entry_id = request.entry_id
        if entry_id == -1:
            entry_id = max(self.bookie.entries.get(ledger_id, ()), default=-1)
            if entry_id == -1:
                return self._missing(ledger_id)
        found = self._find(ledger_id, entry_id)
        if isinstance(found, Reply):
            return found
        return Reply(Status.OK, (found,), lacs=(found.lac,), fenced=self._is_fenced(ledger_id))

    def _read_all(self, ledger_id: LedgerId, request: ReadEntries) -> Reply:
        entries = self.bookie.entries.get(ledger_id)
        state = self.bookie.table.get(ledger_id)
        if entries is None or state is None:
            return self._missing(ledger_id)
        found: list[Found] = []
        size_bytes = 0
        next_entry_id = request.first
        for entry_id in range(request.first, min(request.last, request.first + 64) + 1):
            one = self._find(ledger_id, entry_id)
            if isinstance(one, Reply):
                if one.status in (Status.NO_ENTRY, Status.NO_LEDGER):
                    next_entry_id = entry_id + 1
                    continue
                if one.damaged:
                    return Reply(Status.OK, tuple(found), damaged=True, next_entry_id=next_entry_id)
                if not found and next_entry_id == request.first:
                    return one
                break
            if found and (
                len(found) >= request.entries_max
                or size_bytes + len(one.data) > request.size_bytes_max
            ):
                break
            found.append(one)
            size_bytes += len(one.data)
            next_entry_id = entry_id + 1
        return Reply(Status.OK, tuple(found), next_entry_id=next_entry_id)

    # --- the LAC -----------------------------------------------------------------------------------------------

    def lac_known(self, ledger_id: LedgerId) -> EntryId:
        """Return the highest LAC that this bookie was given."""
        state = self.bookie.table.get(ledger_id)
        known = -1 if state is None else state.lac
        return max(known, self._explicit.get(ledger_id, -1))

    def _must_wait(self, ledger_id: LedgerId, request: ReadLac) -> bool:
        return not self._is_fenced(ledger_id) and self.lac_known(ledger_id) <= request.previous

    def _lac(self, ledger_id: LedgerId, previous: EntryId, piggyback: bool) -> Reply:
        entries = self.bookie.entries.get(ledger_id, {})
        fenced = self._is_fenced(ledger_id)
        if self.bookie.is_liar and self.lies_on_lac and self.bookie.rng.random() < self.lies_on_lac:
            # Whatever number it gives, no good digest covers it.
            return Reply(Status.OK, damaged=True, fenced=fenced)
        explicit = self._explicit.get(ledger_id)
        if not entries and explicit is None:
            return self._missing(ledger_id)
        lacs = () if explicit is None else (explicit,)
        entry_id = previous + 1 if piggyback else max(entries, default=-1)
        if entry_id not in entries or (piggyback and self.lac_known(ledger_id) <= previous):
            return Reply(Status.OK, lacs=lacs, fenced=fenced)
        found = self._find(ledger_id, entry_id)
        if isinstance(found, Reply):
            return Reply(Status.OK, damaged=True, lacs=lacs, fenced=fenced)
        return Reply(Status.OK, (found,), lacs=(*lacs, found.lac), fenced=fenced)

    def _take_lac(self, ledger_id: LedgerId, lac: EntryId) -> Reply:
        if self.bookie.table.get(ledger_id) is None:
            return Reply(Status.NO_LEDGER)
        if lac > self._explicit.get(ledger_id, -1):
            self._explicit[ledger_id] = lac
            self.wake(ledger_id)
        return Reply(Status.OK)

    def wake(self, ledger_id: LedgerId) -> None:
        """The LAC grew or a fence came: answer those who waited for it."""
        waiters = self._waiters.get(ledger_id)
        if not waiters:
            return
        lac, fenced = self.lac_known(ledger_id), self._is_fenced(ledger_id)
        for waiter in list(waiters):
            if fenced or lac > waiter.previous:
                self._end_poll(ledger_id, waiter)

    def poll_timed_out(self, ledger_id: LedgerId, waiter: Waiter) -> object:
        if waiter not in self._waiters.get(ledger_id, ()):
            return STALE
        self._end_poll(ledger_id, waiter)
        return None

    def _end_poll(self, ledger_id: LedgerId, waiter: Waiter) -> None:
        self._waiters[ledger_id].remove(waiter)
        if waiter.connection.bookie_open:
            self.bookie.answer(
                waiter.connection,
                waiter.request_id,
                self._lac(ledger_id, waiter.previous, waiter.piggyback),
            )
