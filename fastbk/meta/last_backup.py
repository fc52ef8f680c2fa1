"""When a cluster's metadata was last written into a backup that is whole: a record for metrics, alerts and people.

It is no part of a backup, and none of a restored store: there the cluster has no backup yet.

Decision 146.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import MetadataConflict
from fastbk.meta.records import Change, bad_record

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore

PATH = "cluster/backup"
TRIES_MAX = 20


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`began_ms`: since 1970; what was written later is not in it. `backup_id`: as `metadata check` prints it."""

    began_ms: int
    backup_id: str

    def age_s(self, now_ms: int) -> float:
        """Return how old what it holds is."""
        return max(now_ms - self.began_ms, 0) / 1000


def read_last_backup(store: MetadataStore) -> LastBackup | None:
    """Return the newest backup that is known; None if none was ever taken, or nobody can read it (INV-M17).

    Raises MetadataUnavailable.
    """
    (found,) = store.records.read([PATH])
    return None if found is None else decode(found.value)


def backup_age_s(store: MetadataStore, now_ms: int) -> float:
    """Return how old the newest backup is; infinite if none is known. Raises MetadataUnavailable."""
    found = read_last_backup(store)
    return math.inf if found is None else found.age_s(now_ms)


def note_backup(store: MetadataStore, taken: LastBackup) -> None:
    """Store that this backup was taken, unless a newer one was. Raises MetadataUnavailable, MetadataConflict."""
    for _ in range(TRIES_MAX):
        (found,) = store.records.read([PATH])
        before = None if found is None else decode(found.value)
        if before is not None and before.began_ms >= taken.began_ms:
            return
        version = None if found is None else found.version
        try:
            store.records.change([Change(PATH, msgspec.json.encode(taken), version)])
        except MetadataConflict:
            continue
        return
    raise MetadataConflict(f"record {PATH}: others change it again and again: try again")


def decode(value: bytes) -> LastBackup | None:
    """Return what the record says; None: nobody can read it."""
    try:
        return msgspec.json.decode(value, type=LastBackup)
    except (ValueError, RecursionError) as error:
        bad_record(PATH, f"{error}; the next backup writes it anew")
        return None
