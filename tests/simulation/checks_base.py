"""What all parts of the checks share: the facts about each ledger, and who listens to the events of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata
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
        recorder: gets the events of the specification, if anybody wants them.
    """

    def __init__(self) -> None:
        self.facts: dict[LedgerId, Facts] = {}
        self.ledgers: dict[LedgerId, Ledger] = {}
        self.indexes: dict[str, int] = {}
        self.liars = 0
        self.deleted: set[LedgerId] = set()
        self.recorder: Recorder | None = None

    def ledger_created(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        self.facts[ledger_id] = Facts(self.ledgers[ledger_id], metadata, self.indexes)
        if self.recorder is not None:
            self.recorder.created(ledger_id, metadata)
