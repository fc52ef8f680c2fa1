"""When a ledger leaves limbo: the bookie that lost its data is not counted on for it any more (INV-X4).

Whoever repairs a ledger copies what is left of it to other bookies and names them in metadata instead of this one.
From then on nobody who knows the metadata takes this bookie's "no" for the truth about that ledger, and "cannot tell"
may end. Or the bookie itself was repaired, or had lost nothing of it: a ledger of which it holds all that it should
leaves limbo, too, once nothing can come to it any more. A ledger that is deleted leaves with the rest of what gc
deletes. Every doubt keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.meta.records import BadRecord
from fastbk.model.ledger import LedgerState
from fastbk.server.gc_messages import Share

if TYPE_CHECKING:
    from fastbk.gc.index_client import AllPairs
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata

LEDGERS_A_LOOK = 1000
"""Whose metadata is read in one look; the next look goes on behind them."""


class LimboCheck(msgspec.Struct, frozen=True):
    """What one look did: ledgers out of limbo, ledgers left in it, and why it ended early (empty: it did not)."""

    over: int = 0
    left: int = 0
    stopped: str = ""


def is_counted_on(bookie_id: BookieId, metadata: LedgerMetadata) -> bool:
    """Return whether anybody would ask this bookie for an entry that it may have lost.

    Fragments that begin behind a closed ledger's last entry hold nothing. While a ledger is being recovered nobody can
    tell: its recoverer gives copies to bookies that metadata names with the close only.
    """
    if metadata.state is LedgerState.IN_RECOVERY:
        return True
    return any(
        bookie_id in fragment.ensemble
        for fragment in metadata.fragments
        if not metadata.is_closed or fragment.first_entry_id <= metadata.last_entry_id
    )


def may_be_fenced(metadata: LedgerMetadata) -> bool:
    """Return whether a fence of the ledger may have been lost with the data: recovery begins in metadata."""
    return metadata.state is not LedgerState.OPEN


def shares_of(bookie_id: BookieId, metadata: LedgerMetadata) -> list[Share]:
    """Return what a bookie is to hold of a ledger's finished fragments."""
    ends = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
    if metadata.is_closed:
        ends.append(metadata.last_entry_id)
    return [
        Share(
            first=fragment.first_entry_id,
            last=last,
            index=fragment.ensemble.index(bookie_id),
            ensemble=metadata.ensemble_size,
            write_quorum=metadata.write_quorum,
        )
        for fragment, end in zip(metadata.fragments, ends, strict=False)
        if bookie_id in fragment.ensemble
        and fragment.first_entry_id
        <= (last := min(end, metadata.last_entry_id) if metadata.is_closed else end)
    ]


def is_finished(bookie_id: BookieId, metadata: LedgerMetadata) -> bool:
    """Return whether nothing can come to this bookie any more by what metadata says.

    Of an open ledger its writer adds to the last ensemble alone, and nobody has fenced it: recovery begins in metadata.
    If the writer, or a recovery, names this bookie again, that begins with what comes then.
    """
    if metadata.is_closed:
        return True
    is_open = metadata.state is LedgerState.OPEN
    return is_open and bookie_id not in metadata.fragments[-1].ensemble


class LimboWatch(msgspec.Struct):
    """Looks at the ledgers in limbo, some at a time."""

    local: AllPairs
    store: MetadataStore
    bookie_id: BookieId
    _after: int = msgspec.field(default=-1)

    def check(self) -> LimboCheck:
        """Read the metadata of some ledgers in limbo and let those go that this bookie is not counted on for."""
        over = 0
        ids: set[int] = set()
        try:
            ids = self.local.limbo_ids()
            turn = sorted(ids, key=lambda ledger_id: (ledger_id <= self._after, ledger_id))
            turn = turn[:LEDGERS_A_LOOK]
            free: dict[bool, list[int]] = {True: [], False: []}
            for ledger_id, read in zip(turn, self.store.read_ledgers(turn), strict=True):
                if read is None or isinstance(read, BadRecord):
                    continue  # deleted: that is the collector's, which looks twice; unreadable: it may count on us
                if not is_counted_on(self.bookie_id, read.metadata) or self._is_whole(
                    ledger_id, read.metadata
                ):
                    free[may_be_fenced(read.metadata)].append(ledger_id)
            for fenced, ledger_ids in free.items():
                if ledger_ids:
                    over += self.local.limbo_over(ledger_ids, fenced=fenced)
            if turn:
                self._after = turn[-1]
        except (Error, OSError) as error:
            return LimboCheck(over, len(ids) - over, f"{type(error).__name__}: {error}")
        return LimboCheck(over, len(ids) - over)

    def _is_whole(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Return whether all that metadata says is here is here, and nothing can come to it any more.

        What is here and damaged is "cannot tell" by its checksums, in limbo or not.
        """
        return is_finished(self.bookie_id, metadata) and self.local.holds(
            ledger_id, shares_of(self.bookie_id, metadata)
        )
