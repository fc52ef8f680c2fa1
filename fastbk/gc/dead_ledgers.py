"""One cycle of garbage collection: find ledgers that are here and that metadata no longer lists, and have them deleted.

Deleting a live ledger loses data, keeping a dead one costs space; so every doubt keeps:

- the set of local ledgers is taken before metadata is listed, so what comes meanwhile is not in it (INV-G1). That set
  is the watermark: a number would have to be trusted to rise, and people may choose ledger ids themselves;
- the listing is complete, or the cycle stops; any error stops it;
- an id has to be missing in two complete cycles, and reading it once more has to say so too;
- metadata that was rolled back, or that an operator holds, deletes nothing (INV-M4);
- a cycle that would delete most of what is here deletes nothing: more likely than that is a wrong metadata URI.

Decisions 17 and 40.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error, MetadataOnHold, MetadataUnavailable
from fastbk.gc.ledger_listing import in_both, listed_ledgers, missing_from, read_ledgers
from fastbk.meta.rollback import HOLD_PATH, MARK_PATH, Mark, decode_mark, evidence, raise_if_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastbk.gc.index_client import AllPairs
    from fastbk.limits import RateLimit
    from fastbk.meta.api import MetadataStore

DELETE_IDS = 4096
"""Ids that are handed over at once."""
READ_COST_IDS = 10
"""Reading one ledger's metadata counts as listing so many ids."""


class Rules(msgspec.Struct, frozen=True):
    """When a cycle refuses to delete.

    Attributes:
        delete_ratio_max: at most this share of the local ledgers goes in one cycle,
        unchecked_ledgers_max: unless there are no more of them than this.
    """

    delete_ratio_max: float = 0.5
    unchecked_ledgers_max: int = 20

    def is_too_much(self, count: int, local: int) -> bool:
        """Return whether so many of so many local ledgers go only on an operator's word."""
        return local > self.unchecked_ledgers_max and count > local * self.delete_ratio_max


class Cycle(msgspec.Struct, frozen=True):
    """What a cycle did. `stopped`: why it ended early or deleted nothing; empty when it ran to its end.

    `unanswered`: it ended early since metadata did not answer.
    """

    local: int = 0
    candidates: int = 0
    kept: int = 0
    deleted: int = 0
    refused: bool = False
    stopped: str = ""
    unanswered: bool = False


class Cluster(msgspec.Struct):
    """Whose metadata it is: another cluster's knows none of our ledgers."""

    store: MetadataStore
    instance_id: str = ""
    mark: Mark = msgspec.field(default_factory=Mark)
    """The newest that was read: a bookie that is not restarted notices a rollback by it, too (INV-M2)."""
    highest_id: int = -1
    """Highest id of the ledgers that listings contained."""

    def check(self) -> None:
        """Raise Error unless the store is the same as ever and may be believed (INV-M4), and what the store raises."""
        instance_id = self.store.instance_id()
        if self.instance_id and instance_id != self.instance_id:
            raise Error(f"the metadata store was {self.instance_id} and is {instance_id} now")
        self.instance_id = instance_id
        mark, hold = self.store.records.read([MARK_PATH, HOLD_PATH])
        raise_if_held(None if hold is None else hold.value)
        published = decode_mark(None if mark is None else mark.value)
        if why := evidence(self.mark, published):
            raise Error(f"{why}: metadata was rolled back, and will be put on hold")
        self.mark = published

    def hold(self) -> str:
        """Return why metadata is on hold, empty while it is not. Raises what `check` does otherwise."""
        try:
            self.check()
        except MetadataOnHold as error:
            return str(error)
        return ""

    def listed(self, pages: Iterable[list[int]]) -> Iterator[list[int]]:
        """Pass on pages of a listing, and keep the highest id."""
        for page in pages:
            self.highest_id = max(self.highest_id, page[-1])
            yield page


class DeadLedgers(msgspec.Struct):
    """Remembers the candidates of the last complete cycle. `pace`: in ids a second."""

    local: AllPairs
    store: MetadataStore
    cluster: Cluster
    pace: RateLimit
    rules: Rules = msgspec.field(default_factory=Rules)
    suspects: array[int] = msgspec.field(default_factory=lambda: array("q"))
    on_local: Callable[[array[int]], None] = lambda ids: None
    on_deleted: Callable[[Sequence[int]], None] = lambda ids: None
    """Called before each part is deleted; what it raises keeps the part (INV-M7)."""

    def run(self, *, force: bool = False) -> Cycle:
        """Run one cycle.

        Args:
            force: an operator's word that most ledgers may go; two cycles are still needed.
        """
        local = array("q")
        try:
            held = self.cluster.hold()
            local = self.local.ids()
            pages = self.cluster.listed(listed_ledgers(self.store, self.pace))
            candidates = array("q", missing_from(local, pages))
            if held:
                # An operator who decides about the hold learns what would be deleted.
                self.suspects = array("q")
                return Cycle(len(local), len(candidates), stopped=held)
            twice = array("q", in_both(candidates, self.suspects))
            if self.rules.is_too_much(len(twice), len(local)) and not force:
                self.suspects = candidates
                return _refused(len(local), len(candidates), len(twice))
            confirmed = self._gone(twice)
            # The store may have become another one while it was listed.
            self.cluster.check()
            self.on_local(local)
        except (Error, OSError) as error:
            self.suspects = array("q")
            stopped = f"{type(error).__name__}: {error}"
            unanswered = isinstance(error, MetadataUnavailable)
            return Cycle(local=len(local), stopped=stopped, unanswered=unanswered)
        self.suspects = candidates
        deleted, stopped = self._delete(confirmed)
        kept = len(twice) - len(confirmed)
        return Cycle(len(local), len(candidates), kept, deleted, stopped=stopped)

    def _gone(self, ledger_ids: array[int]) -> list[int]:
        """Return those that are not there when asked for by name, whatever the listing left out (P21)."""
        found = read_ledgers(self.store, ledger_ids, self.pace, READ_COST_IDS)
        return [one for one, read in found if read is None]

    def _delete(self, ledger_ids: list[int]) -> tuple[int, str]:
        """Return how many were deleted, and why no more; an index that is busy costs the cycle, not the bookie."""
        deleted = 0
        for at in range(0, len(ledger_ids), DELETE_IDS):
            reason = f"not in metadata {self.cluster.instance_id} in two cycles"
            try:
                self.on_deleted(ledger_ids[at : at + DELETE_IDS])
                deleted += self.local.delete(ledger_ids[at : at + DELETE_IDS], reason)
            except (Error, OSError) as error:
                return deleted, f"{type(error).__name__}: {error}"
        return deleted, ""


def _refused(local: int, candidates: int, count: int) -> Cycle:
    return Cycle(
        local,
        candidates,
        refused=True,
        stopped=(
            f"{count} of {local} ledgers are not in metadata: if this is the right metadata store, delete them by"
            " `fastbk bookie gc run --force`, or allow it for good with [gc] delete_ratio_max"
        ),
    )
