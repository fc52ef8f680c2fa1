"""Repairing what a lost bookie held: every share is copied before the metadata names the new bookie."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.model.quorum import write_set
from fastbk.replication.actions import AddEntry, Ask, Found, UpdateMetadata
from fastbk.replication.copying import RepairOptions, share_of
from fastbk.replication.re_replication import LedgerRepaired, RepairLedger
from fastbk.wire.statuses import Status
from tests.fixtures.procedure_world import ProcedureWorld, ToyStore

NAMES = ("a", "b", "c", "d", "e", "f")


def closed(
    size: int, quorum: int, fragments: list[tuple[int, str]], last: int, **changes: object
) -> LedgerMetadata:
    metadata = LedgerMetadata(
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=quorum // 2 + 1,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=LedgerState.CLOSED,
        last_entry_id=last,
        length=10 * (last + 1),
    )
    return replace(metadata, **changes)  # type: ignore[arg-type]


def world_of(metadata: LedgerMetadata, rng: random.Random) -> ProcedureWorld:
    """Every entry on all of its write set."""
    world = ProcedureWorld(rng, VersionedLedger(metadata, 5), {one: ToyStore() for one in NAMES})
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.fragment_of(entry_id).ensemble
        entry = Found(entry_id, entry_id - 1, 10 * (entry_id + 1), b"entry %d" % entry_id)
        for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
            world.stores[ensemble[index]].entries[entry_id] = entry
    return world


def repair(world: ProcedureWorld, lost: str = "a", **options: object) -> LedgerRepaired:
    world.stores[lost] = ToyStore(is_away=True)
    procedure = RepairLedger(7, lost, RepairOptions(**options))  # type: ignore[arg-type]
    world.run(procedure)  # type: ignore[arg-type]
    return procedure.value()


def check_replicated(world: ProcedureWorld) -> None:
    assert world.metadata is not None
    metadata = world.metadata.metadata
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.fragment_of(entry_id).ensemble
        for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
            entry = world.stores[ensemble[index]].entries[entry_id]
            assert entry == Found(
                entry_id, entry_id - 1, 10 * (entry_id + 1), b"entry %d" % entry_id
            )


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (3, 2), (4, 2), (5, 3)])
def test_all_fragments_are_whole_again_and_name_the_lost_bookie_no_more(
    size: int, quorum: int, rng: random.Random
) -> None:
    fragments = [
        (0, "abcdef"[:size]),
        (13, "bcdefa"[:size]),
        (14, "".join(reversed("abcdef"[:size]))),
    ]
    world = world_of(closed(size, quorum, fragments, 40), rng)
    result = repair(world, read_entries_max=4, entries_in_flight_max=3)
    assert result.is_whole
    assert result.lost_count == 0
    assert world.metadata is not None
    assert all("a" not in one.ensemble for one in world.metadata.metadata.fragments)
    check_replicated(world)
    # Each share was whole on its new bookie before the metadata said so; nothing but a look at it came afterwards.
    last = max(at for at, one in enumerate(world.log) if isinstance(one, UpdateMetadata))
    assert not any(
        isinstance(one, Ask) and isinstance(one.request, AddEntry) for one in world.log[last:]
    )


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize(("size", "quorum"), [(5, 2), (5, 4), (5, 5), (5, 1)])
def test_a_share_is_what_write_sets_say(index: int, size: int, quorum: int) -> None:
    metadata = closed(size, quorum, [(0, "abcde")], 1)
    for first, last in [(0, 40), (7, 7), (9, 8), (2**62, 2**62 + 11)]:
        runs = list(share_of(index, metadata, first, last))
        ids = [one for start, end in runs for one in range(start, end + 1)]
        wanted = [one for one in range(first, last + 1) if index in write_set(one, size, quorum)]
        assert ids == wanted


def test_an_entry_without_a_readable_copy_keeps_the_metadata_as_it_is(rng: random.Random) -> None:
    world = world_of(closed(3, 3, [(0, "abc")], 9), rng)
    for name in "bc":
        del world.stores[name].entries[4]
    before = world.metadata
    result = repair(world, patience_s=0.1)
    assert not result.is_whole
    assert result.lost_count == 1
    assert list(result.lost) == [4]
    assert "no readable copy" in result.left[0]
    assert world.metadata == before


def test_a_target_that_refuses_is_not_named_and_another_is_taken(rng: random.Random) -> None:
    world = world_of(closed(3, 3, [(0, "abc")], 9), rng)
    world.stores["d"].refuse = Status.IO_ERROR
    assert repair(world).is_whole
    assert world.metadata is not None
    assert world.metadata.metadata.fragments[0].ensemble == ("e", "b", "c")
    check_replicated(world)


def test_without_any_other_bookie_it_says_so_and_changes_nothing(rng: random.Random) -> None:
    world = world_of(closed(3, 3, [(0, "abc")], 9), rng)
    for name in "def":
        world.stores[name].is_away = True
    before = world.metadata
    result = repair(world)
    assert "no bookie to copy to: " in result.left[0]
    assert "[]" not in result.left[0]
    assert world.metadata == before


def test_the_fragment_being_written_is_left_to_its_writer(rng: random.Random) -> None:
    metadata = closed(3, 3, [(0, "abc"), (5, "bad")], 9)
    world = world_of(metadata, rng)
    still_open = replace(metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0)
    world.metadata = VersionedLedger(still_open, 5)
    result = repair(world)
    assert list(result.left) == [5]
    assert "open" in result.left[5]
    assert world.metadata.metadata.fragments[0].ensemble == ("d", "b", "c")
    assert world.metadata.metadata.fragments[1].ensemble == ("b", "a", "d")


class Interfering(ProcedureWorld):
    """Somebody else changes the metadata right before the first update."""

    def update(self, action: UpdateMetadata) -> object:  # type: ignore[override]
        if self.metadata is not None and self.metadata.version == 5:
            self.metadata = self.interfere(self.metadata)
        return super().update(action)

    def interfere(self, found: VersionedLedger) -> VersionedLedger | None:
        """Add custom metadata."""
        return VersionedLedger(replace(found.metadata, custom={"x": b"1"}), 6)


class Deleting(Interfering):
    def interfere(self, found: VersionedLedger) -> VersionedLedger | None:
        return None


def test_a_change_by_somebody_else_is_kept(rng: random.Random) -> None:
    plain = world_of(closed(3, 3, [(0, "abc")], 9), rng)
    world = Interfering(rng, plain.metadata, plain.stores)
    assert repair(world).is_whole
    assert world.metadata is not None
    assert world.metadata.metadata.custom == {"x": b"1"}
    assert world.metadata.metadata.fragments[0].ensemble == ("d", "b", "c")


class Forgetting(Interfering):
    def interfere(self, found: VersionedLedger) -> VersionedLedger | None:
        self.stores["d"] = ToyStore()
        return found


def test_a_new_bookie_that_lost_its_data_before_it_was_named_is_noticed(rng: random.Random) -> None:
    plain = world_of(closed(3, 3, [(0, "abc")], 9), rng)
    world = Forgetting(rng, plain.metadata, plain.stores)
    result = repair(world)
    assert not result.is_whole
    assert "recover d, too" in result.left[0]


def test_a_ledger_deleted_meanwhile_is_done(rng: random.Random) -> None:
    plain = world_of(closed(3, 3, [(0, "abc")], 9), rng)
    world = Deleting(rng, plain.metadata, plain.stores)
    result = repair(world)
    assert result.is_deleted
    assert result.is_whole


def test_copies_pass_a_fence_and_stay_within_the_window(rng: random.Random) -> None:
    world = world_of(closed(3, 3, [(0, "abc")], 99), rng)
    world.stores["d"].is_fenced = True
    assert repair(world, entries_in_flight_max=2, bytes_per_s=100.0).is_whole
    assert world.adds_in_flight_most == 2
    # 100 entries of about 8 bytes at 100 bytes a second.
    assert world.now_s > 7
