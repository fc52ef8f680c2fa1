"""What a cycle deletes, and every doubt that keeps (F8, INV-G1, P21)."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from fastbk.errors import Error, MetadataUnavailable
from fastbk.gc.dead_ledgers import DELETE_IDS, READ_COST_IDS, Cluster, DeadLedgers, Rules
from fastbk.gc.ledger_listing import PAGE_IDS
from fastbk.limits import RateLimit
from fastbk.meta.records import Change, RecordStore
from fastbk.meta.rollback import MARK_PATH, Mark, confirm_hold, new_hold, place_hold, raise_mark
from tests.fixtures.metadata import records_in_memory


@dataclass
class Local:
    held: set[int]
    deleted: list[tuple[list[int], str]] = field(default_factory=list)
    on_ids: Callable[[], None] = lambda: None

    def ids(self) -> array[int]:
        found = array("q", sorted(self.held))
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
    records: RecordStore = field(default_factory=records_in_memory)

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

    def read_ledgers(self, ledger_ids: Sequence[int]) -> list[object]:
        self._called()
        return [object() if one in self.ledgers else None for one in ledger_ids]


@dataclass
class Clock:
    now_s: float = 0.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def collector(
    local: Local, metadata: Metadata, *, per_s: float = 1e9, **rules: float
) -> DeadLedgers:
    clock = Clock()
    pace = RateLimit(per_s, clock.pause, lambda: clock.now_s)
    return DeadLedgers(local, metadata, Cluster(metadata), pace, Rules(**rules))  # type: ignore[arg-type]


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


def test_metadata_on_hold_deletes_nothing_and_says_what_it_would() -> None:
    """INV-M4; after the operator's word it takes two whole cycles, as ever."""
    local, metadata = Local({1, 2, 3}), Metadata({1, 3})
    gc = collector(local, metadata)
    assert gc.run().candidates == 1
    hold = place_hold(metadata, new_hold("rolled back"))
    for force in (False, True):
        held = gc.run(force=force)
        assert (held.candidates, held.deleted) == (1, 0)
        assert "rolled back" in held.stopped
    assert confirm_hold(metadata, hold.hold_id)
    assert gc.run().deleted == 0
    assert gc.run().deleted == 1
    assert gc.cluster.highest_id == 3


def test_a_hold_in_the_midst_of_a_cycle_deletes_nothing() -> None:
    local, metadata = Local({1, 2, 3}), Metadata({1, 3})
    gc = collector(local, metadata)
    gc.run()
    local.on_ids = lambda: place_hold(metadata, new_hold("just now")) and None
    cycle = gc.run()
    assert (cycle.deleted, local.deleted) == (0, [])
    assert "just now" in cycle.stopped


def test_metadata_that_is_rolled_back_under_a_running_bookie_deletes_nothing() -> None:
    """INV-M2: gc may see it before the supervisor has placed the hold."""
    local, metadata = Local({1, 2, 3}), Metadata({1, 2, 3})
    raise_mark(metadata, Mark(age=5, highest_id=3))  # type: ignore[arg-type]
    gc = collector(local, metadata)
    assert gc.run().stopped == ""
    metadata.ledgers.discard(2)
    (found,) = metadata.records.read([MARK_PATH])
    assert found is not None
    metadata.records.change([Change(MARK_PATH, b'{"age": 5, "highest_id": 2}', found.version)])
    for _ in range(3):
        assert "rolled back" in gc.run().stopped
    assert local.deleted == []


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


@pytest.mark.parametrize("fail_after", range(7))
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


def test_870_and_876_a_listing_that_leaves_some_out_deletes_none_of_them() -> None:
    """P21: Apache's gc deleted what its listing missed; here it has to be missing when asked for by name, too."""
    local, metadata = Local(set(range(30))), Metadata(set(range(30)), hidden=set(range(10, 20)))
    gc = collector(local, metadata)
    gc.run()
    cycle = gc.run()
    assert (cycle.candidates, cycle.kept, cycle.deleted) == (10, 10, 0)
    assert local.deleted == []


