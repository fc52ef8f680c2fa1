"""Moving copies to bookies that a plan chose: no entry has fewer copies at any moment (INV-P6)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fastbk.meta.api import VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.procedure import (
    Action,
    AddEntries,
    ListEntries,
    Outcome,
    ReadEntries,
    ReadIdentity,
    SendRequest,
    UpdateMetadata,
)
from fastbk.replication.re_replication import LedgerReReplicated, Move, MoveCopies
from fastbk.replication.repair_options import RepairOptions
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Bookie, Client, FakeQuorum, entry_of, holders
from tests.unit.replication.test_re_replication import closed, world_of

OPTIONS = RepairOptions(patience_s=0.1, entries_in_flight_max=4, batch_entries_max=2)


def copies_of(harness: FakeQuorum, metadata: LedgerMetadata, entry_id: int) -> int:
    """Return how many bookies that metadata names for an entry have it."""
    return sum(
        harness.bookies[name].entries.get(entry_id) == entry_of(entry_id)
        for name in holders(metadata, entry_id)
    )


class Watched(FakeQuorum):
    """Judges each change of metadata: every entry has all its copies on the bookies that it names."""

    def outcome(self, action: Action) -> Outcome:
        outcome = super().outcome(action)
        if isinstance(action, UpdateMetadata):
            self.check()
        return outcome

    def check(self) -> None:
        metadata = self.metadata
        for entry_id in range(metadata.last_entry_id + 1):
            assert copies_of(self, metadata, entry_id) == metadata.write_quorum, entry_id


def move(first: int, ensemble: str, source: str, target: str) -> Move:
    return Move(first, tuple(map(BookieId, ensemble)), BookieId(source), BookieId(target))


def run(
    harness: FakeQuorum, *moves: Move, rng: random.Random | None = None
) -> tuple[LedgerReReplicated, Client]:
    procedure = MoveCopies(LEDGER, moves, OPTIONS)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(rng)
    return procedure.value(), client


def ensembles(harness: FakeQuorum) -> list[str]:
    return ["".join(fragment.ensemble) for fragment in harness.metadata.fragments]


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (3, 2), (4, 2), (5, 3)])
def test_a_share_goes_to_the_bookie_that_was_named(
    size: int, quorum: int, rng: random.Random
) -> None:
    names = "abcde"[:size]
    harness = world_of(closed(size, quorum, [(0, names), (20, names)], 40), Watched)
    moved, client = run(harness, move(20, names, "a", "f"), rng=rng)
    assert moved.is_whole and moved.fragments == 1
    assert ensembles(harness) == [names, names.replace("a", "f")]
    assert not any(entry_id < 20 for entry_id in harness.bookies[BookieId("f")].entries)
    (replacement,) = moved.replacements
    assert (replacement.bookie_id, replacement.replacement) == ("a", "f")
    if size > quorum:
        sources = {
            one.bookie_id
            for one in client.log
            if isinstance(one, SendRequest) and isinstance(one.request, ReadEntries)
        }
        assert sources == {"a"}, "who has just the share gives it"


def test_moves_of_a_fragment_stand_on_each_other(rng: random.Random) -> None:
    """An exchange of two places, by way of a third bookie."""
    harness = world_of(closed(4, 2, [(0, "abcd")], 60), Watched)
    moves = [
        move(0, "abcd", "b", "e"),
        move(0, "aecd", "c", "b"),
        move(0, "aebd", "e", "c"),
    ]
    moved, _ = run(harness, *moves, rng=rng)
    assert moved.is_whole and ensembles(harness) == ["acbd"]
    # Again, as after an answer that was lost behind the last one.
    before = harness.current
    assert run(harness, moves[-1])[0].is_whole and harness.current == before


def test_a_move_ends_where_the_plan_is_out_of_date(rng: random.Random) -> None:
    metadata = closed(3, 3, [(0, "abc")], 9)
    for harness, wrong in (
        (world_of(metadata), move(0, "abd", "a", "e")),
        (world_of(metadata), move(5, "abc", "a", "e")),
        (world_of(metadata), move(0, "abc", "a", "b")),
        (
            world_of(closed(3, 3, [(0, "abc")], -1, state=LedgerState.OPEN)),
            move(0, "abc", "a", "e"),
        ),
    ):
        before = harness.current
        moved, client = run(harness, wrong, rng=rng)
        assert moved.left and harness.current == before
        assert not any(isinstance(one, SendRequest) for one in client.log)


def test_somebody_else_changes_the_fragment_meanwhile() -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9))
    procedure = MoveCopies(LEDGER, [move(0, "abc", "a", "e")], OPTIONS)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(
        until=lambda: any(isinstance(one, UpdateMetadata) for one in client.pending.values())
    )
    harness.edit(fragments=(Fragment(0, (BookieId("a"), BookieId("f"), BookieId("c"))),))
    client.run()
    assert "changed" in procedure.value().left[0]
    assert ensembles(harness) == ["afc"]


def refuse(harness: FakeQuorum) -> None:
    harness.bookies[BookieId("e")].add_status = Status.READ_ONLY


def die(harness: FakeQuorum) -> None:
    harness.bookies[BookieId("e")].away = True


def lack_an_entry(harness: FakeQuorum) -> None:
    for name in "abc":
        del harness.bookies[BookieId(name)].entries[4]


def be_silent(harness: FakeQuorum) -> None:
    """Whose share it is has the only good copy of an entry, and does not answer."""
    for name in "bc":
        harness.bookies[BookieId(name)].damaged = {4}
    harness.bookies[BookieId("a")].away = True


@pytest.mark.parametrize("trouble", [refuse, die, lack_an_entry, be_silent])
def test_a_move_that_cannot_be_made_changes_nothing(
    trouble: Callable[[FakeQuorum], None], rng: random.Random
) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9))
    trouble(harness)
    before = harness.current
    moved, _ = run(harness, move(0, "abc", "a", "e"), move(0, "ebc", "b", "f"), rng=rng)
    assert list(moved.left) == [0] and harness.current == before
    assert moved.lost_count == (1 if trouble is lack_an_entry else 0)


def test_a_target_that_does_not_show_all_is_not_named(rng: random.Random) -> None:
    """It took the copies, and forgot one before it was named."""

    class Forgets(FakeQuorum):
        def outcome(self, action: Action) -> Outcome:
            outcome = super().outcome(action)
            if isinstance(action, SendRequest) and isinstance(action.request, AddEntries):
                self.bookies[action.bookie_id].entries.pop(5, None)
            return outcome

    harness = world_of(closed(3, 3, [(0, "abc")], 9), Forgets)
    before = harness.current
    moved, _ = run(harness, move(0, "abc", "a", "e"), rng=rng)
    assert "does not list entries 5 to 5" in moved.left[0]
    assert harness.current == before


def test_a_target_that_was_started_anew_is_given_its_share_again() -> None:
    """It comes back empty behind the list, before it is named."""
    harness = world_of(closed(3, 3, [(0, "abc")], 9), Watched)
    target = BookieId("e")
    harness.identities[target] = VersionedIdentity(None, 1)  # type: ignore[arg-type]
    procedure = MoveCopies(LEDGER, [move(0, "abc", "a", "e")], OPTIONS)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(
        until=lambda: any(isinstance(one, UpdateMetadata) for one in client.pending.values())
    )
    harness.bookies[target] = Bookie()
    harness.identities[target] = VersionedIdentity(None, 2)  # type: ignore[arg-type]
    client.run()
    assert procedure.value().is_whole and ensembles(harness) == ["ebc"]
    assert sum(isinstance(one, ReadIdentity) for one in client.log) == 2


def test_a_bookie_that_dies_once_it_is_named_has_what_it_listed() -> None:
    """Its identity was the same at that moment: nothing is in doubt, and nothing is marked."""
    harness = world_of(closed(3, 3, [(0, "abc")], 9), Watched)
    target = BookieId("e")
    harness.identities[target] = VersionedIdentity(None, 1)  # type: ignore[arg-type]
    procedure = MoveCopies(LEDGER, [move(0, "abc", "a", "e")], OPTIONS)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(
        until=lambda: any(isinstance(one, UpdateMetadata) for one in client.pending.values())
    )
    harness.bookies[target].away = True
    client.run()
    assert procedure.value().is_whole and not harness.marked


def test_who_shows_nothing_once_it_is_named_is_marked(rng: random.Random) -> None:
    """One of Apache's: nothing says whether it lost what it took before metadata named it."""

    class Loses(FakeQuorum):
        def outcome(self, action: Action) -> Outcome:
            outcome = super().outcome(action)
            if isinstance(action, UpdateMetadata):
                self.bookies[BookieId("e")].entries.clear()
            return outcome

    harness = world_of(closed(3, 3, [(0, "abc")], 9), Loses)
    procedure = MoveCopies(LEDGER, [move(0, "abc", "a", "e")], OPTIONS, unlisted=(BookieId("e"),))
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(rng)
    assert procedure.value().left
    ((marked),) = harness.marked
    assert (marked.bookie_id, marked.first_entry_id, marked.last_entry_id) == ("e", 0, 9)
    assert not any(
        isinstance(one, SendRequest) and isinstance(one.request, ListEntries) for one in client.log
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_mover_may_die_at_any_step(seed: int) -> None:
    """And others go on with the same plan: what was moved stays, what was not is moved, never with fewer copies."""
    rng = random.Random(seed)
    harness = world_of(closed(4, 2, [(0, "abcd"), (30, "bcde")], 50), Watched)
    harness.lose_update_answers = rng.randrange(2)
    moves = [move(0, "abcd", "a", "e"), move(0, "ebcd", "c", "f"), move(30, "bcde", "b", "a")]
    for _ in range(50):
        procedure = MoveCopies(LEDGER, moves, OPTIONS)
        client = Client(harness, procedure)  # type: ignore[arg-type]
        steps = iter(range(rng.randrange(1, 60)))
        client.run(rng, until=lambda steps=steps: next(steps, None) is None)  # type: ignore[misc]
        harness.check()
        if procedure.is_finished:
            break
        # The next one plans anew, from what metadata says now.
        now = dict(zip((0, 30), ensembles(harness), strict=True))
        moves = [one for one in moves if one.source in now[one.first_entry_id]]
    run(harness, *moves)
    assert ensembles(harness) == ["ebfd", "acde"]


def test_the_metadata_is_that_of_the_ledger_before_any_move() -> None:
    """Fixture: what `Watched` judges is whole to begin with."""
    metadata = closed(3, 2, [(0, "abc")], 9)
    harness = Watched(VersionedLedger(metadata, 1), {BookieId(one): Bookie() for one in "abc"})
    with pytest.raises(AssertionError):
        harness.check()
