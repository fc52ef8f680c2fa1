"""What follows when the last life of this bookie did not stop cleanly.

With a journal that is synced nothing does: replay has all that was acknowledged. Without, or when replay has met damage
in the journal, any ledger that metadata names this bookie for may miss entries or a fence, ledgers that are unknown
here included: all of them go into limbo before anything is served (INV-X4), as after a rebirth, but what is here is
kept and served. A ledger leaves limbo when it is found whole or repaired.

Damage that a manifest has on record is one more reason, whoever put it there: listed after that, the ledgers take the
doubt over, each by its own state, and the record ends (INV-X6, `fastbk/server/index/replay.py`).

Decision 37.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import MetadataOnHold, StorageError
from fastbk.meta.rollback import check_not_held
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.native.process import kill_point
from fastbk.observe import logs
from fastbk.server.identity import ledgers_of, void_pending_names
from fastbk.storage.directories import NO_ROOM
from fastbk.storage.limbo import read_limbo, write_limbo
from fastbk.storage.manifest import ManifestSlots
from fastbk.storage.unclean import Unclean, read_unclean, remove_unclean, write_unclean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastbk.meta.api import MetadataStore


class LifeBegun(msgspec.Struct, frozen=True):
    """What a boot has to know. `is_listed`: all ledgers that may have lost something are in `limbo.ids`."""

    ledgers_in_limbo: int = 0
    is_listed: bool = False


def begin_life(
    directories: Sequence[str],
    store: MetadataStore,
    bookie_id: str,
    incarnation: int,
    *,
    sync: str,
    ledgers_max: int,
    is_first_boot: bool = True,
) -> LifeBegun:
    """Look at how the last life ended and what is on record, and mark this life as begun.

    To be called with the directories locked, before any child is configured. Cut off anywhere it is done again.

    Args:
        directories: the ledger directories. sync: how this life acknowledges.
        is_first_boot: of this supervisor's life. At later ones the kernel still has whatever was written, so only
            damage that the last boot has met, or that is on record, counts.

    Raises StorageError (more ledgers than may be held), MetadataOnHold, MetadataConflict, MetadataUnavailable, OSError.
    """
    disks = {directory: Disk.of_small_files() for directory in directories}
    try:
        found = [read_unclean(disk, directory) for directory, disk in disks.items()]
        is_met = any(flag is not None and flag.is_lost for flag in found)
        on_record = damage_on_record(disks)
        if not is_first_boot and not is_met and not on_record:
            return LifeBegun()
        why = ""
        if is_met:
            why = "the journal is damaged"
        elif is_first_boot and any(flag is not None and flag.has_lost for flag in found):
            why = (
                "the last life acknowledged without syncs, and did not stop cleanly: what it acknowledged last may be"
                " gone"
            )
        elif on_record and _may_list(store, on_record):
            why = f"damage is on record: {on_record[0]}"
        ledger_ids: list[int] = []
        if why:
            ledger_ids = _list_ledgers(store, bookie_id, ledgers_max)
            logs.warning("bookie.unclean_stop", reason=why, ledgers_in_limbo=len(ledger_ids))
        elif any(found):
            logs.info("bookie.unclean_stop", reason="replay has what was acknowledged")
        for directory, disk in disks.items():
            if why:
                before = read_limbo(disk, directory, incarnation)
                write_limbo(disk, directory, sorted({*before, *ledger_ids}), incarnation)
                kill_point("unclean.after_limbo")
            flag = Unclean(incarnation=f"{incarnation:016x}", sync=sync, started_s=int(time.time()))
            try:
                write_unclean(disk, directory, flag)
            except OSError as error:
                # A life that syncs may go without: what is there from before says the same, or something worse.
                if flag.has_lost or error.errno not in NO_ROOM:
                    raise
                logs.warning("bookie.life_not_marked", directory=directory, reason=str(error))
        kill_point("unclean.after_mark")
        return LifeBegun(len(ledger_ids), bool(why))
    finally:
        for disk in disks.values():
            disk.destroy()


def was_unclean(directories: Sequence[str]) -> bool:
    """Return whether the last life did not stop cleanly; before `begin_life`. Raises OSError."""
    for directory in directories:
        with Disk.of_small_files() as disk:
            if read_unclean(disk, directory) is not None:
                return True
    return False


def damage_on_record(disks: Mapping[str, Disk]) -> list[str]:
    """Return what the manifests of these directories have on record. Raises StorageError, OSError."""
    return [
        one.what
        for directory, disk in disks.items()
        for one in ManifestSlots(disk, directory).load().damage
    ]


def _list_ledgers(store: MetadataStore, bookie_id: str, ledgers_max: int) -> list[int]:
    """Return the ids of all ledgers that the bookie may have lost something of, ascending."""
    # Of ledgers that restored metadata does not list, too, something may be lost (INV-X4).
    check_not_held(store)
    void_pending_names(store, store.read_identity(BookieId(bookie_id)))
    ledger_ids = ledgers_of(store, BookieId(bookie_id), or_in_recovery=True)
    if len(ledger_ids) > ledgers_max:
        raise StorageError(
            f"metadata lists {len(ledger_ids)} ledgers on {bookie_id!r}: raise [limits] ledgers_max above that"
        )
    return ledger_ids


def _may_list(store: MetadataStore, on_record: Sequence[str]) -> bool:
    """Return whether damage on record can end now: metadata that is on hold does not know all ledgers.

    A bookie with such a record has served before, and does without a listing until the hold is over.
    """
    try:
        check_not_held(store)
    except MetadataOnHold as error:
        logs.warning("bookie.damage_on_record", damage=list(on_record), why_it_stays=str(error))
        return False
    return True


def end_life(directories: Sequence[str]) -> None:
    """Note that this life stopped cleanly: drained, flushed. Raises OSError."""
    for directory in directories:
        with Disk.of_small_files() as disk:
            remove_unclean(disk, directory)
