"""Flushes, deletions, recounts, merges, compactions, crashes in any order, against a model: nothing that lives is lost.

Merges and compactions go on in slices between all else, as the background thread does them. Faults strike any
write, and the power goes at any moment; what is found afterwards is what a restart finds. `run_gc_model` is all
of it, for as many steps as one likes; the test here makes a few thousand.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fastbk.native.store import DELETED, FlushContents, LedgerState
from fastbk.storage import maintenance
from fastbk.storage.checkpoint import Change, CheckpointFailed, CheckpointSettings
from fastbk.storage.commits import FAILURES
from fastbk.storage.maintenance import Compaction, CompactionSettings, LocationsMerge, Recount
from fastbk.storage.manifest import ManifestLost
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import NO_ENTRY, OK, Life, StoreHarness, entry_bytes

LEDGERS_ALIVE_MAX = 12
ENTRIES_MAX = 400
"""Of a ledger; then it is deleted."""
READS_A_STEP = 2
FULL_CHECK_STEPS = 250
FAULTS = (
    {"action": "cut"},
    {"action": "fail", "errno": errno.EIO},
    {"action": "fail", "errno": errno.ENOSPC},
    {"action": "fail", "errno": errno.EIO, "times": 5},
    {"action": "short"},
)


class GcModel:
    """One bookie's store over many lives, and what must be in it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.harness = StoreHarness(
            FakeDisk(seed=seed),
            CheckpointSettings(
                attempts_max=1,
                entry_log_size_bytes=20_000,
                compaction=CompactionSettings(
                    window_bytes=1 << 16, log_size_bytes=60_000, runs_max=40
                ),
            ),
        )
        self.harness.birth()
        self.alive: dict[int, set[int]] = {}
        """Ledger -> ids that a committed flush holds."""
        self.cache: dict[int, set[int]] = {}
        """Not flushed for sure: the journal gives it back after a crash."""
        self.in_doubt: dict[int, tuple[dict[int, set[int]], set[int]]] = {}
        """Flushes that failed since the last one that did not: mark -> entries, tombstones. One may count after all."""
        self.tombstones: set[int] = set()
        """Deleted, durable."""
        self.dying: set[int] = set()
        """Deleted, not durable yet."""
        self.forgotten: set[int] = set()
        self.next_ledger = 1
        self.mark = 0
        self.next_mark = 1
        self.plans: list[LocationsMerge | Compaction] = []
        self.start()

    @property
    def life(self) -> Life:
        assert self.harness.life is not None
        return self.harness.life

    # ---- lives

    def start(self) -> None:
        """Open what is on the disk, and learn from it what counts."""
        self.harness.start()
        checkpoint, store = self.life.checkpoint, self.life.store
        mark = checkpoint.manifest.mark
        if mark in self.in_doubt:
            self.flushed(mark)
        assert mark == self.mark, "the last finished flush counts, or one that was in doubt"
        self.in_doubt.clear()
        newest: dict[int, LedgerState] = {}
        for entry in checkpoint.manifest.locations:
            newest |= {state.ledger_id: state for state in store.states(entry.file_id)}
        found = {ledger_id for ledger_id, state in newest.items() if state.flags & DELETED}
        assert found <= self.tombstones
        self.forgotten |= self.tombstones - found
        self.tombstones = found

    def crash(self) -> None:
        """The power goes; or only the process dies."""
        mode = self.random.choice(("lose", "keep", "random", "kill"))
        if mode != "kill" and not self.harness.fake.is_off:
            self.harness.fake.cut()
        self.harness.fake.clear_faults()
        for plan in self.plans:
            plan.abandon()
        self.plans.clear()
        self.harness.end()
        if mode != "kill" or self.harness.fake.is_off:
            self.harness.fake.restart(
                "random" if mode == "kill" else mode, self.random.randrange(1 << 30)
            )
        self.counts["crashes"] += 1
        self.start()
        self.check()

    # ---- steps

    def step(self) -> None:
        """Do one thing; a crash follows when the power went within it."""
        action = self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.counts[action.__name__] += 1
        try:
            action(self)
        except CheckpointFailed:
            self.counts["failures"] += 1
        except (OSError, ManifestLost):
            assert self.harness.fake.is_off
        if self.harness.fake.is_off or self.random.random() < 0.02:
            self.crash()
        for _ in range(READS_A_STEP):
            self.read_one()

    def add(self) -> None:
        """Some entries, into the cache."""
        for _ in range(self.random.randint(1, 4)):
            if len(self.alive) + len(self.cache) < LEDGERS_ALIVE_MAX or not self.alive:
                ledger_id, self.next_ledger = self.next_ledger, self.next_ledger + 1
            else:
                ledger_id = self.random.choice(sorted(self.alive))
            if ledger_id in self.dying:
                continue
            held = self.alive.get(ledger_id, set()) | self.cache.get(ledger_id, set())
            first = max(held, default=-1) + self.random.choice((1, 1, 1, 7))
            ids = range(first, first + self.random.choice((1, 2, 30)))
            self.cache.setdefault(ledger_id, set()).update(ids)

    def flush(self) -> None:
        """The cache, and the tombstones."""
        checkpoint = self.life.checkpoint
        entries = {ledger: set(ids) for ledger, ids in self.cache.items()}
        # What failed before may count all the same, with less in it: no mark is used twice.
        mark = self.next_mark
        self.next_mark += 1
        self.in_doubt[mark] = (entries, set(self.dying))
        items = FlushContents.from_entries(
            [(led, i, entry_bytes(led, i)) for led, ids in entries.items() for i in ids],
            [LedgerState(led, max(ids)) for led, ids in entries.items()]
            + [LedgerState(led, flags=DELETED, deleted_s=1) for led in self.dying],
        )
        change = checkpoint.run(self.life.store, items, mark)
        self.flushed(mark)
        self.install(change)

    def flushed(self, mark: int) -> None:
        """A flush counts; those before it do not."""
        entries, deleted = self.in_doubt.pop(mark)
        self.in_doubt.clear()
        self.mark = mark
        for ledger_id, ids in entries.items():
            self.alive.setdefault(ledger_id, set()).update(ids)
            cached = self.cache.get(ledger_id, set())  # nothing of one that was deleted since
            cached -= ids
            if not cached:
                self.cache.pop(ledger_id, None)
        for ledger_id in deleted:
            self.alive.pop(ledger_id, None)
        self.tombstones |= deleted
        self.dying -= deleted

    def delete(self) -> None:
        """A ledger: refused from now on, durable with the next flush."""
        if not self.alive:
            return
        large = [ledger_id for ledger_id, ids in self.alive.items() if len(ids) > ENTRIES_MAX]
        ledger_id = self.random.choice(sorted(large or self.alive))
        self.dying.add(ledger_id)
        self.cache.pop(ledger_id, None)

    def recount(self) -> None:
        """What lives; logs in which nothing does go."""
        recount = Recount(self.life.checkpoint.commits, self.tombstones)
        try:
            recount.run(self.life.store)
        except OSError as error:
            raise CheckpointFailed(str(error)) from error
        change = self.life.checkpoint.commit_recount(self.life.store, recount)
        if change is not None:
            self.install(change)

    def plan_merge(self) -> None:
        """If one is due, or of everything; then states may be forgotten."""
        checkpoint = self.life.checkpoint
        if self.random.random() < 0.7:
            merging = checkpoint.plan_merge(self.tombstones)
        else:
            forget = self.random.choice((0, 2))
            merging = checkpoint.plan_merge(
                self.tombstones, everything=True, forget_deleted_before_s=forget
            )
        if merging is not None:
            self.plans.append(merging)

    def plan_compaction(self) -> None:
        """Some sealed logs, the emptiest first or any."""
        checkpoint = self.life.checkpoint
        sealed = [log.log_id for log in checkpoint.manifest.logs if log.sealed]
        chosen = self.random.sample(sealed, min(len(sealed), self.random.randint(1, 4)))
        deadline_s = float("inf") if self.random.random() < 0.8 else 0.0
        plan = checkpoint.plan_compaction(chosen, self.tombstones, deadline_s=deadline_s)
        if plan is not None:
            self.plans.append(plan)

    def go_on(self) -> None:
        """Slices of a merge or a compaction; committed at its end."""
        if not self.plans:
            return
        plan = self.random.choice(self.plans)
        try:
            for _ in range(self.random.randint(1, 4)):
                if not plan.step(self.life.store):
                    self.commit(plan)
                    return
        except FAILURES as error:
            self.plans.remove(plan)
            self.life.checkpoint.abandon(self.life.store, plan)
            raise CheckpointFailed(str(error)) from error

    def commit(self, plan: LocationsMerge | Compaction) -> None:
        """What was written counts from now on."""
        checkpoint, store = self.life.checkpoint, self.life.store
        if isinstance(plan, LocationsMerge):
            change = checkpoint.commit_merge(store, plan)
            self.counts["merges"] += 1
        else:
            change = checkpoint.commit_compaction(store, plan)
            self.counts["compactions"] += 1
            self.counts["logs_compacted"] += len(plan.done)
            assert not plan.counts.bad_runs, "nothing here is damaged"
        self.plans.remove(plan)
        self.install(change)

    def give_up(self) -> None:
        """A merge or a compaction, half done."""
        if self.plans:
            plan = self.plans.pop()
            self.life.checkpoint.abandon(self.life.store, plan)

    def arm(self) -> None:
        """A fault some operations from here."""
        self.harness.fake.fault(nth=self.random.randint(1, 60), **self.random.choice(FAULTS))  # type: ignore[arg-type]

    def disarm(self) -> None:
        """The disk is well again."""
        self.harness.fake.clear_faults()

    def install(self, change: Change) -> None:
        """The main loop's part, and the flush thread's after it."""
        change.install(self.life.store)
        self.life.checkpoint.commits.clean_up(self.life.store, change)

    # ---- judging

    def read_one(self) -> None:
        """Any entry that lives."""
        ledger_id = self.random.choice(list(self.alive)) if self.alive else 0
        ids = self.alive.get(ledger_id)
        if ids:
            self.expect(ledger_id, self.random.choice(list(ids)))

    def expect(self, ledger_id: int, entry_id: int) -> None:
        """Read it; a fault that is armed may strike the read, which is then tried again."""
        result = self.life.store.read(ledger_id, entry_id, entry_id)
        if result.status != OK:
            self.harness.fake.clear_faults()
            if self.harness.fake.is_off:
                return
            result = self.life.store.read(ledger_id, entry_id, entry_id)
        assert result.status == OK, f"seed {self.seed}: {ledger_id}/{entry_id}: {result}"
        assert result.entry == entry_bytes(ledger_id, entry_id)
        self.counts["reads"] += 1

    def check(self) -> None:
        """Everything that lives is there, nothing that was forgotten is, and the folders hold what is named."""
        self.harness.fake.clear_faults()
        if self.harness.fake.is_off:
            self.crash()
            return
        for ledger_id, ids in self.alive.items():
            if ledger_id in self.dying:
                continue
            for entry_id in ids:
                self.expect(ledger_id, entry_id)
            assert self.life.store.read(ledger_id, max(ids) + 1, 2**62).status == NO_ENTRY
        for ledger_id in self.forgotten:
            assert self.life.store.read(ledger_id, 0, 2**62).status == NO_ENTRY, "it came back"
        self.forgotten.clear()
        self.counts["checks"] += 1

    def settle(self) -> None:
        """With a disk that is well: everything is committed, and nothing but what counts is on it."""
        self.harness.fake.clear_faults()
        if self.harness.fake.is_off:
            self.crash()
        while self.plans:
            self.give_up()
        self.flush()
        self.recount()
        self.flush()
        self.check()
        self.harness.check_files()
        manifest = self.life.checkpoint.manifest
        assert all(log.live_bytes or not log.sealed for log in manifest.logs), "a dead log"


