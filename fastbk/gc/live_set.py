"""One cycle of garbage collection: find ledgers that are here and that metadata no longer lists, and have them deleted.

Deleting a live ledger loses data, keeping a dead one costs space; so every doubt keeps (F8):

- the set of local ledgers is taken before metadata is listed, so what is created meanwhile is not in it (INV-G1);
- the listing is complete, or the cycle stops; any error stops it;
- an id has to be missing in two complete cycles, and reading it once more has to say so too;
- a cycle that would delete most of what is here deletes nothing: more likely than that is a wrong metadata URI.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fastbk.errors import Error, NoSuchLedger

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore

PAGE_IDS = 1000
DELETE_IDS = 4096
"""Ids that are handed over at once."""


class LocalLedgers(Protocol):
    """What the cycle needs of the index."""

    def ids(self) -> set[int]:
        """Return the ids of local ledgers; some may be missing, none is wrong. Raises Error."""

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        """Delete ledgers; return how many were there. Raises Error: some may be deleted all the same."""


@dataclass(frozen=True)
class Rules:
    """When a cycle refuses to delete.

    Attributes:
        delete_ratio_max: at most this share of the local ledgers goes in one cycle,
        unchecked_ledgers_max: unless there are no more of them than this.
    """

    delete_ratio_max: float = 0.5
    unchecked_ledgers_max: int = 20


@dataclass(frozen=True)
class Cycle:
    """What a cycle did. `stopped`: why it ended early or deleted nothing; empty when it ran to its end."""

    local: int = 0
    candidates: int = 0
    kept: int = 0
    deleted: int = 0
    refused: bool = False
    stopped: str = ""


@dataclass
class Collector:
    """Remembers the candidates of the last complete cycle."""

    local: LocalLedgers
    store: MetadataStore
    rules: Rules = field(default_factory=Rules)
    suspects: set[int] = field(default_factory=set)
    instance_id: str = ""

    def run(self, *, force: bool = False) -> Cycle:
        """Run one cycle.

        Args:
            force: an operator's word that most ledgers may go; two cycles are still needed.
        """
        local: set[int] = set()
        try:
            local = self.local.ids()
            self._check_instance()
            candidates = local - self._listed()
            twice = sorted(candidates & self.suspects)
            confirmed = [ledger_id for ledger_id in twice if self._is_gone(ledger_id)]
        except (Error, OSError) as error:
            self.suspects = set()
            return Cycle(local=len(local), stopped=f"{type(error).__name__}: {error}")
        self.suspects = candidates
        kept = len(twice) - len(confirmed)
        if self._is_too_much(len(confirmed), len(local)) and not force:
            return Cycle(
                len(local),
                len(candidates),
                kept,
                refused=True,
                stopped=(
                    f"{len(confirmed)} of {len(local)} ledgers are not in metadata: if this is the right"
                    " metadata store, allow it with [gc] delete_ratio_max"
                ),
            )
        deleted, stopped = self._delete(confirmed)
        return Cycle(len(local), len(candidates), kept, deleted, stopped=stopped)

    def _check_instance(self) -> None:
        """Metadata that is another cluster's knows none of our ledgers."""
        instance_id = self.store.instance_id()
        if self.instance_id and instance_id != self.instance_id:
            raise Error(f"the metadata store was {self.instance_id} and is {instance_id} now")
        self.instance_id = instance_id

    def _listed(self) -> set[int]:
        listed: set[int] = set()
        after = -1
        while page := self.store.list_ledgers(after, PAGE_IDS):
            listed.update(page)
            after = page[-1]
        return listed

    def _is_gone(self, ledger_id: int) -> bool:
        try:
            self.store.read_ledger(ledger_id)
        except NoSuchLedger:
            return True
        return False

    def _is_too_much(self, count: int, local: int) -> bool:
        return (
            local > self.rules.unchecked_ledgers_max and count > local * self.rules.delete_ratio_max
        )

    def _delete(self, ledger_ids: list[int]) -> tuple[int, str]:
        """Return how many were deleted, and why no more; an index that is busy costs the cycle, not the bookie."""
        deleted = 0
        for at in range(0, len(ledger_ids), DELETE_IDS):
            reason = f"not in metadata {self.instance_id} in two cycles"
            try:
                deleted += self.local.delete(ledger_ids[at : at + DELETE_IDS], reason)
            except (Error, OSError) as error:
                return deleted, f"{type(error).__name__}: {error}"
        return deleted, ""
