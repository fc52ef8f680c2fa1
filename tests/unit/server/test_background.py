"""The background thread: whose turn it is, rates, failures, and stopping."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from fastbk.native.store import Store
from fastbk.server.index.background import (
    BURST_S,
    COMPACTION,
    MERGE,
    Background,
    DirectBackground,
    Task,
    TaskFailed,
    TaskStopped,
)
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import StoreHarness
from tests.fixtures.wait import wait_until

FAST = 1e12


@dataclass
class Work:
    """A plan of so many slices that notes each; it may have to wait for a gate, or fail."""

    name: str
    slices: int
    done: list[str]
    gate: threading.Event | None = None
    failure: Exception | None = None
    abandoned: bool = False
    threads: set[int] = field(default_factory=set)

    def step(self, store: Store) -> int:
        self.threads.add(threading.get_ident())
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        if not self.slices:
            return 0
        self.slices -= 1
        self.done.append(self.name)
        return 1000

    def abandon(self) -> None:
        self.abandoned = True


class Posted:
    """Where results go."""

    def __init__(self) -> None:
        self.results: list[tuple[str, object]] = []

    def post(self, name: str, result: object) -> None:
        self.results.append((name, result))

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.results) >= count, f"{count} results")


@pytest.fixture
def store() -> Iterator[Store]:
    with FakeDisk() as fake:
        harness = StoreHarness(fake)
        harness.birth()
        yield harness.start().store
        harness.end()


@pytest.fixture
def posted() -> Posted:
    return Posted()


@pytest.fixture
def beats() -> list[str]:
    return []


@pytest.fixture
def background(store: Store, posted: Posted, beats: list[str]) -> Iterator[Background]:
    made = Background(store, posted.post, lambda: beats.append("beat"))
    yield made
    made.stop()


def task(work: Work, priority: int = MERGE, bytes_per_s: float = FAST) -> Task:
    return Task(work.name, priority, work, Task.limit(bytes_per_s))


def test_a_merge_does_not_wait_behind_a_compaction(background: Background, posted: Posted) -> None:
    order: list[str] = []
    gate = threading.Event()
    background.submit(task(Work("compaction", 5, order, gate), COMPACTION))
    merge = Work("merge", 3, order)
    background.submit(task(merge))
    gate.set()
    posted.wait(2)
    assert [name for name, _ in posted.results] == ["merge", "compaction"]
    first = order.index("merge")
    assert order[first : first + 3] == ["merge"] * 3, "the merge had every turn once it was there"
    assert merge.threads != {threading.get_ident()}


def test_the_heartbeat_is_odd_while_a_slice_is_under_way(
    background: Background, posted: Posted, beats: list[str]
) -> None:
    gate = threading.Event()
    background.submit(task(Work("held", 1, [], gate)))
    wait_until(lambda: len(beats) == 1, "the slice begins")
    gate.set()
    posted.wait(1)
    assert len(beats) == 4, "the slice, and the one that finds nothing left"
    background.submit(task(Work("fails", 1, [], failure=OSError("x"))))
    posted.wait(2)
    assert len(beats) % 2 == 0


def test_what_waits_for_its_rate_lets_others_go_first(
    background: Background, posted: Posted
) -> None:
    order: list[str] = []
    slow = task(Work("slow", 1000, order), MERGE, bytes_per_s=100.0)  # ten seconds a slice
    background.submit(slow)
    wait_until(lambda: bool(order), "its first slice")
    background.submit(task(Work("fast", 3, order), COMPACTION))
    posted.wait(1)
    assert posted.results[0][0] == "fast"
    slow.is_stopped = True
    background.submit(task(Work("nudge", 0, order)))
    posted.wait(3)
    failed = next(result for _, result in posted.results if isinstance(result, TaskFailed))
    assert isinstance(failed.error, TaskStopped)
    assert failed.task is slow
    assert slow.plan.abandoned  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_rate_is_kept_however_long_a_slice_has_to_be_paid_for(
    background: Background, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks in between are for what may have changed; they give no slice away."""
    monkeypatch.setattr("fastbk.server.index.background.WAIT_MAX_S", 0.01)
    began_s = time.monotonic()
    background.submit(task(Work("slow", 4, []), bytes_per_s=5000.0))  # 0.2 s a slice
    posted.wait(1)
    assert time.monotonic() - began_s >= 0.8 - BURST_S


def test_tasks_with_one_bucket_take_turns(background: Background, posted: Posted) -> None:
    order: list[str] = []
    gate = threading.Event()
    bucket = Task.limit(100_000.0)  # 10 ms a slice: only one is ready at a time
    for name in ("a", "b"):
        background.submit(Task(name, MERGE, Work(name, 4, order, gate), bucket))
    gate.set()
    posted.wait(2)
    assert sorted(order[2:4]) == ["a", "b"], order


def test_a_failure_is_a_result_and_ends_only_its_task(
    background: Background, posted: Posted
) -> None:
    order: list[str] = []
    bad = Work("bad", 3, order, failure=OSError("broken"))
    background.submit(task(bad))
    background.submit(task(Work("good", 2, order)))
    posted.wait(2)
    results = dict(posted.results)
    assert isinstance(results["bad"], TaskFailed)
    assert str(results["bad"].error) == "broken"
    assert bad.abandoned
    assert isinstance(results["good"], Task)


def test_stopping_abandons_what_is_not_done(store: Store, posted: Posted) -> None:
    background = Background(store, posted.post)
    work = Work("endless", 1 << 40, [])
    background.submit(task(work, bytes_per_s=1.0))
    wait_until(lambda: bool(work.done), "its first slice")
    background.stop()
    assert work.abandoned
    assert posted.results == []


def test_in_one_thread_it_is_done_at_once(store: Store, posted: Posted) -> None:
    direct = DirectBackground(store, posted.post)
    work = Work("work", 3, [])
    direct.submit(task(work, bytes_per_s=1.0))
    assert work.done == ["work"] * 3
    assert work.threads == {threading.get_ident()}
    assert posted.results[0][0] == "work"


def test_a_bucket_pays_for_bytes_with_time() -> None:
    now_s = [100.0]
    bucket = Task.limit(1000.0, clock_s=lambda: now_s[0])
    assert bucket.take(500) == pytest.approx(0.5)
    assert bucket.take(500) == pytest.approx(1.0)
    now_s[0] += 1.0
    assert bucket.take(0) == 0.0
    now_s[0] += 1000.0
    assert bucket.take(1000) == pytest.approx(1.0 - BURST_S), "a long rest saves up little"
    bucket.per_s = 2000.0
    assert bucket.take(1000) == pytest.approx(1.0 - BURST_S + 0.5)
