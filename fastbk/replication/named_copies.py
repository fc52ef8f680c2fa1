"""What a ledger's metadata says about the copies of one bookie. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.copy_check import Range
from fastbk.replication.copying import share_of


def fragments_naming(metadata: LedgerMetadata, bookie_id: BookieId) -> list[int]:
    """Return the positions of the fragments that name the bookie."""
    return [at for at, one in enumerate(metadata.fragments) if bookie_id in one.ensemble]


def last_of_fragment(metadata: LedgerMetadata, at: int) -> EntryId | None:
    """Return the last entry of a finished fragment (below its first: it is empty); None: it is being written."""
    if at + 1 < len(metadata.fragments):
        return metadata.fragments[at + 1].first_entry_id - 1
    return metadata.last_entry_id if metadata.is_closed else None


def share_bytes(metadata: LedgerMetadata, bookie_id: BookieId) -> int:
    """Estimate the bytes of data that the bookie holds of a closed ledger; an open one's are not known: 0."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    entries = 0
    for at in fragments_naming(metadata, bookie_id):
        last = last_of_fragment(metadata, at)
        if last is not None:
            entries += max(0, last - metadata.fragments[at].first_entry_id + 1)
    share = metadata.write_quorum / metadata.ensemble_size
    return int(metadata.length * share * entries / (metadata.last_entry_id + 1))


def holds_entries(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Return whether entries are on the bookie as far as the metadata tells; those still being written may be."""
    for at in fragments_naming(metadata, bookie_id):
        fragment = metadata.fragments[at]
        last = last_of_fragment(metadata, at)
        if last is None:
            return True
        index = fragment.ensemble.index(bookie_id)
        if any(True for _ in share_of(index, metadata, fragment.first_entry_id, last)):
            return True
    return False


def verified_copies(
    bookie_id: BookieId, metadata: LedgerMetadata, ranges: Sequence[Range] | None = None
) -> list[MissingReplica]:
    """Return what a whole repair of one bookie has verified: all finished fragments, or those of `ranges`."""
    last = None if metadata.is_closed else metadata.fragments[-1].first_entry_id - 1
    if ranges is None:
        return [MissingReplica(bookie_id, 0, last)] if last != -1 else []
    ends = [(first, end if last is None else min(end, last)) for first, end in ranges]
    return [MissingReplica(bookie_id, first, end) for first, end in ends if end >= first]


def is_expected(metadata: LedgerMetadata, missing: MissingReplica) -> bool:
    """Return whether metadata names the bookie for some of these entries, or may still do so."""
    if not metadata.is_closed:
        return True
    for at, fragment in enumerate(metadata.fragments):
        last = last_of_fragment(metadata, at)
        assert last is not None
        first = max(fragment.first_entry_id, missing.first_entry_id)
        if missing.bookie_id in fragment.ensemble and first <= last and first < missing.end:
            return True
    return False
