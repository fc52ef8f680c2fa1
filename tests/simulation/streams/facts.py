"""What must hold of a stream, whatever happened to it; and what its writers were told."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbk.stream.chain import NONE, Chain, get_chain, get_page, verify
from fastbk.stream.chain_store import page_name
from fastbk.stream.paths import chain_path, pages_path
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record, chunk_of
from tests.fixtures.fake_ledgers import Cluster


class Broken(AssertionError):
    """A sentence of streams does not hold."""


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@dataclass(slots=True)
class Told:
    """What writers of a stream did and were told, in the order it happened."""

    given: dict[int, bytes] = field(default_factory=dict)
    """Payloads by transaction id: the workload gives each id once."""
    kept: dict[int, DLSN] = field(default_factory=dict)
    """Positions that were acknowledged."""
    last_kept: DLSN | None = None
    never_sent: set[int] = field(default_factory=set)
    """Ids whose append failed with the promise that it is in no ledger."""

    def acknowledged(self, txid: int, dlsn: DLSN, epoch: int, chain: Chain) -> None:
        """A writer was told that a record is kept (S6: not one that was overtaken when it appended)."""
        self.kept[txid] = dlsn
        demand(
            self.last_kept is None or epoch < chain.epoch or dlsn > self.last_kept,
            f"S4, S5: {dlsn} after {self.last_kept}",
        )
        if epoch == chain.epoch:
            self.last_kept = dlsn


class Judge:
    """Looks at the metadata and the ledgers themselves, past all code of streams but the codecs."""

    def __init__(self, cluster: Cluster, stream_id: str) -> None:
        self._cluster = cluster
        self._stream_id = stream_id
        self._before: Chain | None = None

    @property
    def chain(self) -> Chain:
        return get_chain(self._cluster.records.values[chain_path(self._stream_id)].value)

    def look(self) -> None:
        """Check what holds at any moment."""
        chain, before = self.chain, self._before
        verify(chain)
        rows = self.rows(chain)
        numbers = [row.number for row in rows]
        demand(
            numbers == list(range(chain.head, chain.next_number)),
            f"S12: rows {numbers[:3]}… are not all there",
        )
        if before is not None:
            demand(chain.epoch >= before.epoch, "S6: the epoch fell")
            demand(chain.trim >= before.trim, "S7: the trim point fell")
            demand(chain.last_txid >= before.last_txid, "S14: the last transaction id fell")
            demand(chain.end_seq >= before.end_seq, "S3: the end fell")
            demand(
                chain.deleting >= before.deleting and chain.head >= before.head,
                "S9: the old end came back",
            )
        self._before = chain
        named = (
            {row.ledger_id for row in rows} | {*chain.doomed, chain.reserved} | self.named_beside()
        )
        stray = set(self._cluster.ledgers) - named
        demand(not stray, f"S18: ledgers {sorted(stray)} exist and nothing names them")
        for row in rows:
            is_needed = row.number >= chain.deleting
            demand(
                not is_needed or row.ledger_id in self._cluster.ledgers,
                f"S18: the ledger of segment {row.number} is gone",
            )

    def named_beside(self) -> set[int]:
        """Return the ledgers that something else than the chain names."""
        return set()

    def rows(self, chain: Chain):  # type: ignore[no-untyped-def]
        """Return all rows from the head on, those of pages, too (S15)."""
        found = []
        for page in chain.pages:
            value = self._cluster.records.values.get(
                f"{pages_path(self._stream_id)}/{page_name(page)}"
            )
            demand(value is not None, f"S15: page {page.page} is gone")
            assert value is not None
            found += [row for row in get_page(value.value) if row.number >= chain.head]
        return found + [row for row in chain.rows if row.number >= chain.head]

    def records(self) -> list[Record]:
        """Return all records of closed segments, checked against their rows (S3)."""
        found: list[Record] = []
        for row in self.rows(self.chain):
            if row.is_open or row.number < self.chain.deleting:
                continue
            ledger = self._cluster.ledger(row.ledger_id)
            demand(
                ledger.metadata.is_closed,
                f"S1: segment {row.number} is closed in the chain, its ledger is not",
            )
            chunk = chunk_of(row.number, 0, ledger.entries, row.base_seq, row.base_txid)
            records = list(chunk)
            demand(
                len(records) == row.records,
                f"S3: segment {row.number} has {len(records)} records, its row says {row.records}",
            )
            demand(
                records[-1].dlsn.entry == row.last_entry_id,
                f"S4: segment {row.number} ends elsewhere",
            )
            demand(
                (records[0].txid, records[-1].txid) == (row.first_txid, row.last_txid),
                "S14: ids of a row",
            )
            demand(
                row.index_entry_id in (NONE, row.last_entry_id + 1),
                f"S12: two ends of segment {row.number}",
            )
            times = [one.time_us for one in records]
            demand(times == sorted(times), "times fell within a segment")
            found += records
        return found

    def settle(self, told: Told) -> None:
        """Check at the end, when all segments are closed, what the writers were told."""
        self.look()
        chain = self.chain
        demand(not chain.open_rows, "a segment is open after the stream was closed")
        records = self.records()
        demand(
            [one.seq for one in records]
            == list(range(chain.end_seq - len(records), chain.end_seq)),
            "S3: numbers have holes",
        )
        places = [one.dlsn for one in records]
        demand(places == sorted(set(places)), "S4: positions do not rise")
        ids = [one.txid for one in records]
        demand(ids == sorted(ids), "transaction ids fall")
        there = {one.txid: one for one in records}
        demand(len(there) == len(records), "S3: a record is there twice")
        for txid, dlsn in told.kept.items():
            if dlsn >= chain.trim and dlsn.segment >= chain.deleting:
                found = there.get(txid)
                demand(
                    found is not None and found.dlsn == dlsn,
                    f"S1: record {txid} was kept at {dlsn} and is not there",
                )
        for record in records:
            demand(
                told.given.get(record.txid) == bytes(record.payload),
                f"record {record.txid} was never given so",
            )
            demand(
                record.txid not in told.never_sent,
                f"record {record.txid} is there, its writer was told it never would",
            )
        if records:
            demand(
                (chain.last_dlsn, chain.last_txid) == (places[-1], ids[-1]),
                "S14: the chain's last record",
            )
