"""What clients may be told: I1 to I7, I9, I15 and I21."""

from __future__ import annotations

from typing import Any

from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerState
from fastbk.replication.procedure import BookieRequest, ReadEntry
from tests.simulation.checks_base import ChecksBase
from tests.simulation.kernel import Violation
from tests.simulation.running import Ledger, Running


class LedgerChecks(ChecksBase):
    """Called by what drives the machines of clients."""

    def sent(
        self, client: str, bookie_id: BookieId, ledger_id: LedgerId, request: BookieRequest
    ) -> None:
        if self.recorder is not None:
            self.recorder.sent(client, bookie_id, ledger_id, request)

    def add_sent(
        self, client: str, bookie_id: BookieId, ledger_id: LedgerId, entry_id: EntryId, lac: EntryId
    ) -> None:
        if self.recorder is not None:
            self.recorder.add_sent(client, bookie_id, ledger_id, entry_id, lac)

    def asked(
        self, client: str, ledger: Ledger, bookie_id: BookieId, request: BookieRequest
    ) -> None:
        """A procedure asks for something. A recoverer that reads entries has counted its fence answers (I9)."""
        if isinstance(request, ReadEntry) and request.fence and request.entry_id >= 0:
            facts = self.facts[ledger.ledger_id]
            if facts.covered is None:
                facts.covered = len(ledger.written)

    def recovery_moved(self, running: Running[Any]) -> None:
        """A recovery has done something; it may have changed its ensemble in memory."""
        if self.recorder is not None:
            self.recorder.recovery_moved(running.client.name, running.procedure)

    def acked(self, client: str, ledger_id: LedgerId, head: int) -> None:
        """A writer's application was told that everything below `head` is stored."""
        facts = self.facts[ledger_id]
        first = facts.acked
        if head < first:
            raise Violation("I6", f"the head of {client} fell from {first} to {head}")
        metadata = facts.metadata
        for entry_id in range(first, head):
            if facts.covered is not None and entry_id >= facts.covered:
                raise Violation(
                    "I9", f"entry {entry_id} was added after a recoverer had fenced enough bookies"
                )
            added = facts.added.get(entry_id, 0)
            honest = added & facts.write_mask(entry_id) & ~self.liars
            if added & self.liars and not self.is_ack_set(facts, honest):
                # From here on the protocol promises nothing: see facts.shaky.
                facts.shaky = entry_id if facts.shaky is None else facts.shaky
            held = facts.holders.get(entry_id, 0) & facts.write_mask(entry_id)
            if not self.is_ack_set(facts, held) and facts.shaky is None:
                raise Violation(
                    "I1",
                    f"entry {entry_id} acknowledged, {held.bit_count()} bookies of its write set have it",
                )
            if metadata.is_closed and metadata.last_entry_id < entry_id and facts.shaky is None:
                raise Violation(
                    "I2",
                    f"entry {entry_id} acknowledged, the ledger ends at {metadata.last_entry_id}",
                )
            if self.recorder is not None:
                self.recorder.acked(client, ledger_id, entry_id)
        facts.acked = head

    def forced(self, client: str, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """A force has succeeded (I21): a quorum of each entry's bookies has everything up to `entry_id`."""
        facts = self.facts[ledger_id]
        if entry_id >= facts.acked:
            raise Violation("I21", f"forced {entry_id}, only {facts.acked} are acknowledged")
        end = entry_id + 1 if facts.shaky is None else min(entry_id + 1, facts.shaky)
        for one in range(facts.forced, end):
            if not self.is_kept(facts, one):
                raise Violation(
                    "I21", f"force confirmed, entry {one} has {facts.copies_of(one)} copies"
                )
        facts.forced = max(facts.forced, entry_id + 1)

    def was_read(self, client: str, ledger_id: LedgerId, entry_id: EntryId, data: bytes) -> None:
        """A reader was given an entry."""
        facts = self.facts[ledger_id]
        written = facts.ledger.written
        if entry_id >= len(written) or written[entry_id] != data:
            raise Violation(
                "I4", f"{client} read something that nobody wrote as {ledger_id}/{entry_id}"
            )
        if facts.reads.setdefault(entry_id, data) != data:
            raise Violation("I3", f"{client} read {ledger_id}/{entry_id} differently than another")

    def in_order(
        self, client: str, ledger_id: LedgerId, expected: EntryId, entry_id: EntryId
    ) -> None:
        """A reader of a range was given an entry."""
        if entry_id != expected:
            raise Violation(
                "I5", f"{client} was given {ledger_id}/{entry_id} where {expected} comes next"
            )

    def lac_told(self, client: str, ledger_id: LedgerId, before: EntryId, lac: EntryId) -> None:
        """A reader's handle learned a LAC; `before`: what it knew."""
        facts = self.facts[ledger_id]
        if lac < before:
            raise Violation("I7", f"the LAC of {client} fell from {before} to {lac}")
        confirmed = facts.forced if facts.ledger.is_deferred else facts.acked
        is_open = facts.metadata.state is LedgerState.OPEN
        if facts.ledger.is_deferred and lac >= confirmed and is_open:
            raise Violation("I21", f"the LAC {lac} is beyond what was forced, {confirmed - 1}")
        if lac >= confirmed and is_open:
            raise Violation(
                "I7", f"the LAC {lac} of {client} is not acknowledged, {confirmed - 1} is"
            )
        facts.lac_told = max(facts.lac_told, lac)
        for entry_id in range(confirmed, lac + 1):
            if facts.holders.get(entry_id, 0).bit_count() < facts.ledger.ack_quorum:
                raise Violation("I7", f"the LAC {lac} covers entry {entry_id}, which no quorum has")

    def no_such_entry(self, client: str, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """A reader was told that an entry at or below its LAC, or the ledger's end, does not exist."""
        if self._is_excused(ledger_id, entry_id):
            return
        raise Violation("I5", f"{client} was told that {ledger_id}/{entry_id} does not exist")

    def _is_excused(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Return whether liars made a quorum of that entry, or of one before it; or the ledger was deleted."""
        if ledger_id in self.deleted:
            return True
        facts = self.facts[ledger_id]
        if facts.shaky is not None and entry_id >= facts.shaky:
            return True
        honest = facts.holders.get(entry_id, 0) & facts.write_mask(entry_id) & ~self.liars
        return not self.is_ack_set(facts, honest)

    def own_not_read(
        self, client: str, ledger_id: LedgerId, entry_id: EntryId, reason: str
    ) -> None:
        """Its writer's client could not read an acknowledged entry, though enough bookies are there (I15)."""
        if self._is_excused(ledger_id, entry_id):
            return
        raise Violation("I15", f"{client} could not read its {ledger_id}/{entry_id}: {reason}")

    def not_recoverable(self, ledger_id: LedgerId, reason: str) -> None:
        """After everything was healed a ledger could not be closed, or read, or written in time (I20)."""
        raise Violation("I20", f"ledger {ledger_id}: {reason}")

    def not_repaired(self, ledger_id: LedgerId, reason: str) -> None:
        """After everything was healed the copies of a lost bookie could not be brought back (I19)."""
        if not self.liars:  # one of them may be what copies were given to
            raise Violation("I19", f"ledger {ledger_id}: {reason}")

    def repaired(self, ledger_id: LedgerId, lost: BookieId) -> None:
        """A repair has succeeded: nothing names the lost bookie, and what it held has as many copies as before."""
        facts = self.facts[ledger_id]
        metadata = facts.metadata
        if any(lost in one.ensemble for one in metadata.fragments) and not self.liars:
            raise Violation("I19", f"ledger {ledger_id} still names {lost}")
        for entry_id in range(metadata.last_entry_id + 1):
            if not self.is_kept(facts, entry_id):
                raise Violation("I19", f"entry {entry_id} has too few copies after a repair")

    def not_readable(
        self, client: str, ledger_id: LedgerId, entry_id: EntryId, reason: str
    ) -> None:
        """After everything was healed an entry of a closed ledger could not be read (I1 if acknowledged, else I5)."""
        facts = self.facts[ledger_id]
        if self._is_excused(ledger_id, entry_id):
            return
        name = "I1" if entry_id < facts.promised else "I5"
        raise Violation(name, f"{client} cannot read {ledger_id}/{entry_id}: {reason}")
