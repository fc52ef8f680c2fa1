"""Whether all of some shares is on disk: against brute force, and one question at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from fastbk.model.quorum import share, write_set
from fastbk.server.gc_messages import Share
from fastbk.server.index.gc_port import HeldCheck, holds
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import DIRECTORY, StoreHarness


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    with FakeDisk(seed=3) as fake:
        harness = StoreHarness(fake)
        harness.birth()
        harness.start()
        yield harness
        harness.end()


def of(first: int, last: int, index: int = 0, ensemble: int = 1, write_quorum: int = 1) -> Share:
    return Share(first=first, last=last, index=index, ensemble=ensemble, write_quorum=write_quorum)


def test_shares_are_those_of_write_sets() -> None:
    for ensemble in range(1, 6):
        for quorum in range(1, ensemble + 1):
            for index in range(ensemble):
                found = [
                    n
                    for low, high in share(index, ensemble, quorum, 3, 40)
                    for n in range(low, high + 1)
                ]
                assert found == [n for n in range(3, 41) if index in write_set(n, ensemble, quorum)]


def test_every_missing_entry_is_missed(harness: StoreHarness, rng: random.Random) -> None:
    there = {1: set(range(60)), 2: set(), 3: set()}
    for ledger_id, (index, ensemble, quorum) in ((2, (1, 3, 2)), (3, (4, 5, 3))):
        for low, high in share(index, ensemble, quorum, 0, 500):
            there[ledger_id] |= set(range(low, high + 1))
    missing = {ledger_id: rng.choice(sorted(ids)) for ledger_id, ids in there.items()}
    entries = [
        (ledger, entry)
        for ledger, ids in there.items()
        for entry in ids
        if missing[ledger] != entry
    ]
    rng.shuffle(entries)
    for at in range(0, len(entries), 150):
        harness.flush(entries[at : at + 150])
    assert harness.life is not None
    store = harness.life.store
    shares = {1: [of(0, 29), of(30, 59)], 2: [of(0, 500, 1, 3, 2)], 3: [of(0, 500, 4, 5, 3)]}
    for ledger_id, wanted in shares.items():
        assert not holds(store, ledger_id, wanted)
        gap = missing[ledger_id]
        last = wanted[-1].last
        ends = [(0, gap - 1), (gap + 1, last)]
        first = wanted[0]
        for low, high in ends:
            part = of(low, high, first.index, first.ensemble, first.write_quorum)
            assert holds(store, ledger_id, [part]), (ledger_id, low, high, gap)
    harness.flush(missing.items())
    for ledger_id, wanted in shares.items():
        assert holds(store, ledger_id, wanted)
        assert not holds(store, ledger_id, [*wanted, of(501, 501)])
    assert holds(store, 9, [])
    assert not holds(store, 9, [of(0, 0)])
    assert DIRECTORY


def test_damaged_locations_are_no_answer(harness: StoreHarness) -> None:
    harness.flush([(1, n) for n in range(5)])
    harness.fake.corrupt(f"{DIRECTORY}/locations/0000000000000001.loc", 4096 + 3)
    harness.restart()
    assert harness.life is not None
    assert not holds(harness.life.store, 1, [of(0, 4)])


def test_one_question_at_a_time(harness: StoreHarness) -> None:
    harness.flush([(1, n) for n in range(5)])
    assert harness.life is not None
    jobs: list[Callable[[], None]] = []
    held = HeldCheck(harness.life.store, jobs.append)
    assert held.check(1, [of(0, 4)]) is None
    assert held.check(1, [of(0, 4)]) is None
    assert held.check(2, [of(0, 4)]) is None, "the first is being found out"
    jobs.pop()()
    assert not jobs
    assert held.check(2, [of(0, 4)]) is None, "that was the answer to another question"
    jobs.pop()()
    assert held.check(2, [of(0, 4)]) is False
    assert held.check(1, [of(0, 4)]) is None
    jobs.pop()()
    assert held.check(1, [of(0, 4)]) is True
