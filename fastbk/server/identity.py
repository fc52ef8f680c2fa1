"""Makes directories and metadata agree on who this bookie is, once, before anything is served (INV-D1, A20).

What may be done with which findings is decided in `fastbk.storage.identity`; here is where they come from, and how
a new bookie is born: folders and first manifest, then the identities, then metadata. A birth that was cut short
anywhere goes on at the next start.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.meta.api import BookieIdentity, DirectoryIdentity
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.observe import logs
from fastbk.storage.directories import data_in, make_ledger_directory
from fastbk.storage.identity import (
    Found,
    Identity,
    Known,
    Verdict,
    judge,
    new_identity,
    new_incarnation,
    read_identity,
    write_identity,
)

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.server.config import BookieConfig


def settle(config: BookieConfig, store: MetadataStore, bookie_id: str) -> int:
    """Return the bookie's incarnation; give birth to it if nobody knows it and its directories are empty.

    The directories exist and are locked. Raises IdentityError (a StorageError) naming what differs and what is
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
        verdict = judge(bookie_id, found, None if read is None else _known(read.identity))
        if verdict is Verdict.KNOWN:
            assert read is not None
            return read.identity.incarnation
        incarnation = _born(disks, found, bookie_id)
        identities = {each.role: read_identity(disks[each.role], each.directory) for each in found}
        store.write_identity(_identity(bookie_id, incarnation, identities), None)
        logs.info(
            "bookie.born", incarnation=f"{incarnation:016x}", again=verdict is not Verdict.NEW
        )
        return incarnation
    finally:
        for disk in disks.values():
            disk.destroy()


def _born(disks: dict[str, Disk], found: list[Found], bookie_id: str) -> int:
    """Give every directory that lacks one an identity; return the incarnation that all share."""
    present = [each.identity.incarnation_number for each in found if each.identity is not None]
    incarnation = present[0] if present else new_incarnation()
    for each in found:
        if each.role == "ledger":
            make_ledger_directory(disks[each.role], each.directory)
    for each in found:
        if each.identity is None:
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
