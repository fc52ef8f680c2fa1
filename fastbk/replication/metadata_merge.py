"""Metadata of ledgers out of what bookies hold and have seen, after the metadata store was lost. No I/O.

INV-M8: a ledger of which any bookie holds something, and which nobody saw deleted, is there after a rebuild, and every
bookie that holds one of its entries is asked for it: an entry that anybody holds counts as possibly acknowledged.
INV-M9: a ledger that any bookie or the store saw deleted is not there after a rebuild.

The rules, for one ledger:

1. Seen deleted by anybody: it stays deleted.
2. Of what was seen, and what the store has already (from a backup), the newest counts. Metadata only grows: closed
   beats open, more fragments beat fewer, in recovery beats open, then the higher version. Two closed ones with other
   ends are a conflict, which is listed; the longer one counts.
3. Closed is final.
4. An open one keeps its fragments while only bookies of its last fragment hold entries from there on. If others do, an
   ensemble change was never seen. Then one fragment names all of its bookies, as in rule 5.
5. Of a ledger without metadata only the holders are known: one fragment, E = Qw = all holders, Qa = 1. It stays open:
   whoever opens it recovers it, which asks all holders about each entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.ack_domains import without_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastbk.model.entry import DigestType
    from fastbk.model.ids import BookieId


@dataclass(frozen=True, slots=True)
class Held:
    """What one bookie has of one ledger.

    Attributes:
        highest_entry_id: -1: no entry. lac: the highest that its entries prove, -1: none.
        digest: as its entries prove it; None: no entry, or none of those that need no password.
        has_empty_password: whether the key is that of the empty password; None: no key is known.
        seen: the last metadata that it saw, and its version.
    """

    highest_entry_id: int = -1
    lac: int = -1
    digest: DigestType | None = None
    has_empty_password: bool | None = None
    is_here: bool = True
    seen: tuple[LedgerMetadata, int] | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """One ledger after the merge. `notes`: what could not be reconstructed, or was chosen by a rule."""

    metadata: LedgerMetadata
    notes: tuple[str, ...] = ()
    is_guessed: bool = field(default=False)
    """Whether quorums and fragments are those of the holders, not what metadata once said."""


def newest(found: Sequence[tuple[LedgerMetadata, int]]) -> tuple[LedgerMetadata, tuple[str, ...]]:
    """Return the newest of one ledger's metadata, and what is in conflict with it."""
    chosen = max(found, key=_age)[0]
    ends = {one.last_entry_id for one, _ in found if one.is_closed}
    if len(ends) > 1:
        return chosen, (f"closed at entries {', '.join(map(str, sorted(ends)))}: the last counts",)
    return chosen, ()


def _age(found: tuple[LedgerMetadata, int]) -> tuple[int, ...]:
    one, version = found
    in_recovery = one.state is LedgerState.IN_RECOVERY
    if one.is_closed:
        # Copies are moved afterwards: the version tells.
        return (1, one.last_entry_id, version, len(one.fragments), 0)
    last = one.fragments[-1].first_entry_id
    return (0, last, len(one.fragments), in_recovery, version)


def merge_ledger(
    held: Mapping[BookieId, Held], stored: tuple[LedgerMetadata, int] | None = None
) -> Merged | None:
    """Return the metadata of a ledger that nobody saw deleted; None where nothing says that it ever was.

    `held`: by bookie; `stored`: what the store has already.
    """
    seen = [one.seen for one in held.values() if one.seen is not None]
    if stored is not None:
        seen.append(stored)
    if not seen:
        return _of_holders(held)
    metadata, notes = newest(seen)
    if metadata.is_closed:
        return Merged(metadata, notes)
    last = metadata.fragments[-1]
    unseen = {
        bookie_id
        for bookie_id, one in held.items()
        if one.highest_entry_id >= last.first_entry_id and bookie_id not in last.ensemble
    }
    if not unseen:
        return Merged(metadata, notes)
    named = {one for fragment in metadata.fragments for one in fragment.ensemble}
    holders = {one for one, what in held.items() if what.highest_entry_id >= 0}
    # A bookie that was not collected may be gone for good: recovery would wait for it for ever.
    absent = sorted(named - held.keys())
    if absent:
        notes += (
            f"bookies {', '.join(absent)} were not collected, and no fragment names them now",
        )
    members = tuple(sorted((named & held.keys()) | holders))
    notes += (
        f"an ensemble change was never seen: entries are looked for on {len(members)} bookies",
    )
    return Merged(_on_all(metadata, members), notes, is_guessed=True)


def _of_holders(held: Mapping[BookieId, Held]) -> Merged | None:
    holders = tuple(sorted(one for one, what in held.items() if what.is_here))
    if not holders:
        return None
    digests = {what.digest for what in held.values() if what.digest is not None}
    keys = {what.has_empty_password for what in held.values()} - {None}
    is_empty_password = keys == {True}
    notes = [f"no metadata was seen: quorums are those of its {len(holders)} holders, Qa = 1"]
    digest = min(digests) if len(digests) == 1 else None
    if digest is None:
        notes.append("its digest is not known")
    if not is_empty_password:
        notes.append("its password is in no bookie: clients have to give it")
    base = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, holders[:1]),),
        digest_type=digest,
        password=b"" if is_empty_password else None,
    )
    return Merged(_on_all(base, holders), tuple(notes), is_guessed=True)


def _on_all(metadata: LedgerMetadata, members: tuple[BookieId, ...]) -> LedgerMetadata:
    """Return the metadata with one fragment on all of these bookies, each with each entry, and Qa = 1."""
    # Where the members of an ensemble that was never seen were is not known (INV-P5).
    return replace(
        without_record(metadata),
        ensemble_size=len(members),
        write_quorum=len(members),
        ack_quorum=1,
        fragments=(Fragment(0, members),),
    )
