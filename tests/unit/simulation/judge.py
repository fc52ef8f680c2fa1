"""A quiet world whose judges are told made-up histories: nothing runs in it but what a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.procedure import BookieRequest, ReadEntry, Reply
from tests.fixtures.decide import RECOVERY, Kind
from tests.simulation.answering import Stored
from tests.simulation.scripts.stage import plan_of
from tests.simulation.workload import KEY, data_of
from tests.simulation.world import World

BAD: list[tuple[str, str, Callable[[Judge], None]]] = []


def bad(name: str) -> Callable[[Callable[[Judge], None]], Callable[[Judge], None]]:
    """Register a history that breaks that invariant."""

    def note(history: Callable[[Judge], None]) -> Callable[[Judge], None]:
        BAD.append((name, history.__name__, history))
        return history

    return note


class Judge:
    """The checks of one ledger, on b0, b1 and b2 with Qw 3 and Qa 2."""

    def __init__(self, *, is_deferred: bool = False) -> None:
        plan = plan_of(3, 3, 2, spare=3)
        plan.is_deferred = is_deferred
        self.world = World(plan)
        self.checks = self.world.checks
        self.ledger = self.world.workload.create(plan.bookies[:3])
        self.facts = self.checks.facts[0]

    def write(self, count: int) -> None:
        first = len(self.ledger.written)
        self.ledger.written += [data_of(0, first + number) for number in range(count)]

    def add(
        self,
        bookie: int,
        entry_id: int,
        *,
        data: bytes | None = None,
        recovery: bool = False,
        key: bytes = KEY,
    ) -> None:
        """A bookie takes an add and acknowledges it."""
        if data is None:
            data = self.ledger.written[entry_id]
        length = sum(len(one) for one in self.ledger.written[: entry_id + 1])
        stored = Stored(entry_id - 1, length, data)
        record = (0, Kind.ADD, RECOVERY if recovery else 0, key, entry_id, stored)
        self.checks.decided(self.world.bookies[f"b{bookie}"], record)
        self.checks.add_durable(self.world.bookies[f"b{bookie}"], "c0", record)

    def store(self, count: int, bookies: tuple[int, ...] = (0, 1, 2)) -> None:
        """The writer adds entries, these bookies take them."""
        first = len(self.ledger.written)
        self.write(count)
        for entry_id in range(first, first + count):
            for bookie in bookies:
                self.add(bookie, entry_id)

    def acked(self, head: int) -> None:
        self.checks.acked("c0", 0, head)

    def fence(self, bookie: int) -> None:
        self.checks.fence_answered(self.world.bookies[f"b{bookie}"], 0)

    def answer(self, bookie: int, request: BookieRequest, reply: Reply) -> None:
        self.checks.answered(self.world.bookies[f"b{bookie}"], "c1", 0, request, reply)

    def recovery_reads(self) -> None:
        """A recoverer has counted its fences and begins to read."""
        self.checks.asked("c1", self.ledger, "b0", ReadEntry(0, fence=True))

    @property
    def metadata(self) -> LedgerMetadata:
        return self.facts.metadata

    def change(
        self, new: LedgerMetadata, client: str = "c1", base_version: int | None = None
    ) -> None:
        before = self.world.store.ledgers[0]
        base = before.version if base_version is None else base_version
        now = VersionedLedger(new, before.version + 1)
        self.world.store.ledgers[0] = now
        self.checks.metadata_changed(0, before, now, client, base)

    def close(self, last: int, length: int | None = None) -> None:
        if length is None:
            length = sum(len(one) for one in self.ledger.written[: last + 1])
        self.change(
            replace(self.metadata, state=LedgerState.CLOSED, last_entry_id=last, length=length)
        )

    def ensemble(self, first: int, *names: str) -> None:
        """The writer changes its ensemble from an entry on."""
        kept = [one for one in self.metadata.fragments if one.first_entry_id < first]
        self.change(replace(self.metadata, fragments=(*kept, Fragment(first, names))), "c0")
