"""INV-G2 against a model: whatever a repair was told is here, is here, however drops, flushes and crashes fall.

A bookie's storage on the fake disk; its background work waits until a step of the run lets it go on, so adds come
before, while and after a drop is written. An add that was acknowledged after the change marks were taken by which a
drop was decided has to be found for ever; one from before may be gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fastbk.native.index import SETTLED_END
from fastbk.server.index.background import Task, run_to_its_end
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import NO_ENTRY, NO_LEDGER, OK
from tests.fixtures.storage_harness import Book, Life, format_disk

LEDGERS = (1, 2, 3)
STEPS = 70


@dataclass
class Held:
    """The background thread, at the run's mercy."""

    life: Life
    tasks: list[Task] = field(default_factory=list)

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def stop(self) -> None:
        self.tasks.clear()

    def run_one(self) -> None:
        if self.tasks:
            task = self.tasks.pop(0)
            self.life.flusher._jobs.post(task.name, run_to_its_end(task, self.life.store))


@dataclass
class Model:
    """What the bookie has said, and when."""

    now: int = 0
    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    """When each entry was acknowledged last."""
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Ledger -> its change mark, and when it was taken."""
    may_be_gone_before: dict[int, int] = field(default_factory=dict)
    """Ledger -> when the marks were taken by which its copies were to be dropped."""
    seen_gone: int = 0
    kept: int = 0


class Run:
    def __init__(self, fake: FakeDisk, seed: int) -> None:
        self.fake = fake
        self.rng = random.Random(seed)
        self.model = Model()
        self.start()

    def start(self) -> None:
        self.life = Life(self.fake, Book())
        self.held = Held(self.life)
        self.life.flusher.upkeep._background = cast("Any", self.held)

    def step(self) -> None:
        self.model.now += 1
        acts = {
            self.repair: 8.0,
            self.flush: 4.0,
            self.take_marks: 2.0,
            self.drop: 3.0,
            self.work: 8.0,
            self.drop_at_once: 2.0,
            self.crash: 0.6,
        }
        self.rng.choices(list(acts), list(acts.values()))[0]()
        self.life.flusher.poll()

    def repair(self) -> None:
        """Copies of some entries come, most of them here already."""
        ledger_id = self.rng.choice(LEDGERS)
        for entry_id in self.rng.sample(range(12), self.rng.randrange(1, 5)):
            self.life.book.acked.pop((ledger_id, entry_id), None)
            self.life.recovery_add(ledger_id, entry_id, b"%d/%d" % (ledger_id, entry_id) * 20)
            self.life.settle()
            if (ledger_id, entry_id) in self.life.book.acked:
                self.model.acked[ledger_id, entry_id] = self.model.now

    def flush(self) -> None:
        self.life.flush()

    def take_marks(self) -> None:
        ids, marks, cursor = self.life.index.list_settled(0)
        assert cursor == SETTLED_END
        self.model.marks = {
            one: (mark, self.model.now) for one, mark in zip(ids, marks, strict=True)
        }

    def drop(self) -> None:
        some = {
            one: self.model.marks[one]
            for one in LEDGERS
            if one in self.model.marks and self.rng.random() < 0.6
        }
        if some:
            self.life.flusher.drop_ledgers(list(some), [mark for mark, _ in some.values()], "test")
            for one, (_, taken) in some.items():
                before = self.model.may_be_gone_before
                before[one] = max(before.get(one, 0), taken)

    def drop_at_once(self) -> None:
        """Right behind the flush: what was flushed is still in a cache that answers."""
        self.flush()
        self.take_marks()
        self.drop()
        for _ in range(6):
            self.life.flusher.poll()
            self.work()

    def work(self) -> None:
        self.held.run_one()
        self.life.flusher.poll()

    def crash(self) -> None:
        self.life.close()
        self.start()

    def check(self) -> None:
        for (ledger_id, entry_id), acked in self.model.acked.items():
            answer = self.life.ask(self.life.harness.read(ledger_id, entry_id))
            if acked > self.model.may_be_gone_before.get(ledger_id, -1):
                assert answer.status == OK, f"ledger {ledger_id} entry {entry_id}: {answer.status}"
            assert answer.status in (OK, NO_ENTRY, NO_LEDGER)
            if answer.status == OK:
                self.model.kept += 1
                assert answer.entry is not None
                assert answer.entry.endswith(b"%d/%d" % (ledger_id, entry_id) * 20)
            else:
                self.model.seen_gone += 1


def run(seed: int) -> Model:
    with FakeDisk() as fake:
        format_disk(fake)
        made = Run(fake, seed)
        try:
            for _ in range(STEPS):
                made.step()
                made.check()
            made.crash()
            made.check()
        finally:
            made.life.close()
        return made.model


@pytest.fixture(scope="module")
def models() -> list[Model]:
    return [run(seed) for seed in range(40)]


@pytest.mark.slow
def test_what_a_repair_was_told_is_here_stays(models: list[Model]) -> None:
    assert sum(model.kept for model in models) > 1000


@pytest.mark.slow
def test_and_something_was_dropped_at_all(models: list[Model]) -> None:
    """Else the first test proves nothing."""
    assert sum(model.seen_gone for model in models) > 100
