"""Writes another bookie id over one in the metadata of all ledgers: for a bookie whose name changed, not its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastbk.errors import Error, MetadataConflict, NoSuchLedger
from fastbk.meta.api import all_ids
from fastbk.model.ledger import LedgerMetadata
from fastbk.rate_limit import RateLimit

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId, LedgerId

CONFLICTS_MAX = 100


@dataclass(slots=True)
class Renaming:
    """How far it is.

    Attributes:
        seen: ledgers looked at. updated: those that named the bookie and name the other now.
        failed: those that could not be changed, and why.
    """

    seen: int = 0
    updated: int = 0
    failed: dict[LedgerId, str] = field(default_factory=dict)


def renamed(metadata: LedgerMetadata, old: BookieId, new: BookieId) -> LedgerMetadata | None:
    """Return the metadata with `new` in the place of `old`, None if it does not name `old`.

    Raises MetadataConflict if a fragment names both: two of its copies would be one.
    """
    if not any(old in one.ensemble for one in metadata.fragments):
        return None
    if any(old in one.ensemble and new in one.ensemble for one in metadata.fragments):
        raise MetadataConflict(f"a fragment names both {old} and {new}")
    fragments = tuple(
        replace(one, ensemble=tuple(new if each == old else each for each in one.ensemble))
        for one in metadata.fragments
    )
    return replace(metadata, fragments=fragments)


def rename_bookie(
    store: MetadataStore,
    old: BookieId,
    new: BookieId,
    *,
    updates_per_s: float,
    updates_max: int | None = None,
    on_progress: Callable[[Renaming], None] = lambda _: None,
) -> Renaming:
    """Rename the bookie in all ledgers, by compare-and-set; return what was done. Can be run again.

    Args:
        store: of the cluster.
        old, new: bookie ids. Whoever reads goes to `new` from then on, so it has to hold what `old` held.
        updates_per_s: above 0; how many ledgers are changed in a second at most.
        updates_max: end after so many changes; None: change all.
        on_progress: told after every ledger that was changed or failed.
    """
    progress, limit = Renaming(), RateLimit(updates_per_s)
    for ledger_id in all_ids(store):
        if updates_max is not None and progress.updated >= updates_max:
            break
        progress.seen += 1
        try:
            if not _rename_in(store, ledger_id, old, new):
                continue
            progress.updated += 1
        except Error as error:
            progress.failed[ledger_id] = str(error)
        on_progress(progress)
        limit.spend(1)
    return progress


def _rename_in(store: MetadataStore, ledger_id: LedgerId, old: BookieId, new: BookieId) -> bool:
    """Return whether the ledger was changed."""
    for _ in range(CONFLICTS_MAX):
        try:
            found = store.read_ledger(ledger_id)
            wanted = renamed(found.metadata, old, new)
            if wanted is None:
                return False
        except NoSuchLedger:
            return False
        try:
            store.update_ledger(ledger_id, wanted, found.version)
        except MetadataConflict:
            continue
        return True
    raise MetadataConflict(f"others keep changing ledger {ledger_id}", ledger_id=ledger_id)
