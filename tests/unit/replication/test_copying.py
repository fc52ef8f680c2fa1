"""One share's copies: added together where the target takes that, one by one else; resting; going on later."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from fastbk.errors import QuorumTimeout
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.placement.config import Distance
from fastbk.replication.copying import CopyShare
from fastbk.replication.procedure import (
    Action,
    AddEntries,
    AddEntry,
    Outcome,
    ReadEntries,
    Reply,
    SendRequest,
    UpdateMetadata,
)
from fastbk.replication.re_replication import (
    BegunCopies,
    HeldEntries,
    LedgerReReplicated,
    ReReplicateLedger,
)
from fastbk.replication.repair_options import BackPressure, RepairOptions
from tests.fixtures.fake_quorum import (
    LEDGER,
    Client,
    FakeQuorum,
    copied_by,
    entry_of,
    length_at,
    metadata_of,
)

Q = TypeVar("Q", bound=FakeQuorum)
LAST = 299
OPTIONS = RepairOptions(batch_entries_max=50, patience_s=1.0, patience_after_s=0.1)


def quorum(size: int = 3, write_quorum: int = 3, kind: type[Q] = FakeQuorum) -> Q:  # type: ignore[assignment]
    metadata = metadata_of(size, write_quorum, 2)
    closed: LedgerMetadata = replace(
        metadata, state=LedgerState.CLOSED, last_entry_id=LAST, length=length_at(LAST)
    )
    harness = kind.of(closed, 2)
    for entry_id in range(LAST + 1):
        harness.write(entry_id)
    harness.bookies["b0"].away = True
    return harness


def copy(harness: FakeQuorum, options: RepairOptions = OPTIONS) -> tuple[CopyShare, Client]:
    metadata = harness.metadata
    procedure = CopyShare(LEDGER, metadata, metadata.fragments[0], 0, LAST, "s0", options)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(random.Random(1))
    return procedure, client


def requests(client: Client, kind: type) -> list[SendRequest]:
    return [
        one for one in client.log if isinstance(one, SendRequest) and isinstance(one.request, kind)
    ]


def test_consecutive_copies_go_together() -> None:
    harness = quorum()
    procedure, client = copy(harness)
    assert procedure.copied.entries == LAST + 1
    assert [len(copied_by(one.request)) for one in requests(client, AddEntries)] == [50] * 6
    assert not requests(client, AddEntry)
    assert harness.bookies["s0"].entries == {one: entry_of(one) for one in range(LAST + 1)}


def test_copies_of_a_striped_share_go_together_as_far_as_they_are_consecutive() -> None:
    harness = quorum(3, 2)
    procedure, client = copy(harness)
    assert procedure.copied.entries == 200
    assert {len(copied_by(one.request)) for one in requests(client, AddEntries)} == {2}


def test_a_batch_is_bounded_in_bytes_and_one_entry_always_goes() -> None:
    size_bytes = max(len(entry_of(one).data) for one in range(LAST + 1))
    procedure, client = copy(quorum(), replace(OPTIONS, batch_bytes_max=3 * size_bytes))
    assert procedure.copied.entries == LAST + 1
    for one in requests(client, AddEntries):
        assert isinstance(one.request, AddEntries)
        assert sum(len(each.data) for each in one.request.entries) <= 3 * size_bytes
    procedure, client = copy(quorum(), replace(OPTIONS, batch_bytes_max=1))
    assert procedure.copied.entries == LAST + 1
    assert not requests(client, AddEntries)


def test_a_bookie_that_takes_one_at_a_time_is_given_one_at_a_time() -> None:
    harness = quorum()
    harness.bookies["s0"].takes_batches = False
    procedure, client = copy(harness, replace(OPTIONS, entries_in_flight_max=50))
    assert procedure.copied.entries == LAST + 1
    assert len(requests(client, AddEntries)) == 1
    assert len(requests(client, AddEntry)) == LAST + 1


def test_a_copy_that_is_there_otherwise_is_named_and_the_others_are_copied() -> None:
    harness = quorum()
    harness.bookies["s0"].entries[70] = entry_of(70)._replace(data=b"other")
    metadata = harness.metadata
    procedure = CopyShare(
        LEDGER, metadata, metadata.fragments[0], 0, LAST, "s0", OPTIONS, passes_conflicts=True
    )
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(random.Random(1))
    assert (procedure.copied.refused, procedure.copied.entries) == ([70], LAST)
    assert len(requests(client, AddEntries)) == 6  # a conflict says nothing about the next batch
    failing, _ = copy(harness)
    assert failing.error is not None
    assert failing.error.entry_id == 70


@dataclass
class Pressed(FakeQuorum):
    """Writers wait at one bookie."""

    pressed: str = ""

    def outcome(self, action: Action) -> Outcome:
        outcome = super().outcome(action)
        if (
            isinstance(action, SendRequest)
            and isinstance(outcome, Reply)
            and action.bookie_id == self.pressed
        ):
            return replace(outcome, add_wait_s=0.002)
        return outcome


def test_copying_rests_while_writers_wait_at_its_source_or_target() -> None:
    took_s = {}
    for pressed in ("", "s0", "b1"):
        harness = quorum(kind=Pressed)
        harness.pressed = pressed
        if pressed == "b1":
            harness.bookies["b2"].away = True  # else it is read in its place
        procedure, client = copy(harness, replace(OPTIONS, read_entries_max=20))
        assert procedure.copied.entries == LAST + 1
        took_s[pressed] = client.now_s
    assert min(took_s["s0"], took_s["b1"]) > 2 * took_s[""]


def test_who_has_no_waiting_writers_is_read_first() -> None:
    harness = quorum(kind=Pressed)
    harness.pressed = "b1"
    options = replace(OPTIONS, read_entries_max=20)
    options.pressure.note("b1", 0.002, 0.0)
    _, client = copy(harness, options)
    assert {one.bookie_id for one in requests(client, ReadEntries)} == {"b2"}


def test_who_is_near_is_read_first_and_another_region_only_if_nobody_else_has_it() -> None:
    """INV-P9"""
    distances = {"b1": Distance.OTHER, "b2": Distance.REGION}
    options = replace(
        OPTIONS,
        pressure=BackPressure(),
        distance=lambda bookie: distances.get(bookie, Distance.UNKNOWN),
    )
    _, client = copy(quorum(), options)
    assert {one.bookie_id for one in requests(client, ReadEntries)} == {"b2"}
    distances["b1"] = Distance.RACK
    _, client = copy(quorum(), options)
    assert {one.bookie_id for one in requests(client, ReadEntries)} == {"b1"}

    # Writers wait at the near one: another one of the region is read, and none of another region.
    for far, read in ((Distance.REGION, {"b2"}), (Distance.OTHER, {"b1"})):
        distances["b2"] = far
        harness = quorum(kind=Pressed)
        harness.pressed = "b1"
        pressed = replace(options, read_entries_max=20, pressure=BackPressure())
        pressed.pressure.note("b1", 0.002, 0.0)
        _, client = copy(harness, pressed)
        assert {one.bookie_id for one in requests(client, ReadEntries)} == read

    # The near one goes away: the other one is read.
    harness = quorum()
    harness.bookies["b1"].away = True
    procedure, client = copy(harness, options)
    assert procedure.copied.entries == LAST + 1


def test_a_striped_share_comes_from_near_bookies_as_far_as_they_have_it() -> None:
    distances = {"b1": Distance.OTHER, "b2": Distance.RACK, "b3": Distance.RACK}
    options = replace(
        OPTIONS,
        pressure=BackPressure(),
        distance=lambda bookie: distances.get(bookie, Distance.UNKNOWN),
    )
    procedure, client = copy(quorum(4, 3), options)
    assert procedure.copied.entries == (LAST + 1) * 3 // 4
    read = {one.bookie_id for one in requests(client, ReadEntries)}
    assert read == {"b2", "b3"}, "these two have all of it together"


@dataclass
class FallingSilent(FakeQuorum):
    """From some entry on nobody answers readers."""

    silent_from: int | None = 200

    def outcome(self, action: Action) -> Outcome:
        is_read = isinstance(action, SendRequest) and isinstance(action.request, ReadEntries)
        if is_read and self.silent_from is not None and action.request.first >= self.silent_from:  # type: ignore[union-attr]
            return QuorumTimeout("no answer in time")
        return super().outcome(action)


def attempt(harness: FakeQuorum, begun: BegunCopies, seed: int) -> LedgerReReplicated:
    procedure = ReReplicateLedger(LEDGER, "b0", replace(OPTIONS, read_entries_max=50), begun)
    Client(harness, procedure).run(random.Random(seed))  # type: ignore[arg-type]
    return procedure.value()


@pytest.mark.parametrize("seed", range(20))
def test_a_retry_goes_on_with_the_same_bookie_and_copies_what_that_lacks(seed: int) -> None:
    harness = quorum(kind=FallingSilent)
    begun: BegunCopies = {}
    assert attempt(harness, begun, seed).parked
    (kept,) = begun.values()
    assert len(harness.bookies[kept.target].entries) == 200
    assert attempt(harness, begun, seed + 2).parked  # one that copies nothing forgets nothing
    assert begun["b0", 0].target == kept.target
    harness.silent_from = None
    again = attempt(harness, begun, seed + 1)
    assert again.is_whole
    assert again.entries == LAST + 1 - 200
    assert harness.metadata.fragments[0].ensemble == (kept.target, "b1", "b2")
    assert not begun


def test_a_bookie_that_could_not_be_named_is_gone_on_with() -> None:
    harness = quorum()
    begun: BegunCopies = {}
    procedure = ReReplicateLedger(LEDGER, "b0", OPTIONS, begun)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(
        until=lambda: any(isinstance(one, UpdateMetadata) for one in client.pending.values())
    )
    (kept,) = begun.values()
    assert len(harness.bookies[kept.target].entries) == LAST + 1
    again = ReReplicateLedger(LEDGER, "b0", OPTIONS, begun)
    Client(harness, again).run(random.Random(1))  # type: ignore[arg-type]
    assert again.repaired.is_whole
    assert again.repaired.entries == 1  # the last one, which shows that it is there
    assert harness.metadata.fragments[0].ensemble == (kept.target, "b1", "b2")
    assert not begun


def test_a_bookie_that_lost_what_it_was_given_gets_all_of_it_again() -> None:
    harness = quorum(kind=FallingSilent)
    begun: BegunCopies = {}
    attempt(harness, begun, 1)
    (kept,) = begun.values()
    harness.bookies[kept.target].entries.clear()
    harness.silent_from = None
    assert attempt(harness, begun, 2).entries == LAST + 1


def test_a_bookie_that_is_gone_meanwhile_is_not_waited_for() -> None:
    harness = quorum(kind=FallingSilent)
    begun: BegunCopies = {}
    attempt(harness, begun, 1)
    (kept,) = begun.values()
    harness.silent_from = None
    harness.bookies[kept.target].away = True
    assert attempt(harness, begun, 2).is_whole
    assert kept.target not in harness.metadata.fragments[0].ensemble


@pytest.mark.parametrize("seed", range(50))
def test_what_is_not_held_is_left_and_always_the_last_one(seed: int) -> None:
    rng = random.Random(seed)

    def ranges() -> list[tuple[int, int]]:
        ids = sorted(rng.sample(range(60), 2 * rng.randrange(6)))
        return [(ids[at], ids[at + 1]) for at in range(0, len(ids), 2)]

    runs, held = ranges(), ranges()
    wanted = {one for first, last in runs for one in range(first, last + 1)}
    there = {one for first, last in held for one in range(first, last + 1)}
    left = [
        one
        for first, last in HeldEntries(held).without(iter(runs))
        for one in range(first, last + 1)
    ]
    assert left == sorted(set(left))
    assert set(left) == (wanted - there) | set(sorted(wanted)[-1:])
