"""What all parts of the checks share: the facts about each ledger, and who listens to the events of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from tests.simulation.domains import Racks
from tests.simulation.facts import Facts
from tests.simulation.running import Ledger

if TYPE_CHECKING:
    from tests.simulation.model_trace import Recorder


class ChecksBase:
    """State of the checks.

    Attributes:
        facts: by ledger.
        indexes: bookie id -> index of its bit.
        liars: bit set of bookies whose acknowledgements are worth nothing.
        deleted: ledgers that metadata no longer lists.
        racks: where bookies are.
        has_losses: some bookie has lost its data.
        forgotten: ledgers whose record of racks somebody has removed: recoveries count bookies only.
        recorder: gets the events of the specification, if anybody wants them.
    """

    def __init__(self) -> None:
        self.facts: dict[LedgerId, Facts] = {}
        self.ledgers: dict[LedgerId, Ledger] = {}
        self.indexes: dict[str, int] = {}
        self.liars = 0
        self.deleted: set[LedgerId] = set()
        self.racks = Racks()
        self.forgotten: set[LedgerId] = set()
        self.has_losses = False
        self.recorder: Recorder | None = None

    def is_ack_set(self, facts: Facts, mask: int) -> bool:
        """Return whether these bookies are enough, and in enough racks, to acknowledge an entry together."""
        if mask.bit_count() < facts.ledger.ack_quorum:
            return False
        if not self.racks.ack_racks:
            return True
        return self.racks.may_span(
            name for name, index in self.indexes.items() if mask >> index & 1
        )

    def is_kept(self, facts: Facts, entry_id: EntryId) -> bool:
        """Return whether the bookies that metadata names for an entry have enough copies of it.

        In enough racks, too, unless copies were lost: a repair makes one anew in a rack that its write set needs, and
        not all of that have theirs.
        """
        held = facts.holders.get(entry_id, 0) & facts.write_mask(entry_id)
        if facts.ledger.ledger_id in self.forgotten or self.has_losses:
            return held.bit_count() >= facts.ledger.ack_quorum
        return self.is_ack_set(facts, held)

    def ledger_created(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        self.facts[ledger_id] = Facts(self.ledgers[ledger_id], metadata, self.indexes)
        if self.recorder is not None:
            self.recorder.created(ledger_id, metadata)
