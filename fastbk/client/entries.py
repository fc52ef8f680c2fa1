"""What readers hand out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Found
from fastbk.replication.entry_table import EntryTable, datas_of, size_bytes_of, table_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `data` is a view of the answer that it came in: keep `bytes(entry.data)` to keep it alone."""

    ledger_id: LedgerId
    entry_id: EntryId
    data: memoryview


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as the metadata store has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int


class Batch:
    """Entries with consecutive ids that were read together, at least one; in one or more runs, as they came."""

    __slots__ = ("first_entry_id", "ledger_id", "runs")

    def __init__(self, ledger_id: LedgerId, *runs: Sequence[Found]) -> None:
        """`runs`: at least one, none is empty; an `EntryTable` makes no object for an entry that is not looked at."""
        self.ledger_id = ledger_id
        self.first_entry_id = runs[0][0].entry_id
        self.runs = runs

    @property
    def last_entry_id(self) -> EntryId:
        """The id of the last entry."""
        return self.first_entry_id + len(self) - 1

    @property
    def last_data(self) -> bytes | memoryview:
        """The data of the last entry."""
        return self.runs[-1][-1].data

    @property
    def datas(self) -> list[memoryview]:
        """The data of all entries in order, without an object for each entry."""
        return [data for run in self.runs for data in datas_of(run)]

    @property
    def lengths(self) -> list[int]:
        """Of each entry: bytes of data of the ledger up to and with it, as its writer said."""
        return [length for run in self.runs for _, _, length, _ in run]

    @property
    def size_bytes(self) -> int:
        """Bytes of data of all entries."""
        return sum(map(size_bytes_of, self.runs))

    def tables(self) -> list[EntryTable]:
        """Return the entries as tables, to be written by columns."""
        return [table_of(run) for run in self.runs]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[Entry]:
        for run in self.runs:
            for entry_id, _, _, data in run:
                # What came over the wire is a view already; a call an entry would be felt.
                yield Entry(self.ledger_id, entry_id, data)  # type: ignore[arg-type]


def batches_of(
    ledger_id: LedgerId, metadata: LedgerMetadata, runs: Sequence[Sequence[Found]]
) -> Sequence[Batch]:
    """Return answers that follow each other as batches: one each, but of a striped ledger, whose answers are short."""
    if metadata.ensemble_size != metadata.write_quorum:
        return [Batch(ledger_id, *runs)]
    return [Batch(ledger_id, run) for run in runs]
