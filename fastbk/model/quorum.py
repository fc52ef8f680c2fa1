"""Which bookies hold which entry, and when enough of them have answered. Pure functions (INV-Q1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastbk.errors import ConfigError
from fastbk.model.ids import EntryId

# Far beyond any use; bounds the tables that are made per ledger.
ENSEMBLE_SIZE_MAX = 64


def majority(write_quorum: int) -> int:
    """Return the smallest number of bookies that is more than half of `write_quorum`."""
    return write_quorum // 2 + 1


def check_quorums(ensemble: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise ConfigError unless E >= Qw >= Qa >= 1 (INV-Q1)."""
    if not ENSEMBLE_SIZE_MAX >= ensemble >= write_quorum >= ack_quorum >= 1:
        raise ConfigError(
            f"ensemble={ensemble}, write_quorum={write_quorum}, ack_quorum={ack_quorum}:"
            f" must be {ENSEMBLE_SIZE_MAX} >= ensemble >= write_quorum >= ack_quorum >= 1"
        )


def write_set(entry_id: EntryId, ensemble: int, write_quorum: int) -> tuple[int, ...]:
    """Return the indexes of the bookies that hold `entry_id`, first the one with index entry_id mod E.

    Correct for every id of 0..2^63-1 (INV-Q1); Apache's own client goes wrong from 2^31-1 on.
    """
    first = entry_id % ensemble
    return tuple((first + offset) % ensemble for offset in range(write_quorum))


def write_sets(ensemble: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Return the write sets of entries 0..E-1: entry e has that of e mod E."""
    return tuple(write_set(entry_id, ensemble, write_quorum) for entry_id in range(ensemble))


def share(
    index: int, ensemble: int, write_quorum: int, first: EntryId, last: EntryId
) -> Iterator[tuple[EntryId, EntryId]]:
    """Yield the runs of ids of [first, last] that the bookie at `index` of an ensemble is to hold, ascending."""
    if ensemble == write_quorum:
        if first <= last:
            yield first, last
        return
    at = first
    while at <= last:
        distance = (index - at) % ensemble
        if distance >= write_quorum:
            # The next entry whose write set reaches this index.
            at += distance - write_quorum + 1
            continue
        end = min(last, at + distance)
        yield at, end
        at = end + 1


def missing_proof(write_quorum: int, ack_quorum: int) -> int:
    """Return how many bookies of a write set must say "never acknowledged" to prove that an entry is not there.

    With that many, fewer than Qa can ever have acknowledged it.
    """
    return write_quorum - ack_quorum + 1


def every_write_set_has(good: Sequence[bool], write_quorum: int, ack_quorum: int) -> bool:
    """Return whether at least Qa members of every write set are `good` (by index in the ensemble)."""
    return all(
        sum(good[index] for index in indexes) >= ack_quorum
        for indexes in write_sets(len(good), write_quorum)
    )


def meets_every_ack_quorum(
    answered: set[int], ensemble: int, write_quorum: int, ack_quorum: int
) -> bool:
    """Return whether the answers of `answered` (indexes) must contain the newest acknowledged LAC.

    For every write set, fewer than Qa members are silent.
    """
    return all(
        sum(1 for index in indexes if index not in answered) < ack_quorum
        for indexes in write_sets(ensemble, write_quorum)
    )
