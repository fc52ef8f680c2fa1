"""The check of a recovered ledger: what bookies lack is marked, all of it and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.errors import MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication import copy_listing
from fastbk.replication.copy_listing import CheckRecoveredCopies, lacking
from fastbk.replication.copying import share_of
from fastbk.wire.statuses import Status
from tests.fixtures.bookie_model import runs_of
from tests.fixtures.fake_quorum import LEDGER, Bookie, Client, FakeQuorum, holders, metadata_of

Ids = set[tuple[str, int]]


@settings(max_examples=300, deadline=None)
@given(
    shape=st.sampled_from([(3, 3), (4, 3), (5, 3), (5, 1)]),
    member=st.integers(0, 4),
    span=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    held=st.sets(st.integers(0, 30)),
)
def test_the_gaps_cover_what_is_missing_and_nothing_that_is_there(
    shape: tuple[int, int], member: int, span: tuple[int, int], held: set[int]
) -> None:
    metadata = metadata_of(*shape, 1)
    member %= shape[0]
    due = {
        one for first, last in share_of(member, metadata, *span) for one in range(first, last + 1)
    }
    gaps = list(lacking(metadata, member, span, runs_of(held)))
    found = {one for first, last in gaps for one in range(first, last + 1)}
    assert found & due == due - held
    assert not found & held
    assert all({first, last} <= due for first, last in gaps)


def closed(last: int, *firsts: int) -> tuple[FakeQuorum, LedgerMetadata]:
    """A ledger with E 4 and Qw 3 that all bookies hold whole."""
    metadata = replace(
        metadata_of(4, 3, 2, *firsts), state=LedgerState.CLOSED, last_entry_id=last, length=1
    )
    names = {one for fragment in metadata.fragments for one in fragment.ensemble}
    harness = FakeQuorum(
        VersionedLedger(metadata, 1), {name: Bookie() for name in names}, [metadata]
    )
    for entry_id in range(last + 1):
        harness.write(entry_id)
    return harness, metadata


def checked(
    harness: FakeQuorum, metadata: LedgerMetadata, away: str = "", unable: str = ""
) -> tuple[MissingReplica, ...]:
    registered = set(harness.bookies) - {away}
    check = CheckRecoveredCopies(LEDGER, metadata, registered, {unable}, 1.0)
    Client(harness, check).run()
    assert harness.marked == check.value()
    return harness.marked


def ids(found: tuple[MissingReplica, ...], metadata: LedgerMetadata) -> Ids:
    """The marked entries that belong to the shares of their bookies."""
    return {
        (one.bookie_id, entry_id)
        for one in found
        for entry_id in range(one.first_entry_id, int(one.end))
        if one.bookie_id in holders(metadata, entry_id)
    }


def test_a_whole_ledger_gets_no_mark() -> None:
    assert checked(*closed(20, 10)) == ()


def test_what_bookies_lack_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_listing, "RANGES_A_CALL", 2)  # so that it takes several answers
    harness, metadata = closed(40, 10)
    lost: Ids = set()
    for bookie_id, entry_id in [("b1", 1), ("b1", 3), ("b1", 12), ("b2", 40), ("b4", 13)]:
        del harness.bookies[bookie_id].entries[entry_id]
        lost.add((bookie_id, entry_id))
    assert ids(checked(harness, metadata), metadata) == lost


def test_a_bookie_that_is_away_may_lack_its_share() -> None:
    harness, metadata = closed(20)
    (one,) = checked(harness, metadata, away="b1")
    assert (one.bookie_id, one.first_entry_id, one.last_entry_id) == ("b1", 0, 20)
    assert "away" in one.reason


def test_a_bookie_that_cannot_tell_may_lack_its_share() -> None:
    harness, metadata = closed(20)
    harness.bookies["b1"].read_status = Status.CANNOT_TELL
    harness.bookies["b2"].away = True
    assert {one.bookie_id for one in checked(harness, metadata)} == {"b1", "b2"}


def test_a_bookie_without_the_ledger_lacks_its_share() -> None:
    harness, metadata = closed(20)
    for status in (Status.NO_LEDGER, Status.OTHER_CREATION):
        harness.bookies["b1"].read_status = status
        (one,) = checked(harness, metadata)
        assert (one.bookie_id, one.reason) == ("b1", copy_listing.REASON)
        harness.marked = ()


def test_a_bookie_that_gives_no_list_is_left_out() -> None:
    harness, metadata = closed(20)
    harness.bookies["b1"].read_status = Status.UNSUPPORTED
    assert checked(harness, metadata, unable="b1") == ()


def test_a_mark_that_the_store_does_not_take_is_an_error() -> None:
    harness, metadata = closed(20)
    harness.store_away = True
    check = CheckRecoveredCopies(LEDGER, metadata, {"b0", "b2", "b3"}, (), 1.0)
    Client(harness, check).run()
    with pytest.raises(MetadataUnavailable):
        check.value()
