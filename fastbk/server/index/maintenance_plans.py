"""What the main loop, the background thread and the flush thread hand to each other about upkeep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.storage.maintenance import Recount

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastbk.native.store import Store
    from fastbk.server.index.forgetting import ForgetCount
    from fastbk.storage.checkpoint import Change, Checkpoint
    from fastbk.storage.maintenance import Compaction, LocationsMerge


@dataclass(slots=True)
class CompactionStatus:
    """Of the compaction begun last. `freed_bytes`: of logs given up, less new ones; `error`: why it ended early."""

    running: bool = False
    moved_bytes: int = 0
    freed_bytes: int = 0
    bad_runs: int = 0
    bad_entries: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the flush thread made of a plan: a change, or why not."""

    plan: LocationsMerge | Compaction
    change: Change | None
    error: Exception | None = None


@dataclass(slots=True)
class Drop:
    """Copies that are to be dropped, by their change marks."""

    ledger_ids: list[int]
    changed: list[int]


def take_together(waiting: list[Drop], ledgers_max: int) -> Drop:
    """Take the first of those that wait, and more until there are so many: each merge is one of everything."""
    drop = waiting.pop(0)
    while waiting and len(drop.ledger_ids) < ledgers_max:
        more = waiting.pop(0)
        drop.ledger_ids.extend(more.ledger_ids)
        drop.changed.extend(more.changed)
    return drop


class RecountPlan:
    """A recount, and now and then a look at how many states could be forgotten: one slice."""

    def __init__(self, checkpoint: Checkpoint, deleted: Collection[int], look: ForgetCount) -> None:
        """Count what lives without `deleted`."""
        self.recount = Recount(checkpoint.commits, deleted)
        self.look = look
        self.wants_forgetting = False
        self._checkpoint = checkpoint
        self._is_done = False

    def step(self, store: Store) -> int:
        """Count everything."""
        if self._is_done:
            return 0
        self._is_done = True
        size_bytes = self.recount.run(store)
        if self.look.before_s:
            files = [entry.file_id for entry in self._checkpoint.manifest.locations]
            states, forgettable = store.count_states(files, self.look.count_before_s)
            self.wants_forgetting = forgettable * self.look.share > states
        return 1 + size_bytes

    def abandon(self) -> None:
        """Do nothing."""
