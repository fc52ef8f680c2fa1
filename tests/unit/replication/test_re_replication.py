"""Repairing what a lost bookie held: every share is copied before the metadata names the new bookie."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.meta.api import BookieIdentity, VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.model.quorum import write_set
from fastbk.replication.copying import share_of
from fastbk.replication.procedure import Action, Outcome, ReadIdentity, SendRequest, UpdateMetadata
from fastbk.replication.re_replication import COPIES_MAX, LedgerReReplicated, ReReplicateLedger
from fastbk.replication.repair_options import RepairOptions
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import (
    LEDGER,
    Bookie,
    Client,
    FakeQuorum,
    copied_by,
    entry_of,
    holders,
    length_at,
)

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


def world_of(metadata: LedgerMetadata, kind: type[FakeQuorum] = FakeQuorum) -> FakeQuorum:
    """Every entry on all of its write set; bookies a to f."""
    harness = kind(VersionedLedger(metadata, 5), {one: Bookie() for one in NAMES})
    for entry_id in range(metadata.last_entry_id + 1):
        harness.write(entry_id)
    return harness


def repair(
    harness: FakeQuorum, rng: random.Random, lost: str = "a", **options: object
) -> tuple[LedgerReReplicated, Client]:
    harness.bookies[lost] = Bookie(away=True)
    procedure = ReReplicateLedger(LEDGER, lost, RepairOptions(**options))  # type: ignore[arg-type]
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(rng)
    return procedure.value(), client


def check_replicated(harness: FakeQuorum) -> None:
    for entry_id in range(harness.metadata.last_entry_id + 1):
        for name in holders(harness.metadata, entry_id):
            assert harness.bookies[name].entries[entry_id] == entry_of(entry_id)


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (3, 2), (4, 2), (5, 3)])
def test_all_fragments_are_whole_again_and_name_the_lost_bookie_no_more(
    size: int, quorum: int, rng: random.Random
) -> None:
    fragments = [
        (0, "abcdef"[:size]),
        (13, "bcdefa"[:size]),
        (14, "".join(reversed("abcdef"[:size]))),
    ]
    harness = world_of(closed(size, quorum, fragments, 40))
    result, client = repair(harness, rng, read_entries_max=4, entries_in_flight_max=3)
    assert result.is_whole
    assert result.lost_count == 0
    assert all("a" not in one.ensemble for one in harness.metadata.fragments)
    check_replicated(harness)
    # Each share was whole on its new bookie before the metadata said so; nothing but a look at it came afterwards.
    last = max(at for at, one in enumerate(client.log) if isinstance(one, UpdateMetadata))
    assert not any(
        isinstance(one, SendRequest) and copied_by(one.request) for one in client.log[last:]
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
    harness = world_of(closed(3, 3, [(0, "abc")], 9))
    for name in "bc":
        del harness.bookies[name].entries[4]
    before = harness.current
    result, _ = repair(harness, rng, patience_s=0.1)
    assert not result.is_whole
    assert result.lost_count == 1
    assert list(result.lost) == [4]
    assert "no readable copy" in result.left[0]
    assert harness.current == before


def test_a_ledger_whose_other_holders_are_away_is_parked_after_one_wait(rng: random.Random) -> None:
    """It used to wait at each entry anew: a thousand entries of one ledger took hours."""
    harness = world_of(closed(3, 2, [(0, "abc"), (40, "abd"), (60, "acd")], 79))
    harness.bookies["b"] = Bookie(away=True)
    before = harness.current
    result, client = repair(harness, rng, patience_s=5.0)
    assert (result.is_whole, result.is_parked, result.lost_count) == (False, True, 0)
    assert list(result.left) == [0, 40]
    assert "b: not reached" in result.left[0]
    assert result.parked == {0: {"b"}, 40: {"b"}}
    assert client.now_s < 10.0
    # What other bookies have was copied; a share that is not whole names nobody.
    assert harness.metadata.fragments[:2] == before.metadata.fragments[:2]  # type: ignore[union-attr]
    assert "a" not in harness.metadata.fragments[2].ensemble
    harness.bookies["b"].away = False
    for entry_id in range(60):
        if "b" in holders(harness.metadata, entry_id):
            harness.write(entry_id, ["b"])
    assert repair(harness, rng)[0].is_whole


def test_entries_that_only_the_lost_bookie_may_have_are_lost_after_one_wait(
    rng: random.Random,
) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 79))
    for name in "bc":
        harness.bookies[name].damaged = set(range(10, 50))
    result, client = repair(harness, rng, patience_s=5.0)
    assert (result.is_parked, result.lost_count) == (False, 40)
    assert client.now_s < 10.0


def test_a_target_that_refuses_is_not_named_and_another_is_taken(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9))
    harness.bookies["d"].add_status = Status.IO_ERROR
    assert repair(harness, rng)[0].is_whole
    assert harness.metadata.fragments[0].ensemble == ("e", "b", "c")
    check_replicated(harness)


def test_without_any_other_bookie_it_says_so_and_changes_nothing(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9))
    for name in "def":
        harness.bookies[name].away = True
    before = harness.current
    result, _ = repair(harness, rng)
    assert "no bookie to copy to: " in result.left[0]
    assert "[]" not in result.left[0]
    assert harness.current == before


def test_the_fragment_being_written_is_left_to_its_writer(rng: random.Random) -> None:
    metadata = closed(3, 3, [(0, "abc"), (5, "bad")], 9)
    harness = world_of(metadata)
    still_open = replace(metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0)
    harness.current = VersionedLedger(still_open, 5)
    result, _ = repair(harness, rng)
    assert list(result.left) == [5]
    assert "open" in result.left[5]
    assert harness.metadata.fragments[0].ensemble == ("d", "b", "c")
    assert harness.metadata.fragments[1].ensemble == ("b", "a", "d")


class Interfering(FakeQuorum):
    """Somebody else changes the metadata right before the first update."""

    def outcome(self, action: Action) -> Outcome:
        """Interfere, then do what is asked."""
        is_first = self.current is not None and self.current.version == 5
        if isinstance(action, UpdateMetadata) and is_first:
            self.interfere()
        return super().outcome(action)

    def interfere(self) -> None:
        """Add custom metadata."""
        self.edit(custom={"x": b"1"})


class Deleting(Interfering):
    def interfere(self) -> None:
        self.current = None


def test_a_change_by_somebody_else_is_kept(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9), Interfering)
    assert repair(harness, rng)[0].is_whole
    assert harness.metadata.custom == {"x": b"1"}
    assert harness.metadata.fragments[0].ensemble == ("d", "b", "c")


class Forgetting(Interfering):
    def interfere(self) -> None:
        self.bookies["d"] = Bookie()


def test_a_new_bookie_that_lost_its_data_before_it_was_named_is_noticed(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9), Forgetting)
    result, _ = repair(harness, rng)
    assert not result.is_whole
    assert "recover d, too" in result.left[0]


class StartedAnew(FakeQuorum):
    """`d` loses its data, and is started again, right before each of the first updates."""

    losses_left = 1

    def outcome(self, action: Action) -> Outcome:
        """Lose the data, then do what is asked."""
        if isinstance(action, UpdateMetadata) and self.losses_left:
            self.losses_left -= 1
            self.bookies["d"] = Bookie()
            known = self.identities["d"]
            self.identities["d"] = VersionedIdentity(known.identity, known.version + 1)
        return super().outcome(action)


def started_anew(times: int) -> StartedAnew:
    harness = world_of(closed(3, 3, [(0, "abc")], 9), StartedAnew)
    assert isinstance(harness, StartedAnew)
    harness.losses_left = times
    harness.identities["d"] = VersionedIdentity(BookieIdentity(BookieId("d"), 1, ()), 4)
    return harness


@pytest.mark.parametrize("times", [1, COPIES_MAX - 1])
def test_a_bookie_that_was_started_anew_is_given_its_share_again(
    times: int, rng: random.Random
) -> None:
    """INV-E3: one that came back without its data, and without a doubt, is not named for what it was given before."""
    harness = started_anew(times)
    assert repair(harness, rng)[0].is_whole
    assert harness.metadata.fragments[0].ensemble == ("d", "b", "c")
    check_replicated(harness)


def test_a_bookie_that_is_started_anew_each_time_is_not_named(rng: random.Random) -> None:
    harness = started_anew(COPIES_MAX)
    result, _ = repair(harness, rng)
    assert "copying to d was in vain" in result.left[0]
    assert harness.metadata.fragments[0].ensemble == ("a", "b", "c")


def test_a_repair_waits_for_an_identity_as_long_as_for_other_metadata(rng: random.Random) -> None:
    harness = started_anew(0)
    harness.bookies["a"] = Bookie(away=True)
    procedure = ReReplicateLedger(LEDGER, "a", RepairOptions(metadata_timeout_s=4.0))
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(
        rng, until=lambda: any(isinstance(one, ReadIdentity) for one in client.pending.values())
    )
    harness.store_away = True
    client.run(rng)
    assert isinstance(procedure.error, MetadataUnavailable)
    assert 3.9 < client.now_s < 4.5
    assert harness.metadata.fragments[0].ensemble == ("a", "b", "c")


def test_a_ledger_deleted_meanwhile_is_done(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9), Deleting)
    result, _ = repair(harness, rng)
    assert result.is_deleted
    assert result.is_whole


class Standing(FakeQuorum):
    """The harness stands still for a day before the target's n-th answer, and what nobody counts on goes there."""

    stops_at = 4
    answered = 0

    def outcome(self, action: Action) -> Outcome:
        outcome = super().outcome(action)
        if (
            isinstance(action, SendRequest)
            and action.bookie_id == "d"
            and copied_by(action.request)
        ):
            self.answered += 1
            if self.answered == self.stops_at:
                self.stand_still()
        return outcome

    def stand_still(self) -> None:
        kept = self.bookies["d"].entries
        for entry_id in list(kept)[:-1]:
            del kept[entry_id]
        self.client.now_s += 86_400.0


