"""What readers hand out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.printable_text import shown_bytes
from fastbk.replication.actions import Found
from fastbk.replication.entry_table import EntryTable, datas_of, size_bytes_of, table_of


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """One entry. `data` is a view of the answer that it came in: keep `value` to keep it alone.

    It can be pickled and copied: what comes out has its own data.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    data: memoryview

    @property
    def value(self) -> bytes:
        """The data as bytes of its own, as `json.loads` and others want it."""
        return bytes(self.data)

    def __repr__(self) -> str:
        size = len(self.data)
        return f"<Entry {self.entry_id} of ledger {self.ledger_id}: {size} bytes {shown_bytes(self.data)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _entry_of, (self.ledger_id, self.entry_id, self.value)


def _entry_of(ledger_id: LedgerId, entry_id: EntryId, value: bytes) -> Entry:
    """Return an entry that was pickled."""
    return Entry(ledger_id, entry_id, memoryview(value))


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as the metadata store has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int


class Batch:
    """Entries with consecutive ids that were read together, at least one; in one or more runs, as they came.

    It can be pickled and copied: what comes out has its own data.
    """

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

    def __repr__(self) -> str:
        entries = f"{len(self)} entries from {self.first_entry_id}, {self.size_bytes} bytes"
        return f"<Batch of ledger {self.ledger_id}: {entries}>"

    def __reduce__(self) -> tuple[object, ...]:
        runs = [[(*one[:3], bytes(one.data)) for one in run] for run in self.runs]
        return _batch_of, (self.ledger_id, runs)

    def __iter__(self) -> Iterator[Entry]:
        for run in self.runs:
            for entry_id, _, _, data in run:
                # What came over the wire is a view already; a call an entry would be felt.
                yield Entry(self.ledger_id, entry_id, data)  # type: ignore[arg-type]


def _batch_of(ledger_id: LedgerId, runs: Sequence[Sequence[tuple[int, int, int, bytes]]]) -> Batch:
    """Return a batch that was pickled."""
    return Batch(ledger_id, *(table_of([Found(*one) for one in run]) for run in runs))


def batches_of(
    ledger_id: LedgerId, metadata: LedgerMetadata, runs: Sequence[Sequence[Found]]
) -> Sequence[Batch]:
    """Return answers that follow each other as batches: one each, but of a striped ledger, whose answers are short."""
    if metadata.ensemble_size != metadata.write_quorum:
        return [Batch(ledger_id, *runs)]
    return [Batch(ledger_id, run) for run in runs]
