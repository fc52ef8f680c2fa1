"""The marked ledgers of a cluster, as a worker reads them: their live copies, and how much is to be copied."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from fastbk.autorecovery.figures import MarkCounts
from fastbk.autorecovery.repair_order import LEDGERS_MAX, live_copies
from fastbk.autorecovery.state import clock_ms
from fastbk.client import Client
from fastbk.meta.records import BadRecord
from fastbk.meta.replica_marks import LedgerMark
from fastbk.meta.zookeeper.underreplication import APACHE_REASON
from fastbk.model.ids import BookieId, LedgerId
from fastbk.replication.named_copies import share_bytes

LEDGERS_A_READ = 100


class MarkedLedgers:
    """What the last reading found, up to `LEDGERS_MAX` ledgers.

    Attributes:
        live_copies: of each marked ledger; 0 for one that is gone, whose mark is to be dropped.
        foreign: the marks that only Apache's AutoRecovery made.
        bytes_left: of the copies that are missing, estimated.
        is_cut: there are more marked ledgers.
        counts: of those that were read.
    """

    def __init__(self, client: Client) -> None:
        self.live_copies: dict[LedgerId, int] = {}
        self.foreign: dict[LedgerId, LedgerMark] = {}
        self.bytes_left = 0
        self.is_cut = False
        self.counts = MarkCounts()
        self._client = client
        self._turn = 0

    async def read(self, present: Collection[BookieId]) -> None:
        """Read all marks anew. `present`: bookies that are up.

        Where there are too many, each reading begins at another page: ledgers that wait must not hide the others.
        """
        if self.is_cut:
            self._turn = random.randrange(256)
        copies: dict[LedgerId, int] = {}
        foreign: dict[LedgerId, LedgerMark] = {}
        bytes_left, is_cut = 0, False
        counts = MarkCounts()
        async for page in self._client.marks.pages(self._turn):
            if len(copies) + len(page) > LEDGERS_MAX and copies:
                is_cut = True
                break
            for at in range(0, len(page), LEDGERS_A_READ):
                bytes_left += await self._read_ledgers(
                    page[at : at + LEDGERS_A_READ], present, copies, counts
                )
            for mark in page:
                if all(one.reason == APACHE_REASON for one in mark.missing):
                    foreign[mark.ledger_id] = mark
        self.live_copies, self.foreign = copies, foreign
        self.bytes_left, self.is_cut, self.counts = bytes_left, is_cut, counts

    async def _read_ledgers(
        self,
        marks: Sequence[LedgerMark],
        present: Collection[BookieId],
        copies: dict[LedgerId, int],
        counts: MarkCounts,
    ) -> int:
        """Note the live copies of these; return the bytes that they miss."""
        bytes_left, now_ms = 0, clock_ms()
        ids = [one.ledger_id for one in marks]
        found = await self._client.call_store(lambda store: store.read_ledgers(ids))
        for mark, read in zip(marks, found, strict=True):
            marked_ms = min(
                (one.marked_ms for one in mark.missing if one.marked_ms), default=now_ms
            )
            age_s = (now_ms - marked_ms) / 1000
            if isinstance(read, BadRecord):
                counts.add(
                    None, 0, 0, age_s
                )  # it stays marked, and waits until somebody can read it
            elif read is None:
                copies[mark.ledger_id] = 0
                counts.add(None, 0, 0, age_s)
            else:
                metadata, missing = read.metadata, mark.missing
                live = copies[mark.ledger_id] = live_copies(metadata, missing, present)
                counts.add(live, metadata.ack_quorum, metadata.write_quorum, age_s)
                bytes_left += sum(
                    share_bytes(metadata, one) for one in {each.bookie_id for each in missing}
                )
        return bytes_left
