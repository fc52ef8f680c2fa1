"""The read machine: with any mixture of good, missing, damaged and silent copies it reads exactly what can be read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import DigestMismatch, NoSuchEntry, NotEnoughBookies
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import missing_proof, write_set
from fastbk.replication.read_machine import ReadMachine
from fastbk.replication.replicas import BAD_DIGEST
from fastbk.wire.statuses import Status

GOOD, ABSENT, DAMAGED, SILENT = "good", "absent", "damaged", "silent"


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    fragments = []
    for first in sorted({0} | draw(st.sets(st.integers(1, 20), max_size=2))):
        names = draw(st.permutations([f"b{one}" for one in range(7)]))
        fragments.append(Fragment(first, tuple(names[:size])))
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        fragments=tuple(fragments),
    )


def holders(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    ensemble = metadata.fragment_of(entry_id).ensemble
    return [ensemble[one] for one in write_set(entry_id, len(ensemble), metadata.write_quorum)]


@given(ledgers(), st.data())
def test_everything_readable_is_read_and_the_first_that_is_not_is_named(
    metadata: LedgerMetadata, data: st.DataObject
) -> None:
    count = 25
    copies = {
        (entry_id, bookie): data.draw(
            st.sampled_from([GOOD, GOOD, GOOD, ABSENT, DAMAGED, SILENT]),
            label=f"{entry_id} {bookie}",
        )
        for entry_id in range(count)
        for bookie in holders(metadata, entry_id)
    }
    first = data.draw(st.integers(0, count - 1))
    limit = data.draw(st.integers(1, 10))
    machine = ReadMachine(1, metadata, first, count - 1, prefer=data.draw(st.integers(0, 5)))
    read: list[int] = []
    for _ in range(count * 10):
        request = machine.next_request()
        if request is None:
            break
        assert first <= request.first <= request.last < count
        assert all(
            request.bookie_id in holders(metadata, one)
            for one in range(request.first, request.last + 1)
        )
        # A bookie that answers at all is silent for the whole request.
        if copies[request.first, request.bookie_id] == SILENT:
            machine.failed(request.bookie_id, "silent")
            continue
        found, damaged = [], False
        for entry_id in range(request.first, request.last + 1):
            state = copies[entry_id, request.bookie_id]
            if state == DAMAGED:
                damaged = True
                break
            if state == GOOD:
                found.append(entry_id)
            if len(found) == limit:
                break
        taken = machine.answered(request.bookie_id, found, request.last, damaged)
        read += found[:taken]
    else:
        raise AssertionError("it never ends")
    unreadable = [
        one
        for one in range(first, count)
        if all(copies[one, bookie] != GOOD for bookie in holders(metadata, one))
    ]
    end = unreadable[0] if unreadable else count
    assert read == list(range(first, end))
    if not unreadable:
        assert machine.error is None
        return
    assert machine.error is not None
    said = machine.error.replicas
    assert set(said) == set(holders(metadata, end))
    # A damaged copy of a later entry may hide that this one is absent; never the other way round.
    assert all(copies[end, bookie] == ABSENT for bookie in said if said[bookie] == "NO_ENTRY")
    if list(said.values()).count("NO_ENTRY") >= missing_proof(
        metadata.write_quorum, metadata.ack_quorum
    ):
        assert isinstance(machine.error, NoSuchEntry)
    elif BAD_DIGEST in said.values():
        assert isinstance(machine.error, DigestMismatch)
    else:
        assert isinstance(machine.error, NotEnoughBookies)


def test_bookies_to_avoid_are_asked_last() -> None:
    metadata = LedgerMetadata(
        ensemble_size=3, write_quorum=3, ack_quorum=2, fragments=(Fragment(0, ("a", "b", "c")),)
    )
    machine = ReadMachine(1, metadata, 0, 9, prefer=0, avoid=["a", "b"])
    order = []
    while (request := machine.next_request()) is not None:
        order.append(request.bookie_id)
        machine.refused(request.bookie_id, Status.CANNOT_TELL)
    assert order == ["c", "a", "b"]
    assert isinstance(machine.error, NotEnoughBookies)
    assert BAD_DIGEST not in machine.error.replicas.values()
