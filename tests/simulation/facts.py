"""What really happened in a simulated world, kept by the checks: nothing in here is known to any node."""

from __future__ import annotations

from fastbk.model.ids import EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import write_set
from tests.simulation.running import Ledger


class Facts:
    """The truth about one ledger.

    Attributes:
        metadata: what the store holds.
        away: the bookies that were away when the ledger was created, and were never replaced since.
        acked: how many entries its writer was told to be stored; they are 0 to acked - 1.
        forced: with deferred sync: how many of them a force has covered.
        shaky: the first entry that only liars make complete: from there on nothing is promised.
        covered: how many entries the writer had begun with when a recoverer had fenced enough bookies; None: not yet.
        added: entry -> bit set of the bookies that acknowledged it to its writer.
        holders: entry -> bit set of the bookies that ever acknowledged it durable.
        lac_told: the highest LAC that some reader was told: a close below it takes back what was read.
        collected: bit set of bookies that have freed the ledger after its deletion.
        fenced: bit set of bookies that answered a fence.
        keys: bookie -> the first master key it took.
        copies: (bookie, entry) -> length and data that it acknowledged.
        reads: entry -> what was read first.
    """

    def __init__(self, ledger: Ledger, metadata: LedgerMetadata, indexes: dict[str, int]) -> None:
        self.ledger = ledger
        self.metadata = metadata
        self.away = ledger.away
        self.acked = 0
        self.forced = 0
        self.shaky: EntryId | None = None
        self.covered: int | None = None
        self.added: dict[EntryId, int] = {}
        self.holders: dict[EntryId, int] = {}
        self.lac_told: EntryId = -1
        self.fenced = 0
        self.collected = 0
        self.keys: dict[int, bytes] = {}
        self.copies: dict[tuple[int, EntryId], tuple[int, bytes]] = {}
        self.reads: dict[EntryId, bytes] = {}
        self._indexes = indexes
        self._masks: list[tuple[EntryId, list[int]]] = []
        self.take(metadata)

    def take(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        self._masks = []
        for fragment in metadata.fragments:
            bits = [1 << self._indexes[bookie_id] for bookie_id in fragment.ensemble]
            masks = []
            for remainder in range(size):
                mask = 0
                for index in write_set(remainder, size, quorum):
                    mask |= bits[index]
                masks.append(mask)
            self._masks.append((fragment.first_entry_id, masks))

    @property
    def promised(self) -> int:
        """How many entries may never be lost."""
        count = self.forced if self.ledger.is_deferred else self.acked
        return count if self.shaky is None else min(count, self.shaky)

    def write_mask(self, entry_id: EntryId) -> int:
        """Return the bookies that are to hold an entry, by the metadata in the store."""
        for first, masks in reversed(self._masks):
            if first <= entry_id:
                return masks[entry_id % len(masks)]
        return self._masks[0][1][entry_id % len(self._masks[0][1])]

    def forgotten_by(self, index: int) -> None:
        """A bookie that lost its data came back, and metadata did not say that it held anything of this ledger."""
        for entry_id, mask in self.holders.items():
            self.holders[entry_id] = mask & ~(1 << index)

    def copies_of(self, entry_id: EntryId) -> int:
        """Return how many bookies of the metadata's write set have acknowledged an entry."""
        return (self.holders.get(entry_id, 0) & self.write_mask(entry_id)).bit_count()
