"""The order in which a reader or copier asks bookies that hold the same, over random places, failures and slowness.

INV-P9: near ones first; one that fails or leaves reads unanswered comes behind all others; nobody is left out.
"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import KnownBookies
from fastbk.client.ledger_reader import ReadOrder
from fastbk.meta.api import BookieRegistration, BookieService, Endpoint
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import write_set
from fastbk.placement.config import DEFAULT_LOCATION, Distance, distance_of
from fastbk.replication.copying import Standing, choose_sources

LOCATIONS = ["/eu/r1", "/eu/r2", "/us/r1", "/us/r2", "/r1", "/r2", ""]
NAMES = [BookieId(f"b{number}") for number in range(6)]


def known_at(here: str, places: dict[BookieId, str]) -> KnownBookies:
    """Return what a client at `here` knows of bookies that say where they are."""
    known = KnownBookies(ClientConfig(location=here))
    known.update(
        [
            BookieRegistration(
                BookieService(
                    name, 1, (Endpoint("192.0.2.1", 1),), {"location": place} if place else {}
                ),
                True,
            )
            for name, place in places.items()
        ],
        0.0,
    )
    return known


@given(
    here=st.sampled_from(LOCATIONS),
    places=st.lists(st.sampled_from(LOCATIONS), min_size=6, max_size=6),
    failing=st.sets(st.sampled_from(NAMES)),
    slow=st.sets(st.sampled_from(NAMES)),
    late=st.sets(st.sampled_from(NAMES)),
    turn=st.integers(0, 20),
    is_striped=st.booleans(),
)
def test_near_ones_come_first_and_bad_ones_last(
    here: str,
    places: list[str],
    failing: set[BookieId],
    slow: set[BookieId],
    late: set[BookieId],
    turn: int,
    is_striped: bool,
) -> None:
    where = dict(zip(NAMES, places, strict=True))
    known = known_at(here, where)
    order = ReadOrder(known, turn, is_striped=is_striped).at(0.0)
    for name in failing:
        known.failed(name, 0.0)
    order.were_slow(sorted(slow))
    for name in late:
        order.was_late(name)
    asked = list(order(NAMES))
    assert sorted(asked) == NAMES
    for before, after in itertools.pairwise(asked):
        if before in failing:
            assert after in failing, "it comes behind all that do not fail"
        elif before in slow:
            assert after in failing | slow, "it comes behind all that are quick"
        if (before in failing, before in slow) != (after in failing, after in slow):
            continue
        near, far = (distance_of(here, where[one]) for one in (before, after))
        assert near <= far
        if near == far and before in late:
            assert after in late, "among those that are as far, it comes last"


@given(places=st.lists(st.sampled_from(LOCATIONS), min_size=6, max_size=6), turn=st.integers(0, 20))
def test_without_a_location_of_its_own_a_reader_takes_its_turn(
    places: list[str], turn: int
) -> None:
    order = ReadOrder(known_at("", dict(zip(NAMES, places, strict=True))), turn, is_striped=False)
    start = turn % len(NAMES)
    assert list(order.at(0.0)(NAMES)) == [*NAMES[start:], *NAMES[:start]]


@given(st.sampled_from(LOCATIONS), st.sampled_from(LOCATIONS), st.booleans())
def test_a_distance_is_that_of_the_way_back(here: str, there: str, is_same_host: bool) -> None:
    forth = distance_of(here, there, is_same_host=is_same_host)
    assert forth is distance_of(there, here, is_same_host=is_same_host)
    if here and here == there:
        assert forth is (Distance.HOST if is_same_host else Distance.RACK)
    if DEFAULT_LOCATION in (here or DEFAULT_LOCATION, there or DEFAULT_LOCATION):
        assert forth is (Distance.HOST if is_same_host else Distance.UNKNOWN)


@given(
    size=st.integers(2, 6),
    write_quorum=st.integers(2, 6),
    standings=st.lists(
        st.builds(
            Standing,
            is_far=st.booleans(),
            is_pressed=st.booleans(),
            distance=st.sampled_from(Distance),
        ),
        min_size=6,
        max_size=6,
    ),
    lost=st.integers(0, 5),
    turn=st.integers(0, 20),
)
def test_a_copier_reads_from_afar_only_what_no_near_bookie_has(
    size: int, write_quorum: int, standings: list[Standing], lost: int, turn: int
) -> None:
    write_quorum, lost = min(write_quorum, size), lost % size
    ensemble = tuple(NAMES[:size])
    stands = dict(zip(NAMES, standings, strict=True))
    metadata = LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=1,
        fragments=(Fragment(0, ensemble),),
    )
    sources = choose_sources(
        metadata,
        metadata.fragments[0],
        ensemble[lost],
        {ensemble[lost]},
        turn,
        stands.__getitem__,
    )
    for residue in range(size):
        members = write_set(residue, size, write_quorum)
        if lost not in members:
            assert residue not in sources
            continue
        others = [ensemble[index] for index in members if index != lost]
        assert sources[residue] in others
        source = stands[sources[residue]]
        assert source.is_far == all(stands[one].is_far for one in others)
        if not source.is_far and source.is_pressed:
            assert all(stands[one].is_far or stands[one].is_pressed for one in others)
