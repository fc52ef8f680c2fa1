"""Writes metadata anew out of what was collected from bookies; into an empty store, or over a restored backup.

Begin at `rebuild`. The backup may be one that `fastbk.admin.metadata_restore` has restored. No bookie runs meanwhile.
Metadata is on hold before the first ledger is written, so that bookies which start on half a rebuild delete nothing; an
operator confirms it in the end. Running it again changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fastbk.admin.bookie_collection import EMPTY_KEY, CollectedLedger, Collection
from fastbk.admin.metadata_archive import Ledger, Ledgers, items_of
from fastbk.admin.metadata_restore import raise_if_half_restored
from fastbk.admin.unlisted_segments import unlisted_segments
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.api import BookieIdentity, DirectoryIdentity, VersionedLedger, all_ids
from fastbk.meta.hold import confirm_hold, new_hold, place_hold, read_record
from fastbk.meta.rollback_mark import COUNTED_ID_END, RESERVE_IDS, Mark, raise_mark
from fastbk.meta.uri import is_zookeeper, open_store, parse_zookeeper
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, IdRanges, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.native.ledger_state import HAS_KEY, LIMBO
from fastbk.replication.metadata_merge import Held, Merged, merge_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fastbk.meta.api import MetadataStore

HOLD_REASON = "metadata was rebuilt from bookies"


@dataclass
class Rebuilt:
    """What a rebuild did, and what it could not.

    Attributes:
        created, updated, unchanged: ledgers. deleted: those that the store had and a bookie saw deleted.
        kept_deleted: those that bookies hold, and that were deleted.
        guessed: of the ledgers, those whose quorums are not what they once were.
        notes: by ledger, what could not be reconstructed. streams: segments by stream whose record is not there.
        unlisted: segments by path of a stream whose record is there, and does not name them.
        absent_bookies: named by ledgers, and not collected. damage: by bookie.
        highest_id: no ledger gets this id or a lower one.
    """

    hold_id: str = ""
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    kept_deleted: int = 0
    guessed: list[int] = field(default_factory=list)
    notes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    streams: dict[str, list[int]] = field(default_factory=dict)
    unlisted: dict[str, list[int]] = field(default_factory=dict)
    bookies: list[str] = field(default_factory=list)
    absent_bookies: list[str] = field(default_factory=list)
    damage: dict[str, list[str]] = field(default_factory=dict)
    highest_id: int = -1


def instance_of(collections: Sequence[Collection]) -> str:
    """Return the id of the cluster that all are of; empty where no cookie says it. Raises ConfigError."""
    ids = {one.instance_id for one in collections if one.instance_id}
    if len(ids) > 1:
        raise ConfigError(f"these bookies are of several clusters: {', '.join(sorted(ids))}")
    names = [one.bookie_id for one in collections]
    if len(set(names)) < len(names):
        raise ConfigError("a bookie was collected twice: give its newest file only")
    return next(iter(ids), "")


def remade_store(uri: str, instance_id: str) -> MetadataStore:
    """Open the store at `uri`; where there is none, make one with this instance id (empty: a new one).

    Bookies start only on the cluster that their cookies name (INV-D1). Raises as `open_store`.
    """
    if is_zookeeper(uri):
        from fastbk.meta.zookeeper import admin as zookeeper_admin

        location = parse_zookeeper(uri)
        if not zookeeper_admin.exists(location):
            zookeeper_admin.init(location, instance_id=instance_id or None)
    return open_store(uri, new_instance_id=instance_id)


def rebuild(
    store: MetadataStore, collections: Sequence[Collection], backup: Path | None = None
) -> Rebuilt:
    """Merge what was collected into a store; return what came of it.

    `backup`: the archive that the store was restored from. Its ledgers count as of the versions that they had.

    Raises ConfigError for collections that do not belong together or to this store, MetadataConflict while bookies
    run, MetadataUnavailable, StorageError.
    """
    raise_if_half_restored(store)
    instance_id = instance_of(collections)
    if instance_id and store.instance_id() != instance_id:
        raise ConfigError(
            f"the bookies are of the cluster {instance_id}, the store is of {store.instance_id()}: make the store by"
            " this command (it takes the bookies' id), or restore a backup of their cluster"
        )
    if alive := store.list_bookies():
        names = ", ".join(one.service.bookie_id for one in alive)
        raise MetadataConflict(f"bookies run: {names}. Stop all of them, and collect again")
    out = Rebuilt(bookies=sorted(one.bookie_id for one in collections))
    # Before the first ledger is written: bookies delete what is not in half a store (INV-M10).
    hold = place_hold(store, new_hold(HOLD_REASON))
    out.hold_id = hold.hold_id
    _move_ids(store, collections, out)
    deleted = IdRanges()
    for collection in collections:
        for first, last in collection.deleted:
            deleted.add(first, last)
    _write_ledgers(store, collections, deleted, _Versions(backup), out)
    _write_identities(store, collections, out)
    # Streams are put together again once bookies run, since their entries have to be read for it.
    found = unlisted_segments(store)
    out.streams, out.unlisted = found.gone, found.unlisted
    _delete(store, deleted, out)
    return out


class _Versions:
    """The versions that ledgers had in a backup: a restored store begins anew with low ones."""

    def __init__(self, backup: Path | None) -> None:
        self._ledgers = iter(()) if backup is None else items_of(backup, Ledgers, Ledger)
        self._at: Ledger | None = next(self._ledgers, None)

    def of(self, ledger_id: int) -> int:
        """Return a ledger's version, -1 if the backup has none. Call with rising ids only."""
        while self._at is not None and self._at.ledger_id < ledger_id:
            self._at = next(self._ledgers, None)
        return self._at.version if self._at is not None and self._at.ledger_id == ledger_id else -1