ACTIONS: dict[Callable[[GcModel], None], int] = {
    GcModel.add: 30,
    GcModel.flush: 12,
    GcModel.delete: 2,
    GcModel.recount: 3,
    GcModel.plan_merge: 3,
    GcModel.plan_compaction: 4,
    GcModel.go_on: 25,
    GcModel.give_up: 1,
    GcModel.arm: 2,
    GcModel.disarm: 2,
}


@contextmanager
def small_tiers() -> Iterator[None]:
    """Merges after three files."""
    before = maintenance.MERGE_FILES_MIN
    maintenance.MERGE_FILES_MIN = 3
    try:
        yield
    finally:
        maintenance.MERGE_FILES_MIN = before


def run_gc_model(seed: int, steps: int) -> dict[str, int]:
    """Make so many steps; return what was done. Raises AssertionError, naming the seed, when an entry is lost."""
    with small_tiers():
        model = GcModel(seed)
        try:
            for number in range(1, steps + 1):
                model.step()
                if number % FULL_CHECK_STEPS == 0:
                    model.settle()
            model.settle()
        finally:
            for plan in model.plans:
                plan.abandon()
            model.harness.end()
            model.harness.fake.destroy()
        return {"steps": steps, **model.counts}


@pytest.mark.slow
def test_nothing_that_lives_is_lost(rng: random.Random) -> None:
    seed = rng.randrange(1 << 30)
    counts: Counter[str] = Counter()
    for part in range(3):
        counts.update(run_gc_model(seed + part, 1000))
    for name in ("merges", "compactions", "logs_compacted", "crashes", "reads", "failures"):
        assert counts[name] > 0, f"seed {seed}: {name}: {counts}"


def test_a_ledger_is_deleted_before_a_flush_in_doubt_turns_out_to_count() -> None:
    with small_tiers():
        model = GcModel(1)
        try:
            model.cache[1] = {0}
            model.flush()
            model.cache[1] = {1}
            model.in_doubt[model.next_mark] = ({1: {1}}, set())
            model.delete()
            model.flushed(model.next_mark)
            assert model.alive == {1: {0, 1}}
            assert model.dying == {1}
            assert not model.cache
        finally:
            model.harness.end()
            model.harness.fake.destroy()
