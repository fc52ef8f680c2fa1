"""Every copy of a part of a ledger: what an audit says is exactly what is there."""

from __future__ import annotations

import random

import pytest

from fastbk.replication.auditing import AWAY, AuditPart, PartAudited
from fastbk.replication.procedure import Found
from fastbk.replication.repair_options import RepairOptions
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import (
    LEDGER,
    Client,
    FakeQuorum,
    data_of,
    entry_of,
    holders,
    metadata_of,
)
from tests.unit.replication.test_ledger_repair import SHAPES, SICK, share, world_of


def audit(
    harness: FakeQuorum, rng: random.Random, first: int, last: int, **options: object
) -> PartAudited:
    """Audit first..last, fragment by fragment; the parts' tables put together."""
    whole = PartAudited(LEDGER, first, last)
    begins = [max(first, one.first_entry_id) for one in harness.metadata.fragments]
    for begin, end in zip(begins, [*(one - 1 for one in begins[1:]), last], strict=True):
        if begin > min(end, last):
            continue
        procedure = AuditPart(
            LEDGER,
            harness.metadata,
            begin,
            min(end, last),
            RepairOptions(**options),  # type: ignore[arg-type]
        )
        Client(harness, procedure).run(rng)  # type: ignore[arg-type]
        part = procedure.value()
        whole.copies += part.copies
        whole.differing_count += part.differing_count
        whole.differing |= part.differing
        whole.lost_count += part.lost_count
        whole.lost += part.lost
    return whole


def bad_of(found: PartAudited, bookie_id: str) -> set[int]:
    return {
        entry_id
        for one in found.copies
        if one.bookie_id == bookie_id
        for first, last, _ in one.bad
        for entry_id in range(first, last + 1)
    }


@pytest.mark.parametrize(("size", "quorum", "firsts"), SHAPES)
@pytest.mark.parametrize("limbo", [False, True])
def test_what_is_not_shown_is_named_and_nothing_else(
    size: int, quorum: int, firsts: tuple[int, ...], limbo: bool, rng: random.Random
) -> None:
    for _ in range(20):
        harness, sick = world_of(metadata_of(size, quorum, quorum // 2 + 1, *firsts[1:]), 60)
        mine = sorted(share(harness))
        sick.limbo = limbo
        sick.rotten = set(rng.sample(mine, rng.randrange(len(mine))))
        gone = set(rng.sample(mine, rng.randrange(len(mine)))) - sick.rotten
        for entry_id in gone:
            del sick.entries[entry_id]
        first = rng.randrange(61)
        last = rng.randrange(first, 61)
        found = audit(harness, rng, first, last, read_entries_max=rng.choice([1, 3, 1000]))
        wanted = {one for one in sick.rotten | gone if first <= one <= last}
        assert bad_of(found, SICK) == wanted
        assert found.is_whole == (not wanted)
        assert not found.differing_count
        assert not found.lost_count, "the others have it"
        for name in {one.bookie_id for one in found.copies}:
            copies = [one for one in found.copies if one.bookie_id == name]
            due = [n for n in range(first, last + 1) if name in holders(harness.metadata, n)]
            assert sum(one.due for one in copies) == len(due)
            good = [n for n in due if name != SICK or n not in wanted]
            assert sum(one.good for one in copies) == len(good)
            assert sum(one.size_bytes for one in copies) == sum(len(data_of(n)) for n in good)


def test_why_a_copy_is_not_shown_is_said_for_people(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2), 20)
    sick.rotten = {3}
    del sick.entries[9]
    lost = "damaged or lost: the bookie cannot show it, nor say that it never had it"
    for limbo, said in ((False, "not there"), (True, lost)):
        sick.limbo = limbo
        found = audit(harness, rng, 0, 20, read_entries_max=1)
        (asked,) = (one for one in found.copies if one.bookie_id == SICK)
        assert asked.bad == [(3, 3, lost), (9, 9, said)]
    sick.limbo = False
    for status in Status:
        sick.read_status = status
        for copies in audit(harness, rng, 0, 20, patience_s=0.5).copies:
            for text in (copies.error, *(why for _, _, why in copies.bad)):
                assert "CANNOT_TELL" not in text and not text.startswith(status.name)


def test_good_copies_of_something_else_are_named_with_who_agrees(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2), 20)
    sick.entries[7] = entry_of(7)._replace(data=b"another")
    sick.entries[9] = Found(9, 8, entry_of(9).length + 1, data_of(9))
    found = audit(harness, rng, 0, 20)
    assert not found.is_whole
    assert found.differing == {7: (("b0", "b2"), (SICK,)), 9: (("b0", "b2"), (SICK,))}
    assert all(one.is_whole for one in found.copies)


def test_an_entry_that_nobody_has_is_lost_only_if_all_were_asked(rng: random.Random) -> None:
    harness, _ = world_of(metadata_of(3, 3, 2), 20)
    for bookie in harness.bookies.values():
        del bookie.entries[5]
    assert audit(harness, rng, 0, 20).lost == [5]
    harness.bookies["b0"].read_status = Status.TOO_MANY_REQUESTS
    found = audit(harness, rng, 0, 20, patience_s=0.5)
    assert found.lost == []
    (asked,) = (one for one in found.copies if one.bookie_id == "b0")
    assert "TOO_MANY_REQUESTS" in asked.error.upper().replace(" ", "_")
    assert (asked.good, asked.bad_count, asked.is_whole) == (0, 0, False)


def test_many_bad_ranges_are_counted_all_and_listed_in_part(rng: random.Random) -> None:
    harness, sick = world_of(metadata_of(3, 3, 2), 1999)
    sick.rotten = set(range(0, 2000, 3))
    found = audit(harness, rng, 0, 1999)
    (asked,) = (one for one in found.copies if one.bookie_id == SICK)
    assert asked.bad_count == len(sick.rotten)
    assert len(asked.bad) == 100
    assert asked.good == 2000 - len(sick.rotten)


def test_who_is_known_to_be_down_is_not_asked(rng: random.Random) -> None:
    harness, _ = world_of(metadata_of(3, 3, 2), 20)
    procedure = AuditPart(LEDGER, harness.metadata, 3, 9, away=("b0", "b1", "b2"))
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(rng)
    assert not client.log
    found = procedure.value()
    assert [(one.due, one.good, one.error) for one in found.copies] == [(7, 0, AWAY)] * 3
    assert not found.lost
