"""Queries for events, and the moments that people write in them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from fastbk.errors import ConfigError
from fastbk.observe.events import KIND_OF, KINDS, LIMIT_MAX, Event, Query, event_of, moments
from tests.style.tree import ROOT, walk

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC).timestamp()


def event(time: str, kind: str = "disk", name: str = "disk.slow", number: int = 1) -> Event:
    return Event(
        number=number,
        time=time,
        kind=kind,
        event=name,
        level="warning",
        source="b",
        process="journal",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("03:00", "2026-11-28T03:00:00.000000Z"),
        ("03:00:07", "2026-11-28T03:00:07.000000Z"),
        ("12:00", "2026-11-28T12:00:00.000000Z"),
        ("12:01", "2026-11-27T12:01:00.000000Z"),  # it has not come yet today
        ("-20m", "2026-11-28T11:40:00.000000Z"),
        ("-90s", "2026-11-28T11:58:30.000000Z"),
        ("-2d", "2026-11-26T12:00:00.000000Z"),
        ("now", "2026-11-28T12:00:00.000000Z"),
        ("2026-11-28", "2026-11-28T00:00:00.000000Z"),
        ("2026-11-28T03:00", "2026-11-28T03:00:00.000000Z"),
        ("2026-11-28T03:00:00.25Z", "2026-11-28T03:00:00.250000Z"),
        ("2026-11-28T05:00:00+02:00", "2026-11-28T03:00:00.000000Z"),
    ],
)
def test_moments_are_read_in_utc(text: str, expected: str) -> None:
    assert moments(text, "", NOW)[0] == expected


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("03:00", "03:20", "2026-11-28T03:20:00.000000Z"),
        ("23:50", "00:10", "2026-11-28T00:10:00.000000Z"),
        ("11:50", "12:10", "2026-11-28T12:10:00.000000Z"),  # its end is yet to come
        ("-2d", "13:00", "2026-11-26T13:00:00.000000Z"),
    ],
)
def test_a_time_of_day_as_an_end_is_the_first_one_after_the_beginning(
    since: str, until: str, expected: str
) -> None:
    assert moments(since, until, NOW)[1] == expected


@pytest.mark.parametrize(
    "text",
    ["25:00", "3:00", "yesterday", "-20", "-20y", "2026-13-01", "-999999999d", "99999-01-01"],
)
def test_what_is_no_moment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        moments(text, "", NOW)


def test_an_end_before_the_beginning_is_refused() -> None:
    with pytest.raises(ConfigError, match="not after"):
        moments("2026-11-28", "2026-11-27", NOW)


def test_the_beginning_belongs_to_a_time_and_the_end_does_not() -> None:
    query = Query.of({"since": "03:00", "until": "03:20"}, NOW)
    assert query.admits(event("2026-11-28T03:00:00.000000Z"))
    assert query.admits(event("2026-11-28T03:19:59.999999Z"))
    assert not query.admits(event("2026-11-28T03:20:00.000000Z"))
    assert not query.admits(event("2026-11-28T02:59:59.999999Z"))


def test_kinds_and_names_of_events_select() -> None:
    query = Query.of({"kind": "stall,disk.changed"}, NOW)
    now = "2026-11-28T03:00:00.000000Z"
    assert query.admits(event(now, "disk", "disk.changed"))
    assert query.admits(event(now, "stall", "journal.slow"))
    assert not query.admits(event(now, "disk", "disk.slow"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "disks"), ("limit", "0"), ("limit", str(LIMIT_MAX + 1)), ("limit", "ten"), ("after", "-1"),
     ("after", "9" * 30), ("newest", "2"), ("sinse", "03:00")],
)  # fmt: skip
def test_parameters_out_of_range_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Query.of({name: value}, NOW)


def test_a_query_is_the_same_after_its_way_over_http() -> None:
    query = Query.of(
        {
            "since": "03:00",
            "until": "03:20",
            "kind": "disk,stall",
            "limit": "7",
            "after": "5",
            "newest": "1",
        },
        NOW,
    )
    assert Query.of(query.parameters(), NOW + 86_400) == query
    assert Query.of(Query().parameters(), NOW) == Query()


def test_a_line_that_is_no_event_is_none() -> None:
    whole = event("2026-11-28T03:00:00.000000Z")
    assert event_of(whole.line()) == whole
    assert event_of(whole.line()[:-3]) is None
    assert event_of(b'{"number": "one"}\n') is None


# The table of events: the code logs all of them, and docs/events.md lists the same.


TABLE = "fastbk/observe/events.py"
MADE = {"bookie.became_read_only": '"bookie.became_"', "bookie.became_writable": '"bookie.became_"'}
"""Events whose names the code puts together, and what of them it holds."""


def test_each_event_is_logged_somewhere() -> None:
    code = "\n".join(
        path.read_text()
        for relative, path in walk((".py",))
        if relative.startswith("fastbk/") and relative != TABLE
    )
    missing = [one for one in KIND_OF if MADE.get(one, f'"{one}"') not in code]
    assert missing == []


def test_each_kind_has_events_and_each_event_a_kind() -> None:
    assert set(KIND_OF.values()) == set(KINDS)


def test_the_page_lists_the_same_events() -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \|$",
        text.partition("## Kinds")[2].partition("\n- **")[0],
        re.MULTILINE,
    )
    listed = {event: kind for kind, events in rows for event in re.findall(r"`([\w.]+)`", events)}
    assert listed == KIND_OF
    assert [kind for kind, _ in rows] == list(KINDS)
