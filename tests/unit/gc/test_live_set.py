"""What a cycle deletes, and every doubt that keeps (F8, INV-G1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fastbk.errors import Error, MetadataUnavailable, NoSuchLedger
from fastbk.gc.live_set import DELETE_IDS, PAGE_IDS, Collector, Rules


@dataclass
class Local:
    held: set[int]
    deleted: list[tuple[list[int], str]] = field(default_factory=list)
    on_ids: Callable[[], None] = lambda: None

    def ids(self) -> set[int]:
        found = set(self.held)
        self.on_ids()
        return found

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        assert len(ledger_ids) <= DELETE_IDS
        self.deleted.append((ledger_ids, reason))
        self.held -= set(ledger_ids)
        return len(ledger_ids)


@dataclass
class Metadata:
    """Only what a cycle asks."""

    ledgers: set[int]
    instance: str = "cluster-1"
    fail_after: int = 1 << 30
    calls: int = 0
    hidden: set[int] = field(default_factory=set)

    def _called(self) -> None:
        self.calls += 1
        if self.calls > self.fail_after:
            raise MetadataUnavailable("gone")

    def instance_id(self) -> str:
        self._called()
        return self.instance

    def list_ledgers(self, after: int = -1, count_max: int = 1000) -> list[int]:
        self._called()
        return sorted(n for n in self.ledgers - self.hidden if n > after)[:count_max]

    def read_ledger(self, ledger_id: int) -> object:
        self._called()
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(f"{ledger_id}")
        return object()


def collector(local: Local, metadata: Metadata, **rules: float) -> Collector:
    return Collector(local, metadata, Rules(**rules))  # type: ignore[arg-type]


def test_a_ledger_goes_in_the_second_cycle_in_which_it_is_missing() -> None:
    local, metadata = Local({1, 2, 3}), Metadata({1, 3})
    gc = collector(local, metadata)
    first = gc.run()
    assert (first.candidates, first.deleted, first.stopped) == (1, 0, "")
    assert gc.run().deleted == 1
    ((ids, reason),) = local.deleted
    assert ids == [2]
    assert "cluster-1" in reason
    assert gc.run().candidates == 0


def test_what_is_created_after_the_local_set_was_taken_stays() -> None:
    """INV-G1: a ledger that comes in between is not in the set, whatever the listing saw."""
    metadata = Metadata(set())
    local = Local({1})

    def create() -> None:
        local.held.add(50)

    local.on_ids = create
    gc = collector(local, metadata)
    gc.run()
    gc.run()
    gc.run()
    assert 50 not in {n for ids, _ in local.deleted[:1] for n in ids}


def test_an_id_that_comes_back_is_a_candidate_anew() -> None:
    local, metadata = Local({1, 2}), Metadata({2})
    gc = collector(local, metadata)
    gc.run()
    metadata.ledgers.add(1)
    assert gc.run().candidates == 0
    metadata.ledgers.discard(1)
    assert gc.run().deleted == 0
    assert gc.run().deleted == 1


def test_a_candidate_is_read_once_more() -> None:
    """A listing that hides a ledger does not kill it."""
    local, metadata = Local({1, 2}), Metadata({1, 2}, hidden={2})
    gc = collector(local, metadata)
    gc.run()
    cycle = gc.run()
    assert (cycle.candidates, cycle.kept, cycle.deleted) == (1, 1, 0)
    assert local.deleted == []


@pytest.mark.parametrize("fail_after", range(6))
def test_any_error_stops_the_cycle_and_forgets_the_suspects(fail_after: int) -> None:
    local, metadata = Local({1, 2}), Metadata({1})
    gc = collector(local, metadata)
    gc.run()
    metadata.calls = 0
    metadata.fail_after = fail_after
    cycle = gc.run()
    if cycle.stopped:
        assert "MetadataUnavailable" in cycle.stopped
        assert local.deleted == []
        metadata.fail_after = 1 << 30
        assert gc.run().deleted == 0, "two complete cycles in a row"
        assert gc.run().deleted == 1
    else:
        assert cycle.deleted == 1


def test_most_of_everything_is_not_deleted() -> None:
    local, metadata = Local(set(range(100))), Metadata(set(range(49)))
    gc = collector(local, metadata)
    gc.run()
    cycle = gc.run()
    assert cycle.refused
    assert cycle.deleted == 0
    assert "51 of 100" in cycle.stopped
    assert gc.run(force=True).deleted == 51


def test_few_ledgers_may_all_go() -> None:
    local = Local(set(range(20)))
    gc = collector(local, Metadata(set()))
    gc.run()
    assert gc.run().deleted == 20


def test_another_cluster_s_metadata_deletes_nothing() -> None:
    local, metadata = Local({1, 2}), Metadata({1})
    gc = collector(local, metadata)
    gc.run()
    metadata.instance = "cluster-2"
    assert "cluster-2" in gc.run().stopped
    assert gc.run().stopped
    assert local.deleted == []


def test_pages_and_chunks() -> None:
    count = 2 * DELETE_IDS + PAGE_IDS
    local, metadata = Local(set(range(count))), Metadata(set(range(0, count, 2)))
    gc = collector(local, metadata, delete_ratio_max=1.0)
    gc.run()
    assert gc.run().deleted == count // 2
    assert local.held == metadata.ledgers


def test_an_index_that_falls_silent_in_a_deletion_costs_the_cycle_only() -> None:
    local, metadata = Local({1, 2}), Metadata({1})
    gc = collector(local, metadata)
    gc.run()

    def fail(ledger_ids: list[int], reason: str) -> int:
        raise Error(f"no answer about {ledger_ids}")

    local.delete = fail  # type: ignore[method-assign]
    cycle = gc.run()
    assert (cycle.deleted, cycle.stopped) == (0, "Error: no answer about [2]")
    del local.delete  # type: ignore[method-assign]
    assert gc.run().deleted == 1, "the next cycle asks again"
