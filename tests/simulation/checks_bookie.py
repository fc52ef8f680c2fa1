"""What a bookie may do: I11 honesty, I12 fences last, I13 the first key wins, I14 write once, I9 at one bookie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.model.ids import EntryId, LedgerId
from fastbk.replication.procedure import BookieRequest, ReadEntries, ReadEntry, ReadLac, Reply
from fastbk.wire.statuses import Status
from tests.fixtures.decide import RECOVERY, Kind
from tests.simulation.checks_base import ChecksBase
from tests.simulation.kernel import Violation

if TYPE_CHECKING:
    from tests.simulation.bookie import Bookie
    from tests.simulation.jobs import Record

_NO = (Status.NO_ENTRY, Status.NO_LEDGER)


class BookieChecks(ChecksBase):
    """Called by the bookies at each step that promises something."""

    def decided(self, bookie: Bookie, record: Record) -> None:
        """A record was taken: an add or a fence that the bookie is going to confirm."""
        ledger_id, kind, flags, key, entry_id, _ = record
        facts = self.facts.get(ledger_id)
        if facts is None:
            return
        first = facts.keys.setdefault(bookie.index, key)
        if first != key and not bookie.is_liar:
            raise Violation("I13", f"{bookie.name} took another key for ledger {ledger_id}")
        if kind is Kind.ADD and facts.collected >> bookie.index & 1:
            raise Violation(
                "I12", f"{bookie.name} takes an add of ledger {ledger_id}, which it freed"
            )
        if (
            kind is Kind.ADD
            and not flags & RECOVERY
            and facts.fenced >> bookie.index & 1
            and not bookie.is_liar
        ):
            raise Violation(
                "I12",
                f"{bookie.name} takes add {entry_id} of ledger {ledger_id}, whose fence it has answered",
            )

    def collected(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        """A bookie has freed a deleted ledger: it never takes anything for it again."""
        self.facts[ledger_id].collected |= 1 << bookie.index

    def add_durable(self, bookie: Bookie, client: str, record: Record) -> None:
        """An add is durable and will be acknowledged, if its connection is still there."""
        ledger_id, _, flags, _, entry_id, stored = record
        facts = self.facts.get(ledger_id)
        if facts is None or stored is None:
            return
        if self.recorder is not None:
            self.recorder.add_ack(client, bookie.name, ledger_id, entry_id, bool(flags & RECOVERY))
        mine = (stored.length, stored.data)
        if not bookie.is_liar:
            there = facts.copies.setdefault((bookie.index, entry_id), mine)
            if there != mine:
                raise Violation(
                    "I14", f"{bookie.name} acknowledged two payloads for {ledger_id}/{entry_id}"
                )
        facts.holders[entry_id] = facts.holders.get(entry_id, 0) | 1 << bookie.index
        if not flags & RECOVERY:
            facts.added[entry_id] = facts.added.get(entry_id, 0) | 1 << bookie.index

    def refused(self, bookie: Bookie, client: str, record: Record, status: int) -> None:
        """A record was not taken, for the reason in `status`."""
        if self.recorder is not None and record[1] is Kind.ADD and status == Status.FENCED:
            self.recorder.add_refused(client, bookie.name, record[0], record[4])

    def fence_durable(self, bookie: Bookie, client: str, ledger_id: LedgerId) -> None:
        if self.recorder is not None:
            self.recorder.fenced(client, bookie.name, ledger_id)

    def fence_answered(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        """The answer to a fencing read leaves: from now on the fence holds for ever."""
        facts = self.facts.get(ledger_id)
        if facts is not None:
            facts.fenced |= 1 << bookie.index

    def answered(
        self, bookie: Bookie, client: str, ledger_id: LedgerId, request: BookieRequest, reply: Reply
    ) -> None:
        """A bookie says something about what it holds."""
        if self.recorder is not None:
            lac = bookie.answers.lac_known(ledger_id)
            self.recorder.answered(client, bookie.name, ledger_id, request, reply, lac)
        facts = self.facts.get(ledger_id)
        if facts is None or bookie.is_liar or ledger_id in self.deleted:
            return
        if isinstance(request, ReadEntry):
            if reply.status in _NO:
                self._check_no(bookie, ledger_id, request.entry_id)
        elif isinstance(request, ReadEntries):
            if reply.status in _NO:
                for entry_id in range(request.first, request.last + 1):
                    self._check_no(bookie, ledger_id, entry_id)
            elif reply.status == Status.OK:
                found = {one.entry_id for one in reply.found}
                for entry_id in range(request.first, min(reply.next_entry_id, request.last + 1)):
                    if entry_id not in found:
                        self._check_no(bookie, ledger_id, entry_id)
        elif isinstance(request, ReadLac) and reply.status in _NO:
            self._check_no(bookie, ledger_id, -1)

    def _check_no(self, bookie: Bookie, ledger_id: LedgerId, entry_id: EntryId) -> None:
        facts = self.facts[ledger_id]
        if bookie.incarnation == 1:
            held = [one for one, mask in facts.holders.items() if mask >> bookie.index & 1]
        else:
            # What metadata no longer says it holds was brought back elsewhere before it came back itself.
            held = [
                one
                for one, mask in facts.holders.items()
                if mask & facts.write_mask(one) & 1 << bookie.index
            ]
        if entry_id in held or (entry_id < 0 and held):
            raise Violation(
                "I11",
                f'{bookie.name} says "no" of {ledger_id}/{entry_id}, which it had acknowledged',
            )

    def crashed(self, name: str) -> None:
        if self.recorder is not None:
            self.recorder.crashed(name)

    def in_limbo(self, bookie: Bookie, ledger_id: LedgerId) -> None:
        """A wiped bookie comes back, and knows that it may have lost something of this ledger."""
        if self.recorder is not None:
            self.recorder.in_limbo(bookie.name, ledger_id)

    def reborn(self, bookie: Bookie, limbo: set[LedgerId]) -> None:
        """A wiped bookie comes back; `limbo`: the ledgers of which it knows that it may have lost something."""
        for ledger_id, facts in self.facts.items():
            if ledger_id in self.deleted:
                facts.collected &= ~(1 << bookie.index)
            elif ledger_id not in limbo:
                facts.forgotten_by(bookie.index)

    def wiped(self, bookie: Bookie) -> None:
        """A bookie has lost its data: what it confirms from now on is another bookie's promise."""
        for facts in self.facts.values():
            facts.keys.pop(bookie.index, None)
            for key in [one for one in facts.copies if one[0] == bookie.index]:
                del facts.copies[key]