def held_of(one: CollectedLedger) -> Held:
    """Return what the merge needs. Raises StorageError for metadata that is damaged."""
    is_empty_limbo = bool(one.flags & LIMBO) and one.highest_entry_id < 0
    return Held(
        highest_entry_id=one.highest_entry_id,
        lac=one.lac,
        digest=DigestType(one.digest) if one.digest else None,
        has_empty_password=one.master_key == EMPTY_KEY if one.flags & HAS_KEY else None,
        is_here=one.is_here and not is_empty_limbo,
        seen=(LedgerMetadata.from_bytes(one.seen), one.version) if one.seen else None,
    )


def _move_ids(store: MetadataStore, collections: Sequence[Collection], out: Rebuilt) -> None:
    """Have no id be drawn that any ledger had (INV-M3), and metadata know what bookies have stored of it (INV-M2)."""
    ids = [one.ledger_id for each in collections for one in each.ledgers]
    ids += [last for each in collections for _, last in each.deleted]
    listed = [each.mark.highest_id for each in collections]
    highest = max((one for one in (*ids, *listed) if one < COUNTED_ID_END), default=-1)
    if highest < 0:
        return
    out.highest_id = highest + RESERVE_IDS
    store.move_ids_above(LedgerId(out.highest_id))
    age = max(each.mark.age for each in collections)
    raise_mark(store, Mark(age=age, highest_id=max(listed), floor=out.highest_id))


def _write_ledgers(
    store: MetadataStore,
    collections: Sequence[Collection],
    deleted: IdRanges,
    versions: _Versions,
    out: Rebuilt,
) -> None:
    by_ledger: dict[int, dict[BookieId, CollectedLedger]] = {}
    for each in collections:
        if each.damage:
            out.damage[each.bookie_id] = each.damage
        for one in each.ledgers:
            by_ledger.setdefault(one.ledger_id, {})[BookieId(each.bookie_id)] = one
    named: set[str] = set()
    for ledger_id in sorted(by_ledger):
        if ledger_id in deleted:
            out.kept_deleted += 1
            continue
        (stored,) = store.read_ledgers([LedgerId(ledger_id)])
        try:
            held = {name: held_of(one) for name, one in by_ledger[ledger_id].items()}
            known = max(versions.of(ledger_id), -1 if stored is None else stored.version)
            # One that nobody can read is written anew by what bookies have seen.
            there = (stored.metadata, known) if isinstance(stored, VersionedLedger) else None
            merged = merge_ledger(held, there)
        except (StorageError, ConfigError) as error:
            out.notes[ledger_id] = (f"not rebuilt: {error}",)
            continue
        if merged is None:
            continue
        named.update(one for each in merged.metadata.fragments for one in each.ensemble)
        version = None if stored is None else stored.version
        _write(store, ledger_id, merged, there, version, out)
    out.absent_bookies = sorted(named - set(out.bookies))


def _write(
    store: MetadataStore,
    ledger_id: int,
    merged: Merged,
    there: tuple[LedgerMetadata, int] | None,
    version: int | None,
    out: Rebuilt,
) -> None:
    if there is not None and there[0] == merged.metadata:
        out.unchanged += 1
    elif version is not None:
        store.update_ledger(LedgerId(ledger_id), merged.metadata, version)
        out.updated += 1
    else:
        try:
            store.create_ledger(LedgerId(ledger_id), merged.metadata)
        except MetadataConflict:  # the store, from a backup, knows that it was deleted (INV-M9)
            out.kept_deleted += 1
            return
        out.created += 1
    if merged.notes:
        out.notes[ledger_id] = merged.notes
    if merged.is_guessed:
        out.guessed.append(ledger_id)


def _write_identities(
    store: MetadataStore, collections: Sequence[Collection], out: Rebuilt
) -> None:
    """Write what each bookie's directories say, which is what it compares at its start (INV-D1)."""
    for each in collections:
        identity = BookieIdentity(
            BookieId(each.bookie_id),
            each.incarnation,
            tuple(DirectoryIdentity(*one) for one in each.directories),
            each.starts,
        )
        read = store.read_identity(identity.bookie_id)
        if read is not None and read.identity.incarnation != identity.incarnation:
            out.damage.setdefault(each.bookie_id, []).append(
                "the store knows another incarnation of this bookie: its identity stays as it is"
            )
        elif read is None or read.identity.starts < identity.starts:
            store.write_identity(identity, None if read is None else read.version)


def _delete(store: MetadataStore, deleted: IdRanges, out: Rebuilt) -> None:
    """Delete what a backup brought back and a bookie saw deleted (INV-M9).

    A store deletes nothing while it is on hold. No bookie runs and everything else is written, so the hold ends for
    this and is placed again.
    """
    gone = [ledger_id for ledger_id in all_ids(store) if ledger_id in deleted]
    if not gone:
        return
    hold = read_record(store).hold
    if hold is not None:
        confirm_hold(store, hold.hold_id)
    try:
        for ledger_id in gone:
            store.delete_ledger(LedgerId(ledger_id))
            out.deleted += 1
    finally:
        reasons = (HOLD_REASON,) if hold is None else hold.reasons
        again = msgspec.structs.replace(new_hold(HOLD_REASON), reasons=reasons)
        out.hold_id = place_hold(store, again).hold_id
