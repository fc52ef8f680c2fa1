"""What may become of metadata: I2 no truncation, I8 closed is final, I10 single close, I16 by compare-and-set, I18."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.ack_domains import ACK_DOMAINS_KEY, recorded
from tests.simulation.checks_base import ChecksBase
from tests.simulation.facts import Facts
from tests.simulation.kernel import Violation

_NEXT_STATES = {
    LedgerState.OPEN: set(LedgerState),
    LedgerState.IN_RECOVERY: {LedgerState.IN_RECOVERY, LedgerState.CLOSED},
    LedgerState.CLOSED: {LedgerState.CLOSED},
}


class MetadataChecks(ChecksBase):
    """Called by the store at each change, and by clients that believe that they closed a ledger."""

    def metadata_changed(
        self,
        ledger_id: LedgerId,
        before: VersionedLedger,
        now: VersionedLedger,
        client: str,
        base_version: int,
    ) -> None:
        """The store has applied an update that `client` based on `base_version`."""
        facts = self.facts[ledger_id]
        if base_version != before.version or now.version != before.version + 1:
            raise Violation("I16", f"{client} wrote over version {before.version} unseen")
        old, new = before.metadata, now.metadata
        self._check_legal(client, old, new)
        self._check_domains(ledger_id, client, old, new)
        if client.startswith("repair"):
            self._check_repair(facts, old, new)
        else:
            self._check_finished(client, facts, old, new)
        facts.take(new)
        # One that is named again later is a member like any other.
        facts.away &= frozenset(new.fragments[0].ensemble)
        self._check_acked_are_held(facts, old, new)
        if new.is_closed and not old.is_closed:
            self._check_close(facts, client, new)
        if self.recorder is not None:
            self.recorder.metadata_changed(client, ledger_id, old, now)

    def _check_legal(self, client: str, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if new.state not in _NEXT_STATES[old.state]:
            name = "I8" if old.is_closed else "I16"
            raise Violation(name, f"{client}: {old.state.name} became {new.state.name}")
        if old.is_closed and (old.last_entry_id, old.length) != (new.last_entry_id, new.length):
            raise Violation("I8", f"{client} moved the end of a closed ledger")
        quorums = ("ensemble_size", "write_quorum", "ack_quorum", "digest_type", "password")
        if any(getattr(old, one) != getattr(new, one) for one in quorums):
            raise Violation("I16", f"{client} changed what never changes")
        kept = {key: value for key, value in old.custom.items() if key != ACK_DOMAINS_KEY}
        if not kept.items() <= new.custom.items():
            raise Violation("I16", f"{client} lost the update of another")
        for fragment in new.fragments:
            if len(set(fragment.ensemble)) != len(fragment.ensemble):
                raise Violation("I16", f"{client} named a bookie twice: {fragment.ensemble}")
        self._check_boundaries(client, old, new)

    def _check_domains(
        self, ledger_id: LedgerId, client: str, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        """The record of racks is of the last ensemble (I24)."""
        if not self.racks.ack_racks:
            return
        record = recorded(new.custom)
        if record is None:
            self.forgotten.add(ledger_id)
        ensemble = new.fragments[-1].ensemble
        is_same = old.fragments[-1].ensemble == ensemble
        if new.is_closed or is_same or recorded(old.custom) is None:
            return
        if (
            record is None
            or record.racks != self.racks.ack_racks
            or record.of.keys() != {*ensemble}
        ):
            raise Violation("I24", f"{client} recorded {record} for {ensemble}")
        wrong = [one for one, rack in record.of.items() if not self.racks.was_in(one, rack)]
        if wrong:
            raise Violation("I24", f"{client} recorded {record}: {wrong} were never there")

    def _check_boundaries(self, client: str, old: LedgerMetadata, new: LedgerMetadata) -> None:
        firsts = [one.first_entry_id for one in old.fragments]
        new_firsts = [one.first_entry_id for one in new.fragments]
        is_split = old.state is LedgerState.OPEN and not set(firsts) - set(new_firsts)
        if new_firsts[: len(firsts)] != firsts and not is_split:
            raise Violation("I8", f"{client} moved fragments: {firsts} became {new_firsts}")
        if old.is_closed and len(firsts) != len(new_firsts):
            raise Violation("I8", f"{client} gave a closed ledger a fragment")
        is_recovering = old.state is LedgerState.IN_RECOVERY and not new.is_closed
        if is_recovering and len(firsts) != len(new_firsts):
            raise Violation("I16", f"{client} added a fragment to a ledger in recovery")

    def _check_finished(
        self, client: str, facts: Facts, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        """In a finished fragment only the writer names another bookie, which has all that it is named for (I19)."""
        end = old.fragments[-1].first_entry_id
        bounds = {one.first_entry_id for one in (*old.fragments, *new.fragments)}
        for first, stop in itertools.pairwise(sorted(one for one in bounds if one <= end)):
            before, now = old.fragment_of(first).ensemble, new.fragment_of(first).ensemble
            for index, (left, come) in enumerate(zip(before, now, strict=True)):
                if left == come:
                    continue
                if old.state is not LedgerState.OPEN:
                    raise Violation("I8", f"{client} changed a fragment that is finished")
                self._check_has_share(facts, new, index, range(first, stop), (left, come))

    def _check_has_share(
        self,
        facts: Facts,
        metadata: LedgerMetadata,
        index: int,
        entries: range,
        change: tuple[BookieId, BookieId],
    ) -> None:
        left, come = change
        for entry_id in entries:
            is_its = (index - entry_id) % metadata.ensemble_size < metadata.write_quorum
            if is_its and not facts.holders.get(entry_id, 0) >> self.indexes[come] & 1:
                raise Violation("I19", f"{come} is named for {left} and lacks entry {entry_id}")

    def _check_acked_are_held(self, facts: Facts, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Every acknowledged entry is on Qa bookies of its fragment, by the new metadata too (P11)."""
        if old.fragments == new.fragments:
            return
        for entry_id in range(facts.promised):
            if not self.is_kept(facts, entry_id):
                raise Violation(
                    "I18",
                    f"entry {entry_id} is acknowledged, and metadata names only {facts.copies_of(entry_id)}"
                    " bookies that have it",
                )

    def _check_repair(self, facts: Facts, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """A bookie that a repair names has everything that it is to have from then on (I19)."""
        for number, (before, now) in enumerate(zip(old.fragments, new.fragments, strict=True)):
            if before.ensemble == now.ensemble:
                continue
            end = new.last_entry_id + 1
            if number + 1 < len(new.fragments):
                end = new.fragments[number + 1].first_entry_id
            for index, (left, come) in enumerate(zip(before.ensemble, now.ensemble, strict=True)):
                if left == come:
                    continue
                entries = range(now.first_entry_id, end)
                self._check_has_share(facts, new, index, entries, (left, come))

    def _check_close(self, facts: Facts, client: str, new: LedgerMetadata) -> None:
        last = new.last_entry_id
        if last < facts.promised - 1:
            raise Violation(
                "I2", f"{client} closed at {last}, entry {facts.promised - 1} was acknowledged"
            )
        if last < facts.lac_told and facts.shaky is None:
            raise Violation(
                "I5", f"{client} closed at {last}, a reader was told the LAC {facts.lac_told}"
            )
        written = facts.ledger.written
        if last >= len(written):
            raise Violation(
                "I4", f"{client} closed at {last}, only {len(written)} entries were added"
            )
        length = sum(len(data) for data in written[: last + 1])
        if new.length != length:
            raise Violation("I10", f"{client} closed with length {new.length}, it is {length}")
        for entry_id in range(last + 1):
            if not self.is_kept(facts, entry_id):
                raise Violation(
                    "I18",
                    f"{client} closed at {last}, entry {entry_id} has {facts.copies_of(entry_id)} copies",
                )

    def metadata_read(self, client: str, versioned: VersionedLedger) -> None:
        if self.recorder is not None:
            self.recorder.metadata_read(client, versioned)

    def believes_closed(self, client: str, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """A close or a recovery told its client where the ledger ends."""
        truth = self.facts[ledger_id].metadata
        if not metadata.is_closed or not truth.is_closed:
            raise Violation("I10", f"{client} was told that an open ledger is closed")
        if (metadata.last_entry_id, metadata.length) != (truth.last_entry_id, truth.length):
            raise Violation(
                "I10",
                f"{client} believes that the ledger ends at {metadata.last_entry_id},"
                f" it ends at {truth.last_entry_id}",
            )

    def closed_by_writer(self, ledger_id: LedgerId, marked: Iterable[MissingReplica]) -> None:
        """A writer has closed its ledger: whoever lacks an entry of it is marked (I22)."""
        self._check_marked(self.facts[ledger_id], "I22", None, marked)

    def closed_without(self, ledger_id: LedgerId, marked: Iterable[MissingReplica]) -> None:
        """Anybody has closed a ledger: what members owe that were away when it was created is marked (I23)."""
        facts = self.facts[ledger_id]
        if not facts.away:
            return
        fragments = facts.metadata.fragments
        end = fragments[1].first_entry_id if len(fragments) > 1 else None
        self._check_marked(facts, "I23", facts.away, marked, end)

    def _check_marked(
        self,
        facts: Facts,
        name: str,
        only: frozenset[BookieId] | None,
        marked: Iterable[MissingReplica],
        end: EntryId | None = None,
    ) -> None:
        metadata = facts.metadata
        replicas = list(marked)
        for entry_id in range(metadata.last_entry_id + 1 if end is None else end):
            lacking = facts.write_mask(entry_id) & ~facts.holders.get(entry_id, 0)
            for bookie_id in metadata.fragment_of(entry_id).ensemble:
                if only is not None and bookie_id not in only:
                    continue
                if not lacking >> self.indexes[bookie_id] & 1:
                    continue
                if not any(
                    one.bookie_id == bookie_id and one.first_entry_id <= entry_id < one.end
                    for one in replicas
                ):
                    raise Violation(
                        name, f"{bookie_id} lacks entry {entry_id}, and no mark says so"
                    )
