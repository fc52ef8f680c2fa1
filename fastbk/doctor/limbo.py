"""Ledgers in limbo: of which a bookie says "cannot tell" where it would say "no" (INV-X4), as its files know them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.doctor.report import Finding, ok, warn
from fastbk.native.disk import Disk
from fastbk.native.store import DELETED, LIMBO, Store, StoreOptions
from fastbk.storage.directories import locations_path
from fastbk.storage.identity import read_identity
from fastbk.storage.limbo import NAME, read_limbo
from fastbk.storage.manifest import ManifestLost, ManifestSlots
from fastbk.units import format_count

if TYPE_CHECKING:
    from fastbk.storage.manifest import Manifest

_STORE_BYTES = 1 << 20
"""Of caches that nothing is read into."""


def limbo(directory: str, bookie_id: str) -> Finding:
    """Count the ledgers in limbo in one ledger directory, with what ends it. Raises StorageError, OSError."""
    if not os.path.isdir(directory):
        return ok("it was never started")
    with Disk(Path(directory), "plain", only_reads=True) as disk:
        identity = read_identity(disk, directory)
        if identity is None:
            return ok("it was never started")
        try:
            manifest = ManifestSlots(disk, directory).load()
        except ManifestLost:
            return ok(f"not looked at: the manifest in {directory} is lost")
        incarnation = identity.incarnation_number
        ids, since_s = _flushed(disk, directory, incarnation, identity.pair, manifest)
        if os.path.exists(f"{directory}/{NAME}"):
            waiting = read_limbo(disk, directory, incarnation)
            ids.update(waiting)
            if waiting:
                since_s = min(since_s or time.time(), os.stat(f"{directory}/{NAME}").st_mtime)
    if not ids or since_s is None:
        return ok(f"no ledger in {directory}")
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(since_s))
    few = ", ".join(map(str, sorted(ids)[:3]))
    return warn(
        f"{directory}: {format_count(len(ids), 'ledger')} in limbo ({few}{', ...' if len(ids) > 3 else ''}), since"
        f" {since} or longer: the bookie may have lost entries or a fence of them. It ends for each when it is closed"
        " and whole here, when metadata names others in this bookie's place, or when it is deleted",
        f"while the bookie runs: fastbk bookie repair {bookie_id}; for those that nobody will close: fastbk ledger"
        " recover LEDGER",
    )


def _flushed(
    disk: Disk, directory: str, incarnation: int, pair: int, manifest: Manifest
) -> tuple[set[int], float | None]:
    """Return what is in limbo by the files that the manifest names, and when the oldest that says so was written."""
    options = StoreOptions(
        incarnation=incarnation,
        pair=pair,
        read_cache_bytes=_STORE_BYTES,
        block_cache_bytes=_STORE_BYTES,
    )
    ids: set[int] = set()
    since_s: float | None = None
    store = Store(directory, disk, disk, options)
    try:
        for entry in manifest.locations:  # of equal ledgers the newest file's counts
            if store.add(entry.file_id):
                continue  # damaged: the checks of what the manifest names say so
            for state in store.states(entry.file_id):
                if state.flags & LIMBO and not state.flags & DELETED:
                    ids.add(state.ledger_id)
                    if since_s is None:
                        since_s = os.stat(locations_path(directory, entry.file_id)).st_mtime
                else:
                    ids.discard(state.ledger_id)
    finally:
        store.destroy()
    return ids, since_s
