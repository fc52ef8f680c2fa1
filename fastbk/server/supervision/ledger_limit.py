"""Reports a bookie that takes no new ledgers (INV-G6): in its conditions and its log.

That is no reason to move anybody who writes here: the ledgers that are here go on, and new ones that metadata lists
are let in some seconds later, as long as `ledgers_max` is not reached.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.native.segment import Segment
from fastbk.native.stats import SLOTS, Stats
from fastbk.observe import logs

if TYPE_CHECKING:
    from fastbk.server.configuration.settings import LimitSettings
    from fastbk.server.supervision.lifecycle import Lifecycle
    from fastbk.server.supervision.spawn import Boot

CONDITION = "ledgers.full"
POLL_S = 1.0


def reason_of(ledgers: int, unconfirmed: int, limits: LimitSettings) -> str:
    """Return why a journal takes no new ledgers, and what to do."""
    if ledgers >= limits.ledgers_max:
        return (
            f"it takes no new ledgers: it has {ledgers}, as many as [limits] ledgers_max allows."
            " Delete ledgers or raise the limit"
        )
    return (
        f"it takes no new ledgers but those that metadata lists: metadata was never seen to list"
        f" {unconfirmed} ledgers here. They expire after [gc] unconfirmed_age. Find the client that writes"
        " to ledgers that do not exist"
    )


class LedgerLimit:
    """One bookie's, over all its boots."""

    def __init__(self, life: Lifecycle, limits: LimitSettings) -> None:
        """`life` gets the condition."""
        self._life = life
        self._limits = limits
        self._is_full = False

    async def run(self, boot: Boot) -> None:
        """Follow the journals of a boot whose children all serve, until cancelled."""
        journals = [
            Stats(Segment(descriptor, process.role))
            for process, descriptor in boot.statistics_segments().items()
            if process.role == "journal"
        ]
        try:
            while True:
                self.poll([stats.counters() for stats in journals])
                await asyncio.sleep(POLL_S)
        finally:
            for stats in journals:
                stats.segment.close()

    def poll(self, journals: list[list[int]]) -> None:
        """Set or remove the condition by the counters of all journals."""
        full = [one for one in journals if one[SLOTS["FBK_C_JOURNAL_TAKES_NO_NEW_LEDGERS"]]]
        reason = None
        if full:
            ledgers, unconfirmed = (
                full[0][SLOTS[f"FBK_C_JOURNAL_{name}"]]
                for name in ("LEDGERS", "LEDGERS_UNCONFIRMED")
            )
            reason = reason_of(ledgers, unconfirmed, self._limits)
        self._life.note(CONDITION, reason, "notice")
        if self._is_full != bool(full):
            self._is_full = bool(full)
            if reason is None:
                logs.info("ledgers.room")
            else:
                logs.warning("ledgers.full", reason=reason)
