"""Ranges over any mixture of good, missing, damaged and silent copies, answered in any order: what can be read is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import DigestMismatch, NoSuchEntry, NotEnoughBookies
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import missing_proof
from fastbk.replication.procedure import Found, ReadEntries, Reply, SendRequest, Sleep
from fastbk.replication.reading import ReadOptions, ReadRange
from fastbk.replication.replicas import BAD_DIGEST, Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Client, FakeQuorum, entry_of, holders

GOOD, ABSENT, DAMAGED, CANNOT_TELL, AWAY = range(5)
COUNT = 25
PACING = Pacing(request_timeout_s=1.0, give_up_s=1.0, pause_min_s=0.1, pause_max_s=0.5)


class Copies(FakeQuorum):
    """Bookies whose copies are as drawn; a bookie that is away for one entry is so for the whole request."""

    def __init__(self, chance: random.Random, metadata: LedgerMetadata, kinds: list[int]) -> None:
        made = FakeQuorum.of(metadata)
        super().__init__(made.current, made.bookies, made.history)
        self.limit = chance.randint(1, 10)
        self.copies = {
            (entry_id, bookie): chance.choice(kinds)
            for entry_id in range(COUNT)
            for bookie in holders(metadata, entry_id)
        }

    def outcome(self, action: object) -> object:  # type: ignore[override]
        """Answer reads by what was drawn."""
        if not isinstance(action, SendRequest):
            return super().outcome(action)  # type: ignore[arg-type]
        request = action.request
        assert isinstance(request, ReadEntries)
        assert 0 <= request.first <= request.last < COUNT
        found: list[Found] = []
        for entry_id in range(request.first, request.last + 1):
            # Nobody is asked for what it does not hold.
            state = self.copies[entry_id, action.bookie_id]
            if state == AWAY and entry_id == request.first:
                return NotEnoughBookies("not reached")
            if state in (CANNOT_TELL, AWAY):
                return Reply(Status.OK if found else Status.CANNOT_TELL, tuple(found))
            if state == DAMAGED:
                return Reply(Status.OK, tuple(found), damaged=True)
            if state == GOOD:
                found.append(entry_of(entry_id))
            if len(found) == min(self.limit, request.entries_max):
                return Reply(Status.OK, tuple(found), next_entry_id=entry_id + 1)
        return Reply(Status.OK, tuple(found), next_entry_id=request.last + 1)

    def is_readable(self, entry_id: int) -> bool:
        """Return whether any bookie would give it."""
        return any(self.copies[entry_id, one] == GOOD for one in holders(self.metadata, entry_id))


def any_ledger(chance: random.Random) -> LedgerMetadata:
    size = chance.randint(1, 5)
    write_quorum = chance.randint(1, size)
    fragments = []
    for first in sorted({0, *chance.sample(range(1, 20), chance.randint(0, 2))}):
        names = chance.sample([f"b{one}" for one in range(7)], size)
        fragments.append(Fragment(first, tuple(names)))
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=chance.randint(1, write_quorum),
        fragments=tuple(fragments),
    )


@given(st.integers(0, 2**32 - 1))
def test_everything_readable_is_read_and_the_first_that_is_not_is_named(seed: int) -> None:
    chance = random.Random(seed)
    kinds = chance.choice(
        [[GOOD], [GOOD] * 5 + [ABSENT, DAMAGED, CANNOT_TELL, AWAY], [GOOD, ABSENT]]
    )
    harness = Copies(chance, any_ledger(chance), kinds)
    first = chance.randrange(COUNT)
    options = ReadOptions(
        batch_entries=chance.randint(1, 30),
        batch_bytes=chance.choice([200, 1000, 1 << 20]),
        size_bytes_max=chance.choice([1, 100, 10_000]),
        speculative_s=chance.choice([None, 0.01]),
        parallel=chance.random() < 0.2,
        is_unconfirmed=chance.random() < 0.3,
        pacing=PACING,
    )
    shuffled = chance.random() < 0.5
    reading = ReadRange(
        LEDGER,
        harness.metadata,
        first,
        COUNT - 1,
        options,
        lambda names: chance.sample(names, len(names)) if shuffled else names,
    )
    client = Client(harness, reading)  # type: ignore[arg-type]
    read: list[int] = []
    most_bytes = 0
    for _ in range(10_000):
        if not client.pending or chance.random() < 0.2:
            most_bytes = max(most_bytes, reading.found_bytes)
            found = reading.take_found(client.now_s)
            client.take()
            assert all(one == entry_of(one.entry_id) for one in found)
            read += [one.entry_id for one in found]
            if not found and reading.is_finished:
                break
        else:
            client.deliver(chance.choice(list(client.pending.values())))
    else:
        raise AssertionError("it never ends")
    unreadable = [one for one in range(first, COUNT) if not harness.is_readable(one)]
    end = unreadable[0] if unreadable else COUNT
    assert read == list(range(first, end))
    assert reading.position == end
    # One answer of each part that is read at the same time may come on top.
    assert most_bytes <= options.size_bytes_max + 8 * 10 * 9
    check_error(harness, reading, end)


def check_error(harness: Copies, reading: ReadRange, end: int) -> None:
    """Check that it failed just for the reason there is."""
    if end == COUNT:
        assert reading.error is None
        return
    states = [harness.copies[end, one] for one in holders(harness.metadata, end)]
    proof = missing_proof(harness.metadata.write_quorum, harness.metadata.ack_quorum)
    if reading.error is None:
        assert reading.options.is_unconfirmed
        assert states.count(ABSENT) >= proof
        return
    said = reading.error.replicas
    assert set(said) == set(holders(harness.metadata, end))
    assert reading.error.entry_id == end
    # Hidden by damage of a later one or not: what is said of an entry is what its copy is.
    assert all(harness.copies[end, one] == ABSENT for one in said if said[one] == "NO_ENTRY")
    if list(said.values()).count("NO_ENTRY") >= proof:
        assert isinstance(reading.error, NoSuchEntry)
    elif BAD_DIGEST in said.values():
        assert isinstance(reading.error, DigestMismatch)
    else:
        assert type(reading.error) is NotEnoughBookies


@given(st.integers(0, 2**32 - 1))
def test_a_cancelled_range_asks_for_nothing_more(seed: int) -> None:
    chance = random.Random(seed)
    harness = Copies(chance, any_ledger(chance), [GOOD, GOOD, ABSENT, AWAY])
    reading = ReadRange(LEDGER, harness.metadata, 0, COUNT - 1, ReadOptions(pacing=PACING))
    client = Client(harness, reading)  # type: ignore[arg-type]
    for _ in range(chance.randrange(20)):
        if client.pending:
            client.deliver(chance.choice(list(client.pending.values())))
    late = dict(client.pending)
    reading.cancel()
    client.take()
    assert not client.pending
    for tag, action in late.items():
        reading.completed(tag, None if isinstance(action, Sleep) else NotEnoughBookies(), 1.0)
        assert reading.take_actions() == []
