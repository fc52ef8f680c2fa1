"""Locations, labels, the table of a configuration, and what a script prints."""

from __future__ import annotations

import pytest

from fastbk.errors import ConfigError
from fastbk.placement.choose_ensemble import domains_of
from fastbk.placement.config import (
    DEFAULT_LOCATION,
    Distance,
    Topology,
    check_labels,
    check_location,
    distance_of,
    locations_printed,
    valid_labels,
    valid_location,
)


@pytest.mark.parametrize("text", ["/eu/r1", "/r1", "/eu-1/row_2/r1.3"])
def test_locations_are_kept(text: str) -> None:
    assert check_location(text) == text
    assert valid_location(f" {text}/ ") == text


@pytest.mark.parametrize(
    "text", ["", "/", "eu/r1", "/eu//r1", "/eu/r 1", "/a" * 9, "/" + "a" * 255]
)
def test_what_is_no_location_is_refused_or_not_known(text: str) -> None:
    assert valid_location(text) is None
    with pytest.raises(ConfigError, match="location"):
        check_location(text)


def test_labels() -> None:
    assert valid_labels("gold, ssd,,in valid,é") == {"gold", "ssd"}
    assert valid_labels("") == frozenset()
    assert len(valid_labels(",".join(f"l{number}" for number in range(100)))) == 64
    assert check_labels(["ssd", "gold", "ssd"]) == ("gold", "ssd")
    with pytest.raises(ConfigError, match="in valid"):
        check_labels(["gold", "in valid"])
    with pytest.raises(ConfigError, match="at most 64"):
        check_labels([f"l{number}" for number in range(65)])


def test_the_table_goes_from_the_exact_to_the_general() -> None:
    topology = Topology.of(
        {
            "b1": "/by/id",
            "10.1.2.3": "/by/host/",
            "10.1.*": "/eu/r1",
            "10.*": "/eu/other",
            "db-*": "/us/db",
        }
    )
    assert topology.location_of("b1", "10.1.2.3") == "/by/id"
    assert topology.location_of("b2", "10.1.2.3") == "/by/host"
    assert topology.location_of("b2", "10.1.9.9") == "/eu/r1"
    assert topology.location_of("b2", "10.2.0.1") == "/eu/other"
    assert topology.location_of("db-7", "192.0.2.1") == "/us/db"
    assert topology.location_of("b2", "192.0.2.1") is None


def test_a_star_alone_is_where_all_others_are() -> None:
    topology = Topology.of({"*": "/eu/r0", "a*": "/eu/r1"})
    assert topology.location_of("b", "host") == "/eu/r0"
    assert topology.location_of("b", "ahost") == "/eu/r1"


@pytest.mark.parametrize(
    "table", [{"b1": "rack"}, {"10.*.1": "/a/b"}, {"": "/a/b"}, {"b1": 3}], ids=str
)
def test_a_wrong_table_is_refused_with_its_key(table: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match="topology: " + repr(next(iter(table))).replace("*", r"\*")
    ):
        Topology.of(table)


def test_what_a_script_prints_is_matched_in_order() -> None:
    assert locations_printed("/a/1 /a/2\n/a/3\n", ["x", "y", "z"]) == {
        "x": "/a/1",
        "y": "/a/2",
        "z": "/a/3",
    }
    assert locations_printed("/a/1\nnonsense", ["x", "y"]) == {"x": "/a/1"}
    with pytest.raises(ValueError, match="1 locations for 2 hosts"):
        locations_printed("/a/1", ["x", "y"])


@pytest.mark.parametrize(
    ("location", "policy", "upper", "whole"),
    [
        ("/eu/r1", "spread", "", ""),
        ("/eu/r1", "rack", "", "/eu/r1"),
        ("/r1", "rack", "", "/default-region/r1"),
        ("/eu/r1", "region", "/eu", "/eu/r1"),
        ("/eu/row/r1", "region", "/eu", "/eu/row/r1"),
        ("/z1", "zone", "/z1", "/z1/default-upgrade-domain"),
        ("", "region", "/default-region", "/default-region/default-rack"),
        ("/", "zone", "/default-region", "/default-region/default-rack"),
        (DEFAULT_LOCATION, "zone", "/default-region", "/default-region/default-rack"),
    ],
)
def test_policies_see_their_part_of_a_location(
    location: str, policy: str, upper: str, whole: str
) -> None:
    assert domains_of(location, policy) == (upper, whole)  # type: ignore[arg-type]


def test_a_table_says_where_a_client_is_unless_its_row_is_about_all_others() -> None:
    topology = Topology.of({"app-1": "/eu/r9", "10.1.*": "/eu/r1", "10.*": "/eu/r2", "*": "/us/r1"})
    assert topology.location_of_client("app-1") == "/eu/r9"
    assert topology.location_of_client("10.1.2.3") == "/eu/r1"
    assert topology.location_of_client("10.2.2.3") == "/eu/r2"
    assert topology.location_of_client("app-2") is None


@pytest.mark.parametrize(
    ("here", "there", "distance"),
    [
        ("/eu/r1", "/eu/r1", Distance.RACK),
        ("/eu/r1", "/eu/r2", Distance.REGION),
        ("/eu/r1", "/us/r1", Distance.OTHER),
        ("/r1", "/r2", Distance.REGION),
        ("/r1", "/eu/r1", Distance.OTHER),
        ("/eu/r1/shelf", "/eu/r1/other", Distance.REGION),
        ("", "/eu/r1", Distance.UNKNOWN),
        ("/eu/r1", DEFAULT_LOCATION, Distance.UNKNOWN),
    ],
)
def test_distances(here: str, there: str, distance: Distance) -> None:
    assert distance_of(here, there) is distance
    on_one_host = distance_of(here, there, is_same_host=True)
    is_told_apart = distance in (Distance.REGION, Distance.OTHER)
    assert on_one_host is (distance if is_told_apart else Distance.HOST), "locations count for more"