def stood_still(harness: Standing, rng: random.Random) -> LedgerReReplicated:
    harness.bookies["a"] = Bookie(away=True)
    procedure = ReReplicateLedger(LEDGER, "a", RepairOptions(entries_in_flight_max=1))
    harness.client = Client(harness, procedure)  # type: ignore[arg-type]
    harness.client.run(rng)
    return procedure.value()


@pytest.mark.parametrize("stops_at", [1, 2, 9, 10])
def test_a_share_is_given_again_when_copying_stood_still_for_long(
    rng: random.Random, stops_at: int
) -> None:
    """The collector of copies too many may have taken what was given before (INV-G2)."""
    harness = world_of(closed(3, 3, [(0, "abc")], 9), Standing)
    assert isinstance(harness, Standing)
    harness.stops_at = stops_at
    assert stood_still(harness, rng).is_whole
    check_replicated(harness)
    assert harness.metadata.fragments[0].ensemble == ("d", "b", "c")


class AlwaysStanding(Standing):
    def outcome(self, action: Action) -> Outcome:
        self.stops_at = self.answered + 1
        return super().outcome(action)


def test_one_that_always_stands_still_names_nobody(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 2), AlwaysStanding)
    assert isinstance(harness, Standing)
    result = stood_still(harness, rng)
    assert "stood still" in result.left[0]
    assert harness.metadata.fragments[0].ensemble == ("a", "b", "c")


class NamedLate(Interfering):
    """A day goes by while the metadata is changed."""

    def interfere(self) -> None:
        self.bookies["d"].entries.clear()
        self.client.now_s += 86_400.0


def test_a_bookie_that_was_named_late_is_given_its_share_again(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 9), NamedLate)
    assert stood_still(harness, rng).is_whole  # type: ignore[arg-type]
    check_replicated(harness)


def test_copies_pass_a_fence_and_stay_within_the_window(rng: random.Random) -> None:
    harness = world_of(closed(3, 3, [(0, "abc")], 99))
    harness.bookies["d"].fenced = True
    harness.bookies["a"] = Bookie(away=True)
    procedure = ReReplicateLedger(
        LEDGER, "a", RepairOptions(entries_in_flight_max=2).limited(100.0)
    )
    client = Client(harness, procedure)  # type: ignore[arg-type]
    most = 0

    def is_over() -> bool:
        nonlocal most
        most = max(most, sum(len(copied_by(one.request)) for one in client.asks(object)))
        return False

    client.run(rng, until=is_over)
    assert procedure.value().is_whole
    assert most == 2
    assert client.now_s >= length_at(99) / 100.0
