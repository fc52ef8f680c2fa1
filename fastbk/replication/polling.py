"""The long poll of a tailing reader: waits at the bookies until the LAC has reached an entry.

All members of the last ensemble are asked to wait, so that news comes within one round trip from whichever has it
first; a slow, silent or lost one delays nothing. One of them, the first of the order, is asked for the entry itself
(piggyback); the others prove the LAC with their newest entry. The entry is handed out only once some digest proves a
LAC that covers it. A member that answers without news is asked again, one that fails after a pause.

For the driver: `PollLac(ledger_id, metadata, position, options, order)` is an ordinary procedure with value `LacNews`.
It ends when the LAC has reached `position`, when the ledger was closed, or after `wait_s` without either (that is no
error: poll again). Raises NotEnoughBookies (or Unauthorized, DigestMismatch) when no member gave a valid answer for
`pacing.give_up_s`. Call `metadata_changed(metadata, now_s)` whenever a watch brings other metadata while it runs, and
take the actions: members that left are let go, new ones asked, a close ends it. It asks for AskLac and Sleep only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Found
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Pacing

Order: TypeAlias = Callable[[Sequence[BookieId]], Sequence[BookieId]]
"""Puts bookies that hold the same into the order to prefer: healthy, near and quick ones first. A permutation."""


def as_they_are(bookies: Sequence[BookieId]) -> Sequence[BookieId]:
    """Prefer none."""
    return bookies


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOptions:
    """How a poll waits. Seconds, above 0.

    Attributes:
        wait_s: the whole poll, and each wait at a bookie; at most 60.
        grace_s: when the LAC is proven to be at `position`, how long the entry itself may still take to come.
        pacing: of the requests beyond their wait, and of asking again those that fail.
    """

    wait_s: float = 1.0
    grace_s: float = 0.005
    pacing: Pacing = field(default_factory=Pacing)


@dataclass(frozen=True, slots=True)
class LacNews:
    """What a poll brought.

    Attributes:
        lac: the highest LAC known now; below `position` if there was no news.
        entry: the entry at `position`, when it came along and is covered by `lac`.
        fenced: a bookie says that the ledger is fenced: expect it to be closed soon.
        slow: members that kept the poll waiting for the entry; prefer others the next time.
    """

    lac: EntryId
    entry: Found | None = None
    fenced: bool = False
    slow: tuple[BookieId, ...] = ()


class PollLac(Procedure[LacNews]):
    """Waits until entry `position` is known to be acknowledged; see the module's text."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        position: EntryId,
        options: PollOptions | None = None,
        order: Order = as_they_are,
    ) -> None:
        super().__init__()

    def metadata_changed(self, metadata: LedgerMetadata, now_s: float) -> None:
        """Take newer metadata; then take the actions."""
        raise NotImplementedError
