"""What a registration tells placement, and what of it is not believed."""

from __future__ import annotations

import socket

import pytest

from fastbk.client.bookie_views import is_local_host, view_of
from fastbk.meta.api import BookieRegistration, BookieService, Endpoint
from fastbk.placement.values import DEFAULT_LOCATION, BookieView


def registered(
    host: str = "192.0.2.1", writable: bool = True, **properties: str
) -> BookieRegistration:
    return BookieRegistration(BookieService("b1", 1, (Endpoint(host, 3181),), properties), writable)


def test_a_bookie_that_says_nothing_is_at_the_default_location() -> None:
    assert view_of(registered()) == BookieView("b1", location=DEFAULT_LOCATION)


def test_a_bookie_says_where_it_is_what_it_is_and_how_full() -> None:
    found = view_of(
        registered(writable=False, location="/eu/r1", labels="gold,ssd", free_bytes="123"),
        quarantined=True,
    )
    assert found == BookieView(
        "b1",
        writable=False,
        quarantined=True,
        free_bytes=123,
        location="/eu/r1",
        labels=frozenset({"gold", "ssd"}),
    )


def test_nonsense_counts_as_not_said() -> None:
    found = view_of(registered(location="eu r1", labels=", ,", free_bytes="-1"))
    assert found == BookieView("b1")
    assert view_of(registered(free_bytes="9" * 30)).free_bytes is None
    assert view_of(registered(free_bytes="²")).free_bytes is None


def test_the_clients_own_topology_goes_before_what_the_bookie_says() -> None:
    known = {("b1", "192.0.2.1"): "/us/r9"}

    def location_of(bookie_id: str, host: str) -> str | None:
        return known.get((bookie_id, host))

    assert view_of(registered(location="/eu/r1"), location_of=location_of).location == "/us/r9"
    known.clear()
    assert view_of(registered(location="/eu/r1"), location_of=location_of).location == "/eu/r1"


def test_a_bookie_that_does_not_speak_our_protocol_has_a_view_too() -> None:
    theirs = Endpoint("127.0.0.1", 3181, protocol="bookie-rpc")
    found = view_of(BookieRegistration(BookieService("b1", 1, (theirs,)), True))
    assert found == BookieView("b1", is_local=True)
    nowhere = view_of(BookieRegistration(BookieService("b1", 1, ()), True))
    assert nowhere == BookieView("b1")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        (socket.gethostname(), True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("0.0.0.0", False),
        ("elsewhere.invalid", False),
    ],
)
def test_which_hosts_are_this_one(host: str, expected: bool) -> None:
    assert is_local_host(host) is expected
    assert view_of(registered(host)).is_local is expected
