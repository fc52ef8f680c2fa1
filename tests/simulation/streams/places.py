"""Every record of a stream that anybody was told of: where it is, its number, what it holds; none ever changes (S2)."""

from __future__ import annotations

from bisect import bisect_left, insort

from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record
from tests.simulation.streams.facts import Told, demand


class Places:
    """One stream's. A record that a writer was told of has no number before a reader, or the chain, tells it."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._order: list[DLSN] = []
        self.txids: dict[DLSN, int] = {}
        self.seqs: dict[DLSN, int] = {}
        self._by_seq: dict[int, DLSN] = {}

    def note(self, dlsn: DLSN, txid: int) -> None:
        """A record with this transaction id is there for good."""
        known = self.txids.get(dlsn)
        demand(known in (None, txid), f"S2: at {dlsn} lies {txid}, and {known} was there before")
        if known is None:
            self.txids[dlsn] = txid
            insort(self._order, dlsn)

    def see(self, record: Record) -> None:
        self.note(record.dlsn, record.txid)
        demand(
            self._told.given.get(record.txid) == bytes(record.payload),
            f"record {record.txid} was never given so",
        )
        demand(
            self.seqs.setdefault(record.dlsn, record.seq) == record.seq
            and self._by_seq.setdefault(record.seq, record.dlsn) == record.dlsn,
            f"S2, S3: record {record.seq} at {record.dlsn} had another number, or place, before",
        )

    def between(self, low: DLSN, high: DLSN) -> list[DLSN]:
        """Return the positions from `low` up to, not with, `high`."""
        return self._order[bisect_left(self._order, low) : bisect_left(self._order, high)]

    def all_from(self, low: DLSN) -> list[DLSN]:
        """Return the positions from `low` on."""
        return self._order[bisect_left(self._order, low) :]

    def upto(self, last: DLSN) -> list[DLSN]:
        """Return the positions up to, and with, `last`."""
        return self._order[: bisect_left(self._order, last._replace(slot=last.slot + 1))]
