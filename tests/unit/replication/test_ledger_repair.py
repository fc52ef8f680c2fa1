"""Healing a bookie's copies in place: all that it can't show is copied to it, and nothing else is touched."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fastbk.errors import Error
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import EntryId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.replication.ledger_repair import LedgerRepaired, RepairLedger
from fastbk.replication.procedure import AddEntry, Found, ReadEntries, Reply, SendRequest
from fastbk.replication.repair_options import RepairOptions
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import (
    LEDGER,
    Bookie,
    Client,
    FakeQuorum,
    entry_of,
    holders,
    metadata_of,
)

SICK = "b1"


class SickBookie(Bookie):
    """`rotten`: checksums fail here: they are not shown, a recovery add replaces them. `limbo`: it never says "no"."""

    def __init__(self) -> None:
        super().__init__()
        self.rotten: set[EntryId] = set()
        self.limbo = False
        self.stubborn: set[EntryId] = set()

    def take(self, entry: Found, *, recovery: bool = False) -> Reply:
        if entry.entry_id in self.stubborn:
            return Reply(Status.CONFLICT)
        if recovery and entry.entry_id in self.rotten:
            self.rotten.discard(entry.entry_id)
            self.entries[entry.entry_id] = entry
        return super().take(entry, recovery=recovery)

    def answer(self, request: object) -> Reply:
        if not isinstance(request, ReadEntries):
            return super().answer(request)
        found: list[Found] = []
        for entry_id in range(request.first, request.last + 1):
            if entry_id in self.rotten:
                return Reply(Status.OK, tuple(found)) if found else Reply(Status.CANNOT_TELL)
            if entry_id in self.entries:
                found.append(self.entries[entry_id])
                if len(found) == request.entries_max:
                    return Reply(Status.OK, tuple(found), next_entry_id=entry_id + 1)
            elif self.limbo:
                return Reply(Status.OK, tuple(found)) if found else Reply(Status.CANNOT_TELL)
        if not found:
            return Reply(Status.CANNOT_TELL if self.limbo else Status.NO_ENTRY)
        return Reply(Status.OK, tuple(found), next_entry_id=request.last + 1)


def world_of(metadata: LedgerMetadata, last: int) -> tuple[FakeQuorum, SickBookie]:
    metadata = replace(
        metadata, state=LedgerState.CLOSED, last_entry_id=last, length=10 * (last + 1)
    )
    names = {one for fragment in metadata.fragments for one in fragment.ensemble}
    harness = FakeQuorum(
        VersionedLedger(metadata, 1), {name: Bookie() for name in names}, [metadata]
    )
    sick = SickBookie()
    harness.bookies[SICK] = sick
    for entry_id in range(last + 1):
        harness.write(entry_id)
    return harness, sick


def heal(
    harness: FakeQuorum,
    rng: random.Random,
    ranges: list[tuple[int, int]] | None = None,
    **options: object,
) -> tuple[LedgerRepaired, Client]:
    procedure = RepairLedger(LEDGER, SICK, RepairOptions(**options), ranges)  # type: ignore[arg-type]
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(rng)
    return procedure.value(), client


def share(harness: FakeQuorum) -> set[int]:
    return {
        entry_id
        for entry_id in range(harness.metadata.last_entry_id + 1)
        if SICK in holders(harness.metadata, entry_id)
    }


def check_whole(harness: FakeQuorum, sick: SickBookie) -> None:
    assert not sick.rotten
    assert set(sick.entries) == share(harness)
    assert all(found == entry_of(entry_id) for entry_id, found in sick.entries.items())


def asked(client: Client, kind: type) -> list[SendRequest]:
    return [
        one for one in client.log if isinstance(one, SendRequest) and isinstance(one.request, kind)
    ]


SHAPES = [(3, 3, (0,)), (4, 2, (0, 17)), (5, 3, (0, 9, 10, 31))]


@pytest.mark.parametrize(("size", "quorum", "firsts"), SHAPES)
@pytest.mark.parametrize("limbo", [False, True])
def test_whatever_is_rotten_or_gone_comes_back(
    size: int, quorum: int, firsts: tuple[int, ...], limbo: bool, rng: random.Random
) -> None:
    for _ in range(20):
        harness, sick = world_of(metadata_of(size, quorum, quorum // 2 + 1, *firsts[1:]), 60)
        mine = sorted(share(harness))
        sick.limbo = limbo
        sick.rotten = set(rng.sample(mine, rng.randrange(len(mine))))
        for entry_id in rng.sample(mine, rng.randrange(len(mine))):
            if entry_id not in sick.rotten:
                del sick.entries[entry_id]
        before = len(sick.entries) - len(sick.rotten)
        entries_max = rng.choice([1, 3, 1000])
        result, client = heal(harness, rng, read_entries_max=entries_max, entries_in_flight_max=4)
        assert result.is_whole
        assert not result.is_open
        check_whole(harness, sick)
        assert len(mine) - before <= result.healed
        assert {one.bookie_id for one in asked(client, AddEntry)} <= {SICK}


def test_what_is_whole_is_only_looked_at(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(4, 2, 2), 400)
    result, client = heal(harness, rng)
    assert (result.checked, result.healed) == (len(share(harness)), 0)
    check_whole(harness, sick)
    assert len(client.log) == 2, (
        "one reading of the metadata, one request for a share of many ranges"
    )


def test_only_the_ranges_that_were_asked_for(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2, 20), 60)
    sick.rotten = {5, 6, 30, 50}
    result, client = heal(harness, rng, [(4, 6), (18, 22), (50, 50)])
    assert sick.rotten == {30}
    assert result.is_whole
    for one in asked(client, ReadEntries):
        if one.bookie_id == SICK:
            low, high = one.request.first, one.request.last  # type: ignore[union-attr]
            assert any(first <= low <= high <= last for first, last in [(4, 6), (18, 22), (50, 50)])


def test_one_range_of_a_striped_ledger_is_one_request(rng: random.Random) -> None:
    """Each run of three ids was a request of its own: repairs of marks took a third as many as entries."""
    harness, sick = world_of(metadata_of(5, 3, 2), 300)
    whole, client = heal(harness, rng, [(10, 250)])
    assert whole.is_whole
    (request,) = (one.request for one in asked(client, ReadEntries))
    assert isinstance(request, ReadEntries)
    assert request.first >= 10
    assert request.last == 250
    for entry_id in [one for one in sick.entries if 20 <= one <= 240]:
        del sick.entries[entry_id]
    healed, _ = heal(harness, rng, [(10, 250)])
    assert healed.is_whole
    check_whole(harness, sick)


def test_what_nobody_has_is_counted_and_the_rest_is_healed(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2), 30)
    for name in ("b0", "b2"):
        harness.bookies[name].damaged = {7}
    sick.rotten = {6, 7, 8}
    result, _ = heal(harness, rng, patience_s=0.1)
    assert (result.lost_count, list(result.lost)) == (1, [7])
    assert not result.is_whole
    assert sick.rotten == {7}


def test_what_only_silent_bookies_may_have_is_parked_after_one_wait(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2, 30), 60)
    for name in ("b0", "b2"):
        harness.bookies[name].away = True
    sick.rotten = set(range(0, 60, 2))
    result, client = heal(harness, rng, patience_s=5.0)
    assert (result.is_whole, result.is_parked, result.lost_count) == (False, True, 0)
    assert result.parked[0] == {"b0", "b2"}
    assert client.now_s < 10.0


def test_a_copy_that_it_does_not_take_is_said_and_the_rest_is_healed(rng: random.Random) -> None:
    """First copy wins (INV-A5), also one that came with a wrong digest."""
    harness, sick = world_of(metadata_of(3, 3, 2), 60)
    sick.rotten = {4, 5, 7, 40}
    sick.stubborn = {4, 7}
    for _ in range(2):
        result, _ = heal(harness, rng, entries_in_flight_max=1)
        assert (result.refused_count, sorted(result.refused)) == (2, [4, 7])
        assert not result.left
        assert not result.is_whole
        assert sick.rotten == {4, 7}


def test_the_fragment_that_is_written_is_left_alone(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2, 10), 20)
    harness.edit(state=LedgerState.OPEN, last_entry_id=-1)
    sick.rotten = {3, 15}
    result, _ = heal(harness, rng)
    assert result.is_open
    assert sick.rotten == {15}


def test_a_deleted_ledger_and_a_silent_bookie(rng: random.Random) -> None:
    harness, _ = world_of(metadata_of(3, 3, 2), 5)
    harness.bookies[SICK].away = True
    with pytest.raises(Error):
        heal(harness, rng, patience_s=0.2)
    harness.current = None
    result, _ = heal(harness, rng)
    assert result.is_deleted
    assert result.ledger_id == LEDGER
