"""Makes directories and metadata agree on who this bookie is, once, before anything is served (INV-D1, A20).

What may be done with which findings is decided in `fastbk.storage.identity`; here is where they come from, and how
a new bookie is born: folders and first manifest, then the identities, then metadata. A birth that was cut short
anywhere goes on at the next start.

A bookie that lost its data, and was told that this is so, is born again (INV-X4): every ledger that metadata says it
held goes into limbo, durably, before metadata hears of the new incarnation. Writers from before know the old one and
send nothing; ledgers that are created meanwhile are in no doubt.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.meta.api import BookieIdentity, DirectoryIdentity
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerState
from fastbk.native.disk import Disk
from fastbk.native.kill_points import kill_point
from fastbk.observe import logs
from fastbk.storage.directories import data_in, make_ledger_directory
from fastbk.storage.identity import (
    Found,
    Identity,
    IdentityError,
    Known,
    Verdict,
    judge,
    new_identity,
    new_incarnation,
    read_identity,
    write_identity,
)
from fastbk.storage.limbo import write_limbo

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.server.config import BookieConfig


LEDGERS_NAMED = 3
"""In messages, as examples."""
OLD_LEASE_WAIT_S = 30.0
"""A dead bookie's registration runs out within this; one that stays has a living owner."""
_POLL_S = 0.2


def settle(
    config: BookieConfig, store: MetadataStore, bookie_id: str, *, accept_data_loss: bool = False
) -> int:
    """Return the bookie's incarnation; give birth to it if nobody knows it and its directories are empty.

    The directories exist and are locked. `accept_data_loss`: a person's word that data that metadata knows is gone for
    good; without effect where nothing is missing. Raises IdentityError (a StorageError) naming what differs and what is
    safe to do, MetadataUnavailable, OSError.
    """
    folders = {"journal": config.journal.directory, "ledger": config.ledgers.directory}
    disks = {role: Disk(Path(folder), "plain") for role, folder in folders.items()}
    try:
        found = [
            Found(folder, role, read_identity(disks[role], folder), data_in(disks[role], folder))
            for role, folder in folders.items()
        ]
        read = store.read_identity(BookieId(bookie_id))
        known = None if read is None else _known(read.identity)
        verdict = judge(bookie_id, found, known, accept_data_loss=accept_data_loss)
        if verdict is Verdict.KNOWN:
            assert read is not None
            return read.identity.incarnation
        if verdict is Verdict.LOST:
            _wait_for_the_old_life(store, bookie_id)
        is_rebirth = verdict is Verdict.LOST or accept_data_loss
        ledger_ids = ledgers_of(store, BookieId(bookie_id), or_in_recovery=is_rebirth)
        if verdict is not Verdict.LOST and ledger_ids and not accept_data_loss:
            raise _forgotten(bookie_id, ledger_ids)
        if len(ledger_ids) > config.limits.ledgers_max:
            raise IdentityError(
                f"metadata lists {len(ledger_ids)} ledgers on {bookie_id!r}: raise [limits] ledgers_max above that"
            )
        incarnation = _born(disks, found, bookie_id, ledger_ids, is_anew=verdict is Verdict.LOST)
        identities = {each.role: read_identity(disks[each.role], each.directory) for each in found}
        kill_point("rebirth.before_identity")
        version = None if read is None else read.version
        store.write_identity(_identity(bookie_id, incarnation, identities), version)
        logs.info(
            "bookie.born",
            incarnation=f"{incarnation:016x}",
            again=verdict is not Verdict.NEW,
            ledgers_in_limbo=len(ledger_ids),
        )
        return incarnation
    finally:
        for disk in disks.values():
            disk.destroy()


def ledgers_of(
    store: MetadataStore, bookie_id: BookieId, *, or_in_recovery: bool = False
) -> list[int]:
    """Return the ids of all ledgers that name this bookie in any fragment, ascending. Reads the metadata of all.

    `or_in_recovery`: those, too, that are being recovered. A recoverer gives copies to bookies that metadata names with
    the close only; one that lost its data meanwhile would say "no" of what it is then named for (INV-X4).
    """
    found = []
    after = -1
    while page := store.list_ledgers(after):
        for ledger_id, read in zip(page, store.read_ledgers(page), strict=True):
            if read is None:
                continue
            metadata = read.metadata
            is_taken_over = or_in_recovery and metadata.state is LedgerState.IN_RECOVERY
            if is_taken_over or any(bookie_id in one.ensemble for one in metadata.fragments):
                found.append(ledger_id)
        after = page[-1]
    return found


def _wait_for_the_old_life(store: MetadataStore, bookie_id: str) -> None:
    """Return when no earlier life of the bookie is registered. Raises IdentityError when it stays."""
    deadline_s = time.monotonic() + OLD_LEASE_WAIT_S
    while any(each.service.bookie_id == bookie_id for each in store.list_bookies()):
        if time.monotonic() >= deadline_s:
            raise IdentityError(
                f"bookie {bookie_id!r} is registered and alive elsewhere, with the data that is missing here. Stop that"
                " one first, or give this one an id of its own"
            )
        time.sleep(_POLL_S)


def _forgotten(bookie_id: str, ledger_ids: list[int]) -> IdentityError:
    some = ", ".join(map(str, ledger_ids[:LEDGERS_NAMED]))
    return IdentityError(
        f"the metadata store knows no identity of bookie {bookie_id!r}, but {len(ledger_ids)} ledgers name it as one of"
        f" their bookies (ledger {some}). Likely its identity was deleted after its data was lost. Start a bookie under"
        f" a new id; or, if the data is gone for good, run `fastbk bookie recover {bookie_id}`, which copies what it"
        " held from others, or start this one once with --accept-data-loss before that"
    )


def _born(
    disks: dict[str, Disk],
    found: list[Found],
    bookie_id: str,
    ledger_ids: list[int],
    *,
    is_anew: bool,
) -> int:
    """Give every directory that lacks one an identity, or all a new one; return the incarnation that all share."""
    present = [each.identity.incarnation_number for each in found if each.identity is not None]
    incarnation = present[0] if present and not is_anew else new_incarnation()
    for each in found:
        if each.role == "ledger":
            make_ledger_directory(disks[each.role], each.directory)
            if ledger_ids:
                write_limbo(disks[each.role], each.directory, ledger_ids, incarnation)
                kill_point("rebirth.after_limbo")
    for each in found:
        if each.identity is None or is_anew:
            identity = new_identity(bookie_id, incarnation, each.role, int(time.time()))
            write_identity(disks[each.role], each.directory, identity)
    return incarnation


def _known(identity: BookieIdentity) -> Known:
    return Known(identity.incarnation, {one.directory_id: one.role for one in identity.directories})


def _identity(
    bookie_id: str, incarnation: int, identities: dict[str, Identity | None]
) -> BookieIdentity:
    directories = tuple(
        DirectoryIdentity(identity.directory_id, role)
        for role, identity in identities.items()
        if identity is not None
    )
    return BookieIdentity(BookieId(bookie_id), incarnation, directories)
