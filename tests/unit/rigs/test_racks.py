"""The judge of rig `racks` bites: a write set in one place is found, whichever of a ring, however wide the rest is."""

from __future__ import annotations

from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from tests.rigs.racks import BOOKIES, PLACES, bookies_at, location_of, of_one_place


def found(write_quorum: int, *ensembles: str) -> list[str]:
    """Return what the judge finds; a bookie's first letter is its place."""
    metadata = LedgerMetadata(
        ensemble_size=len(ensembles[0].split()),
        write_quorum=write_quorum,
        ack_quorum=1,
        fragments=tuple(
            Fragment(10 * index, tuple(map(BookieId, ensemble.split())))
            for index, ensemble in enumerate(ensembles)
        ),
    )
    return of_one_place({LedgerId(7): metadata}, lambda bookie_id: bookie_id[0])


def test_each_write_set_of_each_fragment_is_judged() -> None:
    assert not found(2, "a1 b1", "a1 c1")
    assert not found(2, "a1 b1 a2 b2"), "each two neighbours of the ring are in two places"
    assert not found(1, "a1 a2"), "one copy is in one place"
    (line,) = found(2, "a1 b1", "a1 a2")
    assert "ledger 7, entries from 10" in line and "in a" in line
    assert len(found(2, "a1 a2 b1")) == 1, "only two of the ring's three neighbours share a place"
    assert len(found(2, "a1 b1 a2")) == 1, "the ring closes"
    assert len(found(3, "a1 a2 a3 b1")) == 1


def test_places_are_even() -> None:
    assert sorted(number for place in range(PLACES) for number in bookies_at(place)) == [
        *range(BOOKIES)
    ]
    for place in range(PLACES):
        names = [f"bookie-{number + 1}" for number in bookies_at(place)]
        assert {location_of(name, "rack") for name in names} == {f"/rack-{place}"}
        assert {location_of(name, "region").split("/")[1] for name in names} == {f"region-{place}"}
        assert len({location_of(name, "region") for name in names}) == len(names), "racks differ"
