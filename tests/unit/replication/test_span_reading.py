"""A striped share is read in few requests, and what an answer lacks is not taken for missing."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import QuorumTimeout
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.model.quorum import share, write_set
from fastbk.replication.copying import ReadSpan, choose_sources
from fastbk.replication.options import ReadOptions
from fastbk.replication.procedure import ReadEntries, Reply, SendRequest
from fastbk.replication.re_replication import ReReplicateLedger
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Bookie, Client, FakeQuorum

NAMES = ("a", "b", "c", "d", "e", "f", "g")


def metadata_of(size: int, quorum: int, last: int = 199) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=quorum // 2 + 1,
        fragments=(Fragment(0, NAMES[:size]),),
        state=LedgerState.CLOSED,
        last_entry_id=last,
        length=10 * (last + 1),
    )


def world_of(metadata: LedgerMetadata) -> FakeQuorum:
    world = FakeQuorum(VersionedLedger(metadata, 1), {one: Bookie() for one in NAMES})
    for entry_id in range(metadata.last_entry_id + 1):
        world.write(entry_id)
    return world


def span_of(metadata: LedgerMetadata, **options: int) -> ReadSpan:
    """The whole share of "a"."""
    runs = list(share(0, metadata.ensemble_size, metadata.write_quorum, 0, metadata.last_entry_id))
    sources = choose_sources(metadata, metadata.fragments[0], "a", {"a"}, 0)
    return ReadSpan(LEDGER, metadata.ensemble_size, runs, sources, ReadOptions(**options))  # type: ignore[arg-type]


def ids_in(runs: list[tuple[int, int]]) -> list[int]:
    return [one for first, last in runs for one in range(first, last + 1)]


@pytest.mark.parametrize(("size", "quorum"), [(3, 2), (4, 2), (5, 3), (5, 4), (7, 3)])
def test_few_holders_have_the_whole_share(size: int, quorum: int) -> None:
    metadata = metadata_of(size, quorum)
    due = {one for one in range(size) if 0 in write_set(one, size, quorum)}
    used = set()
    for turn in range(size):
        chosen = choose_sources(metadata, metadata.fragments[0], "a", {"a"}, turn)
        assert chosen.keys() == due
        assert all(
            NAMES.index(source) in write_set(one, size, quorum) for one, source in chosen.items()
        )
        assert "a" not in chosen.values()
        assert len(set(chosen.values())) == 2, "its neighbours on both sides have all of it"
        used |= set(chosen.values())
    assert quorum == 2 or len(used) > 2, "others are asked in other turns"


def test_what_only_bookies_that_are_away_hold_has_no_source() -> None:
    metadata = metadata_of(3, 2)
    assert choose_sources(metadata, metadata.fragments[0], "a", {"a", "b"}, 0) == {2: "c"}
    assert choose_sources(metadata, metadata.fragments[0], "a", {"a", "b", "c"}, 0) == {}


@pytest.mark.parametrize("seed", range(20))
def test_every_id_is_found_or_left_or_ahead(seed: int) -> None:
    """Answers of any length, from bookies that lack entries, have damaged ones or say nothing."""
    rng = random.Random(seed)
    size, quorum = rng.choice([(3, 2), (5, 3), (4, 3)])
    metadata = metadata_of(size, quorum)
    world = world_of(metadata)
    for name in NAMES[1:size]:
        bookie = world.bookies[name]
        for entry_id in [one for one in bookie.entries if rng.random() < 0.05]:
            del bookie.entries[entry_id]
        bookie.damaged |= {one for one in bookie.entries if rng.random() < 0.02}
        bookie.away = rng.random() < 0.1
    span = span_of(metadata, batch_entries=rng.choice([1, 7, 40, 1000]))
    Client(world, span).run(rng)  # type: ignore[arg-type]
    read = span.value()
    found = [one.entry_id for one in read.found]
    left, ahead = ids_in(read.left), ids_in(read.ahead)
    wanted = ids_in(list(share(0, size, quorum, 0, metadata.last_entry_id)))
    assert sorted(found + left + ahead) == wanted
    assert not ahead or max([*found, *left]) < min(ahead)
    assert found or left, "it gets on"
    assert found == sorted(found)
    sources = choose_sources(metadata, metadata.fragments[0], "a", {"a"}, 0).values()
    assert read.silent == {name for name in sources if world.bookies[name].away}


def test_an_answer_that_gets_nowhere_leaves_its_part() -> None:
    """A bookie that says it has nothing below the first id that was asked for says nothing at all."""
    metadata = metadata_of(3, 2)
    world = world_of(metadata)
    span = span_of(metadata)
    client = Client(world, span)  # type: ignore[arg-type]
    first, second = client.asks(ReadEntries)
    client.complete(first, Reply(Status.OK, next_entry_id=0))
    client.complete(second, QuorumTimeout("no answer"))
    read = span.value()
    assert not read.found
    assert len(ids_in(read.left)) == 133
    assert not read.ahead
    assert read.silent == {second.bookie_id}


def test_a_striped_share_takes_a_request_for_hundreds_of_entries(rng: random.Random) -> None:
    metadata = metadata_of(5, 3, last=4999)
    world = world_of(metadata)
    world.bookies["a"] = Bookie(away=True)
    procedure = ReReplicateLedger(LEDGER, "a")
    client = Client(world, procedure)  # type: ignore[arg-type]
    client.run(rng)
    asked = [
        one
        for one in client.log
        if isinstance(one, SendRequest) and isinstance(one.request, ReadEntries)
    ]
    assert procedure.value().entries == 3000
    assert len(asked) < 30