@pytest.mark.parametrize("pages", [[[1, 2], [2, 3]], [[5, 4]], [[3, 4], [1, 2]], [[7, 7]]])
def test_a_listing_out_of_order_proves_nothing(pages: list[list[int]]) -> None:
    local, metadata = Local({9}), Metadata(set())
    gc = collector(local, metadata)
    for _ in range(3):
        left = iter(pages)
        metadata.list_ledgers = lambda after=-1, count_max=1, left=left: next(left, [])  # type: ignore[method-assign,misc]
        assert "does not ascend" in gc.run().stopped
    assert local.deleted == []


def test_a_refused_cycle_reads_nothing_more_and_says_how_to_go_on() -> None:
    """With the wrong metadata store every ledger is a candidate: a million reads would tell nothing new."""
    local, metadata = Local(set(range(100))), Metadata({1000})
    gc = collector(local, metadata)
    gc.run()
    metadata.calls = 0
    cycle = gc.run()
    assert metadata.calls == 3, "the cluster's id, a page and the end; no ledger"
    assert "fastbk bookie gc run --force" in cycle.stopped
    assert gc.run(force=True).deleted == 100


def test_another_cluster_s_metadata_in_the_midst_of_a_cycle_deletes_nothing() -> None:
    local, metadata = Local({1, 2}), Metadata({1})
    gc = collector(local, metadata)
    gc.run()
    ids = iter(["cluster-1", "cluster-2"])
    metadata.instance_id = lambda: next(ids)  # type: ignore[method-assign]
    assert "cluster-2" in gc.run().stopped
    assert local.deleted == []


def test_listing_and_reading_are_spread() -> None:
    count = 3 * PAGE_IDS
    local, metadata = Local(set(range(count + 500))), Metadata(set(range(count)))
    gc = collector(local, metadata, per_s=10_000.0)
    clock = gc.pace.pause.__self__  # type: ignore[attr-defined]
    gc.run()
    assert clock.now_s == pytest.approx(count / 10_000, abs=1.1)
    assert gc.run().deleted == 500
    assert clock.now_s == pytest.approx((2 * count + 500 * READ_COST_IDS) / 10_000, abs=1.1)


def test_what_cuts_a_pause_off_leaves_the_suspects_as_they_were() -> None:
    class CutOff(Exception):
        pass

    def cut_off(_: float) -> None:
        raise CutOff

    local, metadata = Local({1, 2}), Metadata({1})
    gc = collector(local, metadata)
    gc.run()
    pause, gc.pace.pause, gc.pace.per_s = gc.pace.pause, cut_off, 0.1
    with pytest.raises(CutOff):
        gc.run()
    gc.pace.pause, gc.pace.per_s = pause, 1e9
    assert gc.run().deleted == 1


def test_a_deletion_is_noted_before_anything_is_deleted() -> None:
    """INV-M7: a rebuild of metadata must not bring a ledger back."""
    local, steps = Local({1, 2, 3}), list[tuple[str, list[int]]]()
    collector = DeadLedgers(
        local,  # type: ignore[arg-type]
        Metadata({1}),  # type: ignore[arg-type]
        Cluster(Metadata({1})),  # type: ignore[arg-type]
        RateLimit(1e9, lambda seconds: None),
        on_local=lambda ids: steps.append(("local", list(ids))),
        on_deleted=lambda ids: steps.append((f"held {sorted(local.held)}", list(ids))),
    )
    collector.run()
    collector.run()
    assert steps == [("local", [1, 2, 3]), ("local", [1, 2, 3]), ("held [1, 2, 3]", [2, 3])]
    assert local.held == {1}


def test_what_cannot_be_noted_is_not_deleted() -> None:
    """INV-M7: the disk that keeps the note takes no writes."""
    local = Local({1, 2, 3})

    def refuse(ids: Sequence[int]) -> None:
        raise OSError(errno.EIO, "no write")

    collector = DeadLedgers(
        local,  # type: ignore[arg-type]
        Metadata({1}),  # type: ignore[arg-type]
        Cluster(Metadata({1})),  # type: ignore[arg-type]
        RateLimit(1e9, lambda seconds: None),
        on_deleted=refuse,
    )
    collector.run()
    cycle = collector.run()
    assert (cycle.deleted, local.held) == (0, {1, 2, 3})
    assert "no write" in cycle.stopped
    collector.on_deleted = lambda ids: None
    assert collector.run().deleted == 2
