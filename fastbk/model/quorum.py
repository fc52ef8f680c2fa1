"""Which bookies hold which entry, and when enough of them have answered. Pure functions (INV-Q1)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

import msgspec

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

    With that many, fewer than Qa can ever have acknowledged it. Fewer may do where ack sets span domains (`AckSets`).
    """
    return write_quorum - ack_quorum + 1


# --- ack sets -------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True):
    """How many domains an ack set has, and in which one each bookie is.

    Attributes:
        count: at least so many different ones.
        domains: by index in the ensemble; None adds nothing to any set.
        noun: what people call one: rack, region or zone.
    """

    count: int
    domains: tuple[Hashable | None, ...]
    noun: str = "rack"


class AckSets(msgspec.Struct, frozen=True):
    """Which bookies complete an add together: at least Qa members of its write set, which span domains.

    INV-Q5: both sides of the protocol decide by `contains`. An add is acknowledged only when its write set's members
    that have it contain an ack set. An entry is absent, and a ledger fenced, only when the members that are left
    contain none. So of what was acknowledged one bookie knows that answered.

    Where nothing is said of domains, that is the plain count: Qa answers acknowledge, and Qw - Qa + 1 prove the
    contrary. Each ack set has Qa members, so whoever decides by the plain count (Apache's clients, fastbk before 0.4)
    waits for more answers than needed, and is never wrong.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    spans: tuple[Span, ...] = ()

    def contains(self, members: Collection[int]) -> bool:
        """Return whether some of these members of one write set are an ack set."""
        if len(members) < self.ack_quorum:
            return False
        return all(
            len({span.domains[index] for index in members} - {None}) >= span.count
            for span in self.spans
        )

    def none_without(self, answered: Collection[int]) -> bool:
        """Return whether the members that are not in `answered` contain no ack set of any write set."""
        return not any(
            self.contains([index for index in indexes if index not in answered])
            for indexes in write_sets(self.ensemble_size, self.write_quorum)
        )

    def in_every_write_set(self, good: Collection[int]) -> bool:
        """Return whether the members `good` contain an ack set of each write set."""
        return all(
            self.contains([index for index in indexes if index in good])
            for indexes in write_sets(self.ensemble_size, self.write_quorum)
        )

    def __str__(self) -> str:
        spans = " and ".join(f"{span.count} {span.noun}s" for span in self.spans)
        return f"{self.ack_quorum} bookies in {spans}" if spans else f"{self.ack_quorum} bookies"
